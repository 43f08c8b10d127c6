//! The group `policy`: the cost of a decision by a large policy, and of a change of it.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tollgate::Rate;
use tollgate_engine::backend::Memory;
use tollgate_engine::policy::{KeyPart, Limits, MatchConditions, Pattern, Policy, Rule};
use tollgate_engine::{Engine, Facts};

use crate::alloc;
use crate::report::{Line, Report};
use crate::runner::{ROUNDS, as_f64, median};
use crate::timing::{self, Stopwatch};

const RULES: u64 = 10_000;
/// Rules for one service each; the rest match all.
const SERVICES: u64 = RULES - 2;
/// Keys of users and of addresses, half each.
const KEYS: u64 = 1_000_000;
/// Requests that are prepared before they are timed.
const BATCH: usize = 512;
/// The services of the requests in each case.
const CASES: [(&str, u64); 2] = [
    ("decide-3-of-10k-few-routes", 16),
    ("decide-3-of-10k-all-routes", SERVICES),
];
/// The target for a decision, in nanoseconds.
const DECIDE: f64 = 400.0;
/// The target for a reload, in milliseconds.
const RELOAD: f64 = 200.0;
const RELOADS: usize = 9;

pub(crate) fn run(report: &mut Report) {
    let mut random = Random(1);
    for (case, services) in CASES {
        let Some(engine) = engine(report) else {
            return;
        };
        for key in 0..KEYS / 2 {
            let request = Request::new(key, key, services);
            black_box(engine.decide(&request.facts()).allowed().is_some());
        }
        let (nanos, allocated, disturbed) = decisions(&engine, services, &mut random);
        let mut line = Line::new(case, "target", (nanos, DECIDE, "ns"), nanos / DECIDE);
        line.disturbed = disturbed;
        report.add(line.target(Some(1.0)));
        let none = (allocated, 0.0, "B");
        let line = Line::new(format!("{case}-allocated"), "target", none, allocated);
        report.add(line.target(Some(0.0)));
    }
    if let Some(engine) = engine(report) {
        reloads(report, &engine);
    }
    report.note(format!(
        "decide: median of {ROUNDS} rounds of {BATCH} requests of random users and addresses, made \
         ready before, of {KEYS} keys; each meets a rule for a service by user, one for all by \
         address and one for all by tenant; of 16 services, or of all {SERVICES}. Reload: median of {RELOADS}, with a thread that decides \
         all the while"
    ));
}

fn engine(report: &mut Report) -> Option<Engine> {
    let memory = Memory::builder().capacity(2_000_000).build();
    match Engine::new(policy(rate(0)), memory) {
        Ok(engine) => Some(engine),
        Err(error) => {
            report.note(format!("no engine: {error}"));
            None
        }
    }
}

/// So slow that every key stays active once it was charged, and with room for all requests: an idle key loses
/// its entry soon, and then there would be few keys and most of them new.
fn rate(more: u64) -> Rate {
    Rate::per_hour(1_000 + more).burst(1_000_000)
}

/// Nanoseconds for each decision, the most bytes that a batch allocated, and disturbed rounds.
fn decisions(engine: &Engine, services: u64, random: &mut Random) -> (f64, f64, usize) {
    let (mut times, mut allocated, mut disturbed) = (Vec::new(), 0, 0);
    let mut reruns = 0;
    while times.len() < ROUNDS {
        let users = |_| Request::new(random.below(KEYS / 2), random.below(KEYS / 2), services);
        let requests: Vec<_> = (0..BATCH).map(users).collect();
        let before = timing::context_switches();
        alloc::take_peak();
        let live = alloc::live();
        let watch = Stopwatch::start();
        for request in &requests {
            black_box(engine.decide(&request.facts()).allowed().is_some());
        }
        let nanos = watch.nanos();
        allocated = allocated.max(alloc::take_peak() - live);
        let switched = timing::context_switches() != before;
        if switched && reruns < 5 * ROUNDS {
            reruns += 1;
            continue;
        }
        disturbed += usize::from(switched);
        times.push(nanos / as_f64(BATCH as u64));
    }
    (median(times), as_f64(allocated as u64), disturbed)
}

