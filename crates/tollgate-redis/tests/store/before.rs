//! The keys and values that the previous version has left in a store. A fleet is upgraded one process after the other,
//! so both versions count in the same keys. `docs/reference/service.md` says which do.

use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate, Timestamp, core::WindowAlignment};
use tollgate_engine::backend::LimitKind;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

use super::{connect, keys};

const POLICY: &str = "
limits:
- {name: gcra, match: {path: /gcra}, key: user, rate: 20/d}
- {name: bucket, match: {path: /bucket}, key: user, rate: 20/d, algorithm: token-bucket}
- {name: leaky, match: {path: /leaky}, key: user, rate: 20/d, algorithm: leaky}
- {name: fixed, match: {path: /fixed}, key: user, rate: 20/d, algorithm: fixed-window}
- {name: log, match: {path: /log}, key: user, rate: 20/d, algorithm: sliding-log}
- {name: window, match: {path: /window}, key: user, rate: 20/d, algorithm: sliding-window}
- {name: daily, match: {path: /daily}, key: user, quota: 20/day}
- {name: rolling, match: {path: /rolling}, key: user, quota: 20 in any 30d}
- {name: permits, match: {path: /permits}, key: user, concurrency: 4}
- {name: leased, match: {path: /leased}, key: user, rate: 20/d, counting: leased}
- {name: estimated, match: {path: /estimated}, key: user, rate: 20/d, cost: {default: 1, settle_within: 60s}}
- {name: address, match: {path: /address}, key: ip, rate: 20/d}
- {name: network, match: {path: /network}, key: [ip/64, user], rate: 20/d}
- {name: all, match: {path: /all}, rate: 20/d}
- {name: several, match: {path: /several}, key: user, rate: [20/d, 100/h], quota: 50/month in Europe/Zurich}
- {name: one, match: {path: /one}, key: user, rate: 20/d, shared: both}
- {name: two, match: {path: /two}, key: user, rate: 20/d, shared: both}
tiers:
  free: {rate: 20/d, quota: 50/month}
default_tier: free
";

/// The keys of a request of `ada`, from 10.1.2.3, by each path, and of one of the tenant `acme`.
const NAMES: [&str; 20] = [
    "tollgate:2:0373f070:{user=ada}:rule/several:0",
    "tollgate:2:06026cc3:{user=ada}:rule/several:0",
    "tollgate:2:26143dbf:{user=ada}:rule/bucket:0",
    "tollgate:2:28e4257b:{user=ada}:rule/leaky:0",
    "tollgate:2:391e7147:{user=ada}:rule/window:0",
    "tollgate:2:3ac1d010:{user=ada}:rule/permits:0",
    "tollgate:2:441be4ec:{user=ada}:rule/fixed:0",
    "tollgate:2:789ccbbc:{user=ada}:rule/log:0",
    "tollgate:2:9e1df4be:{user=ada}:rule/daily:0",
    "tollgate:2:b29e7d06:{user=ada}:rule/rolling:0",
    "tollgate:2:c57383f6:{user=ada}:rule/estimated:0",
    "tollgate:2:c57383f6:{user=ada}:rule/leased:0",
    "tollgate:2:cf5edae4:{tenant=acme}:tier:0",
    "tollgate:2:fc693a9f:{ip=10.1.2.3}:rule/address:0",
    "tollgate:2:fc693a9f:{ip=10.1.2.3}:rule/network:0:user=ada",
    "tollgate:2:fc693a9f:{rule/all:0}:rule/all:0",
    "tollgate:2:fc693a9f:{tenant=acme}:tier:0",
    "tollgate:2:fc693a9f:{user=ada}:rule/gcra:0",
    "tollgate:2:fc693a9f:{user=ada}:rule/several:0",
    "tollgate:2:fc693a9f:{user=ada}:shared/both:0",
];

#[tokio::test]
async fn counters_have_the_names_that_the_version_before_gave_them() {
    let server = Server::start();
    let policy = Policy::from_text(POLICY, Format::Yaml).expect("a policy");
    let ada = Facts::new().with("user", "ada").with("ip", "10.1.2.3");
    let rules = policy.policy.rules.iter();
    let paths: Vec<_> = rules.map(|rule| format!("/{}", rule.name)).collect();
    let mut requests: Vec<_> = (paths.iter())
        .map(|path| ada.clone().with("path", path))
        .collect();
    requests.push(Facts::new().with("tenant", "acme"));
    let engine = Engine::new(policy.policy, connect(&server)).expect("a policy");
    // Permits and leases have keys for as long as they are held.
    let mut held = Vec::new();
    for request in &requests {
        let Ok(verdict) = engine.decide_async(request).await;
        assert!(verdict.decision().is_allowed(), "{request:?}");
        held.push(verdict);
    }
    assert_eq!(keys(&server), NAMES);
}

const LIMIT: u64 = 20;
const SPENT: u64 = 3;
/// When the values were written, or a few milliseconds later.
const WRITTEN: Timestamp = Timestamp::from_nanos(1_794_984_292_064_519_000);

