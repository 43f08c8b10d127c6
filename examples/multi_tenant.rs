//! One request against many limits: its user, address and tenant, the tenant's daily quota, its route, the whole
//! service, and a concurrency limit. It passes all of them, or is charged to none.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    CompositeLimiter, ConcurrencyLimiter, KeyedLimiter, Limit, Limiter, Quota, QuotaLimiter, Rate,
    stack::CompositeDecision,
};

/// Names of the limits, from the narrowest to the broadest.
const LIMITS: [&str; 7] = [
    "user", "address", "tenant", "daily", "/login", "service", "slots",
];

struct Request {
    user: String,
    address: String,
    tenant: String,
    route: &'static str,
}

/// A user of a tenant at an address, by number.
fn request(user: u32, address: u32, tenant: u32, route: &'static str) -> Request {
    Request {
        user: format!("user-{user}"),
        address: format!("10.0.{}.{}", address / 250, address % 250),
        tenant: format!("tenant-{tenant}"),
        route,
    }
}

struct Service {
    users: KeyedLimiter<Manual>,
    addresses: KeyedLimiter<Manual>,
    tenants: KeyedLimiter<Manual>,
    days: QuotaLimiter<Manual>,
    login: Limiter<Manual>,
    all: Limiter<Manual>,
    slots: Arc<ConcurrencyLimiter<Manual>>,
    stack: CompositeLimiter,
    clock: Manual,
}

impl Service {
    fn new() -> Result<Self, Box<dyn Error>> {
        let clock = Manual::new();
        let keyed = |a_second| {
            KeyedLimiter::builder(Rate::per_second(a_second), 10_000)
                .clock(clock.clone())
                .build()
        };
        Ok(Self {
            users: keyed(10)?,
            addresses: keyed(50)?,
            tenants: keyed(100)?,
            days: QuotaLimiter::builder(Quota::per_day(100_000), 1_000_000)
                .clock(clock.clone())
                .build()?,
            login: Limiter::with_clock(Rate::per_second(500), clock.clone()),
            all: Limiter::with_clock(Rate::per_second(10_000), clock.clone()),
            slots: Arc::new(ConcurrencyLimiter::builder(50).clock(clock.clone()).build()),
            stack: CompositeLimiter::new(),
            clock,
        })
    }

    /// Serves a request immediately, or returns the limit that denied it and the message.
    fn serve(&self, request: &Request) -> Result<(), (String, String)> {
        let day = self.days.key(&request.tenant);
        let mut levels = vec![
            Limit::new("user", &self.users.key(&request.user)),
            Limit::new("address", &self.addresses.key(&request.address)),
            Limit::new("tenant", &self.tenants.key(&request.tenant)),
            Limit::new("daily", &day),
        ];
        if request.route == "/login" {
            levels.push(Limit::new("/login", &self.login));
        }
        levels.push(Limit::new("service", &self.all));
        levels.push(Limit::new("slots", &self.slots));
        match self.stack.check(&levels) {
            CompositeDecision::Allowed(passed) => {
                // The request would run here, with its permit.
                passed.permits.success();
                Ok(())
            }
            CompositeDecision::Denied(refusal) => {
                Err((refusal.name.to_owned(), refusal.to_string()))
            }
        }
    }

    /// Sends requests at one instant, with every limit full again, and prints the denials of each limit.
    fn traffic(&self, what: &str, requests: impl Iterator<Item = Request>) -> OutcomeCounts {
        self.clock.advance(Duration::from_secs(10));
        let mut tally = OutcomeCounts::default();
        for request in requests {
            match self.serve(&request) {
                Ok(()) => tally.passed += 1,
                Err((name, text)) => {
                    *tally.refused.entry(name).or_default() += 1;
                    tally.text = text;
                }
            }
        }
        print!("{what:<34} {:>7}", tally.passed);
        for limit in LIMITS {
            print!(" {:>7}", tally.count_by(limit));
        }
        println!();
        tally
    }
}