/// How long a reload takes, and the slowest of the concurrent decisions.
fn reloads(report: &mut Report, engine: &Engine) {
    let (stop, mut times) = (AtomicBool::new(false), Vec::new());
    let slowest = thread::scope(|scope| {
        let decider = scope.spawn(|| {
            let (mut random, mut times) = (Random(2), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let (user, address) = (random.below(KEYS / 2), random.below(KEYS / 2));
                let request = Request::new(user, address, SERVICES);
                let (waited, watch) = (timing::core_wait_time(), Stopwatch::start());
                black_box(engine.decide(&request.facts()).allowed().is_some());
                let nanos = watch.nanos();
                if nanos > 10_000.0 {
                    let waited = timing::core_wait_time() - waited;
                    times.push(nanos - waited.as_secs_f64() * 1e9);
                } else {
                    times.push(nanos);
                }
            }
            times
        });
        for round in 0..RELOADS as u64 {
            let policy = policy(rate(round));
            let watch = Stopwatch::start();
            if let Err(error) = engine.reload(policy) {
                report.note(format!("no reload: {error}"));
            }
            times.push(watch.nanos() / 1e6);
        }
        stop.store(true, Ordering::Relaxed);
        decider.join().unwrap_or_default()
    });
    let took = median(times);
    let line = Line::new(
        "reload-10k-rules",
        "target",
        (took, RELOAD, "ms"),
        took / RELOAD,
    );
    report.add(line.target(Some(1.0)));
    let slowest = slowest.into_iter().fold(0.0, f64::max) / 1e3;
    report.note(format!(
        "the slowest decision while reloading took {slowest:.0} us, less what its thread waited for \
         a core"
    ));
}

/// One rule for each service, by user, and two for all, by address and by tenant.
fn policy(rate: Rate) -> Policy {
    let limits = Limits {
        rates: vec![rate],
        ..Limits::default()
    };
    let rule = |name: String, conditions: Vec<(&str, Pattern)>, key: &str| Rule {
        matches: MatchConditions {
            conditions: conditions
                .into_iter()
                .map(|(fact, pattern)| (fact.to_owned(), pattern))
                .collect(),
            ..MatchConditions::default()
        },
        key: vec![KeyPart::Fact(key.to_owned())],
        ..Rule::new(&name, limits.clone())
    };
    let service = |number| {
        let methods = ["GET", "POST"].map(|method| Pattern::Exact(method.to_owned()));
        let path = Pattern::Glob(format!("/service-{number}/**"));
        let conditions = vec![("path", path), ("method", Pattern::OneOf(methods.into()))];
        rule(format!("service-{number}"), conditions, "user")
    };
    let mut rules: Vec<_> = (0..SERVICES).map(service).collect();
    rules.push(rule("address".to_owned(), Vec::new(), "ip"));
    rules.push(rule(
        "tenant".to_owned(),
        vec![("tenant", Pattern::Present)],
        "tenant",
    ));
    Policy {
        rules,
        near_limit_percent: 80,
        ..Policy::default()
    }
}

struct Request {
    path: String,
    user: String,
    tenant: String,
    ip: String,
}

impl Request {
    fn new(user: u64, address: u64, services: u64) -> Self {
        let [_, _, _, _, _, a, b, c] = address.to_be_bytes();
        Self {
            path: format!("/service-{}/items", user % services),
            user: format!("user-{user}"),
            tenant: format!("tenant-{}", user % 1_000),
            ip: format!("10.{a}.{b}.{c}"),
        }
    }

    fn facts(&self) -> Facts<'_> {
        let mut facts = Facts::new();
        facts.set("method", "GET");
        facts.set("path", &self.path);
        facts.set("user", &self.user);
        facts.set("tenant", &self.tenant);
        facts.set("ip", &self.ip);
        facts
    }
}

/// Pseudorandom numbers, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// An index into a table of this length.
    pub(crate) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}