/// The value of a key after three requests.
enum Kept {
    /// A string, as hexadecimal digits.
    Bytes(&'static str),
    /// A sorted set of members with scores.
    Members([(&'static str, &'static str); 3]),
}

impl Kept {
    fn put(&self, server: &Server, key: &str) {
        server.command(&["DEL", key]);
        match self {
            Self::Bytes(hex) => put_bytes(server, key, hex),
            Self::Members(members) => {
                for (member, score) in members {
                    server.command(&["ZADD", key, score, member]);
                }
            }
        }
    }
}

fn put_bytes(server: &Server, key: &str, hex: &str) {
    let script = "local raw = string.gsub(ARGV[1], '..', function(two) return string.char(tonumber(two, 16)) end)
        return redis.call('SET', KEYS[1], raw)";
    let reply = server.command(&["EVAL", script, "1", key, hex]);
    assert_eq!(reply.text().as_deref(), Some("OK"));
}

/// What each kind of limit kept: 20 a day or in any 30 days, and 4 permits.
fn kept() -> Vec<(LimitKind, u64, Kept)> {
    let day = Rate::per_day(LIMIT);
    let rate = |algorithm, hex| {
        let kind = LimitKind::Rate {
            rate: day,
            algorithm,
        };
        (kind, LIMIT, Kept::Bytes(hex))
    };
    let month = Duration::from_secs(30 * 86_400);
    vec![
        rate(
            Algorithm::Gcra,
            "0000c01acf23084228c16a641d82194300000080df17f041",
        ),
        rate(
            Algorithm::TokenBucket,
            "00008821cf230842f8db6a641d82194300000080df17f041",
        ),
        rate(
            Algorithm::LeakyBucket,
            "00004023cf230842b8f16a641d82194300000080df17f041",
        ),
        rate(
            Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
            "0080bec4068219430000000000000840",
        ),
        rate(
            Algorithm::SlidingCounter,
            "0080bec40682194300000000000000000000000000000840",
        ),
        (
            LimitKind::Rate {
                rate: day,
                algorithm: Algorithm::SlidingLog,
            },
            LIMIT,
            Kept::Members([
                ("1:1", "1794984292042388"),
                ("2:1", "1794984292042937"),
                ("3:1", "1794984292043371"),
            ]),
        ),
        (
            LimitKind::Quota(Quota::per_day(LIMIT)),
            LIMIT,
            Kept::Bytes("1c646b641d82194300001c3c578219430000000000000840"),
        ),
        (
            LimitKind::Quota(Quota::rolling(LIMIT, month).expect("a period")),
            LIMIT,
            Kept::Bytes("ec826b641d821943004062fd9c8b19430000000000000840"),
        ),
        (
            LimitKind::Concurrency(4),
            4,
            Kept::Members([
                ("4983f2363de9b434-1/1/60000000", "1794984352049621"),
                ("4983f2363de9b434-2/1/60000000", "1794984352050195"),
                ("4983f2363de9b434-3/1/60000000", "1794984352050707"),
            ]),
        ),
    ]
}

#[tokio::test]
async fn what_the_version_before_counted_is_counted() {
    let server = Server::start();
    for (kind, limit, kept) in kept() {
        let told = format!("{kind:?}");
        server.command(&["FLUSHALL"]);
        // Its own client each: what one remembers of a denial is nothing to the next.
        let limiter = connect(&server)
            .limiter_with_kind("kept", kind)
            .build()
            .unwrap();
        let mut passed = 0;
        for is_put in [false, true] {
            if is_put {
                let [key] = &keys(&server)[..] else {
                    panic!("{told}: one key: {:?}", keys(&server));
                };
                kept.put(&server, key);
                passed = 0;
            }
            let requests = if is_put { 2 * limit } else { 1 };
            for _ in 0..requests {
                let decision = limiter.check_at(WRITTEN, "k", 1).await.expect("a store");
                passed += u64::from(decision.is_allowed());
            }
        }
        assert_eq!(passed, limit - SPENT, "{told}");
    }
}

/// How many of twice the limit pass, of a user.
async fn passes(engine: &Engine<Redis>, path: &str) -> u64 {
    let facts = Facts::new().with("user", "ada").with("path", path);
    let (mut passed, mut held) = (0, Vec::new());
    for _ in 0..2 * LIMIT {
        let Ok(verdict) = engine.decide_async(&facts).await;
        assert_eq!(verdict.fallback(), None);
        passed += u64::from(verdict.decision().is_allowed());
        held.push(verdict);
    }
    passed
}

#[tokio::test]
async fn what_processes_of_the_version_before_hold_is_left_to_them() {
    let server = Server::start();
    let policy = Policy::from_text(POLICY, Format::Yaml).expect("a policy");
    let engine = Engine::new(policy.policy, connect(&server)).expect("a policy");
    let time = server.command(&["TIME"]);
    let seconds = time.items()[0].integer().expect("a time");
    // Both by the store's own clock, so the times in the values are moved to the present.
    let at = |seconds: i64| {
        let micros = f64::from(u32::try_from(seconds).expect("a time")) * 1e6;
        let bytes = micros.to_le_bytes().map(|byte| format!("{byte:02x}"));
        bytes.concat()
    };
    let (now, later) = (at(seconds), at(seconds + 600));
    // Three tokens are owed. A process holds two of them, or three: it may spend them, and nobody else.
    for (path, name, holder) in [
        (
            "/leased",
            "rule/leased",
            ("944c8821d7aa1143", "0000000000000040", "0000000000000040"),
        ),
        (
            "/estimated",
            "rule/estimated",
            ("bc9830010ddc3f43", "0000000000000840", "0000000000000840"),
        ),
    ] {
        let (own, holds, number) = holder;
        let level = format!("00000040cf230842{now}00000080df17f041");
        let holder = format!("{own}{holds}{later}{number}0000000080842e41");
        let key = format!("tollgate:2:c57383f6:{{user=ada}}:{name}:0");
        put_bytes(&server, &key, &format!("{level}{holder}"));
        assert_eq!(passes(&engine, path).await, LIMIT - SPENT, "{path}");
    }
}