#[derive(Default)]
struct OutcomeCounts {
    passed: u32,
    refused: BTreeMap<String, u32>,
    /// The latest denial.
    text: String,
}

impl OutcomeCounts {
    fn count_by(&self, limit: &str) -> u32 {
        self.refused.get(limit).copied().unwrap_or(0)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = Service::new()?;
    print!("{:<34} {:>7}", "at one moment", "passed");
    LIMITS.iter().for_each(|limit| print!(" {limit:>7}"));
    println!();

    let flood = (0..100).map(|_| request(1, 1, 1, "/search"));
    let user = service.traffic("one user, 100 requests", flood);
    assert_eq!((user.passed, user.count_by("user")), (10, 90));
    // The 90 denied requests were charged to no limit: neither to the address and tenant, nor to the shared ones.
    assert_eq!(service.addresses.key("10.0.0.1").peek().remaining, 40);
    assert_eq!(service.tenants.key("tenant-1").peek().remaining, 90);
    assert_eq!(service.days.peek("tenant-1").remaining, 99_990);
    assert_eq!(service.all.peek().remaining, 9_990);

    let flood = (0..500).map(|n| request(n % 50, n % 50, 1, "/search"));
    let tenant = service.traffic("one tenant, 50 users, 500 requests", flood);
    assert_eq!((tenant.passed, tenant.count_by("tenant")), (100, 400));
    assert_eq!(service.all.peek().remaining, 9_900);
    assert!(service.serve(&request(60, 60, 2, "/search")).is_ok());

    let flood = (0..200).map(|n| request(n, 1, n % 20, "/search"));
    let address = service.traffic("one address, 200 users", flood);
    assert_eq!((address.passed, address.count_by("address")), (50, 150));

    let flood = (0..2_000).map(|n| request(n, n, n % 100, "/login"));
    let login = service.traffic("/login from 2,000 addresses", flood);
    assert_eq!((login.passed, login.count_by("/login")), (500, 1_500));
    assert!(service.serve(&request(1, 1, 1, "/search")).is_ok());
    assert_eq!(service.all.peek().remaining, 9_499);

    let crowd = (0..12_000).map(|n| request(n % 2_000, n % 2_000, n % 200, "/search"));
    let all = service.traffic("12,000 from everybody", crowd);
    assert_eq!((all.passed, all.count_by("service")), (10_000, 2_000));

    let used = 100_000 - service.days.peek("tenant-7").remaining;
    let small = Quota::per_day(used + 20);
    service.days.set_override("tenant-7", small)?;
    let rest = (0..80).map(|n| request(n, n, 7, "/search"));
    let quota = service.traffic("a tenant with 20 left of its day", rest);
    assert_eq!((quota.passed, quota.count_by("daily")), (20, 60));

    let upload = |_| service.stack.allow(&[Limit::new("slots", &service.slots)]);
    let uploads: Vec<_> = (0..50).filter_map(upload).collect();
    let crowd = (0..100).map(|n| request(n, n, 50 + n % 50, "/search"));
    let slots = service.traffic("while 50 uploads hold all slots", crowd);
    assert_eq!((slots.passed, slots.count_by("slots")), (0, 100));
    assert_eq!(service.all.peek().remaining, 10_000);
    drop(uploads);
    assert!(service.serve(&request(1, 1, 1, "/search")).is_ok());

    println!();
    let expected = [
        (&user, "rate limit \"user\": retry after 100ms"),
        (&quota, "quota \"daily\": 0 of 78 left; retry after 86340s"),
        (&slots, "concurrency limit \"slots\": 50 of 50 in use"),
    ];
    for (tally, text) in expected {
        println!("{}", tally.text);
        assert_eq!(tally.text, text);
    }
    assert_eq!(service.stack.lost_races(), 0);
    Ok(())
}
