//! Every law of the arithmetic for one key of an exact-key table, and many keys against one oracle
//! each.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Clock as _, Decision, Rate, Reservation, StoredKeyLimiter, Timestamp, WhenFull,
    core::WindowAlignment, stored_keys,
};
use tollgate_testkit::laws::{Adjustable, Lender, Subject};
use tollgate_testkit::oracle::OracleKind;
use tollgate_testkit::traffic::Random;

type Table<K> = StoredKeyLimiter<K, Manual>;
type Slot = Reservation<stored_keys::Key<'static, String, str, Manual>>;

/// One key of a leaked table, so that its reservations can be kept.
struct OneKey(&'static Table<String>);

impl OneKey {
    fn new(algorithm: Algorithm, rate: Rate) -> Self {
        Self(Box::leak(Box::new(table(algorithm, rate, 4))))
    }
}

fn table<K>(algorithm: Algorithm, rate: Rate, capacity: usize) -> Table<K> {
    StoredKeyLimiter::builder(rate, capacity)
        .algorithm(algorithm)
        .at_cap(WhenFull::DenyNew)
        .longest_wait(Duration::MAX)
        .clock(Manual::new())
        .build()
        .expect("a rate that fits")
}

impl Subject for OneKey {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.0.key("key").check_at(now, cost)
    }
}

impl Lender for OneKey {
    /// Dropping would cancel: the manual clock stands still.
    type Receipt = ManuallyDrop<Slot>;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Self::Receipt)> {
        let slot = self.0.key("key").reserve_at(now, cost).ok()?;
        Some((slot.ready_at(), ManuallyDrop::new(slot)))
    }

    fn give_back_at(&mut self, now: Timestamp, receipt: Self::Receipt) {
        ManuallyDrop::into_inner(receipt).cancel_at(now);
    }
}

impl Adjustable for OneKey {
    fn set_rate_at(&mut self, now: Timestamp, rate: Rate) {
        self.0.set_rate_at(now, rate).expect("a rate that fits");
    }
}

every_law!(super::OneKey::new);

/// Keys that come and go, each compared with an oracle that forgets nothing.
fn many_keys(kind: OracleKind, algorithm: Algorithm, seed: u64) -> Result<(), TestCaseError> {
    let mut random = Random::new(seed);
    let rate = Rate::per_second(1 + random.below(6));
    let limiter = table(algorithm, rate, 60);
    let mut oracles = HashMap::new();
    let mut now = Timestamp::from_nanos(random.below(5_000_000_000));
    for _ in 0..30 {
        // 60 keys of 300 a round: the table is full of the last round's, which all are idle, unless
        // the same keys go on without a rest.
        let first = random.below(240);
        for _ in 0..1 + random.below(3) {
            for _ in 0..200 {
                let (key, cost) = (first + random.below(60), random.below(4));
                let oracle = oracles.entry(key).or_insert_with(|| kind.oracle(rate));
                let expect = oracle.decide(now, cost);
                let got = limiter.key(&key).check_at(now, cost);
                prop_assert_eq!(got.outcome, expect.outcome, "{:?} {} {}", kind, key, now);
                prop_assert_eq!(
                    got.remaining,
                    expect.remaining,
                    "{:?} {} {}",
                    kind,
                    key,
                    now
                );
                prop_assert_eq!(got.wait_or_max(), expect.retry_after);
                now = now.plus_nanos(random.below(10_000_000));
            }
            now = now.plus_nanos(random.below(2_000_000_000));
        }
        now = now.plus_nanos(2_000_000_001);
    }
    let stats = limiter.stats();
    prop_assert_eq!((stats.overflowed, stats.evicted), (0, 0));
    prop_assert!(stats.expired > 60 && stats.slots <= 60);
    Ok(())
}

#[test]
fn many_keys_equal_one_oracle_each() {
    let aligned = WindowAlignment::Boundary(Timestamp::ZERO);
    for (kind, algorithm) in [
        (OracleKind::Gcra, Algorithm::Gcra),
        (OracleKind::TokenBucket, Algorithm::TokenBucket),
        (OracleKind::LeakyBucket, Algorithm::LeakyBucket),
        (
            OracleKind::FixedWindow(aligned),
            Algorithm::FixedWindow(aligned),
        ),
        (
            OracleKind::FixedWindow(WindowAlignment::FirstHit),
            Algorithm::FixedWindow(WindowAlignment::FirstHit),
        ),
        (OracleKind::SlidingLog, Algorithm::SlidingLog),
        (OracleKind::SlidingCounter, Algorithm::SlidingCounter),
    ] {
        for seed in 0..10 {
            many_keys(kind, algorithm, seed).unwrap();
        }
    }
}

const EVERY_ALGORITHM: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

const MINUTE: Duration = Duration::from_secs(60);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A wall clock in 2026.
const START: Timestamp = Timestamp::from_secs(1_790_000_000);

fn since_start(algorithm: Algorithm, rate: Rate) -> Table<u64> {
    StoredKeyLimiter::builder(rate, 1_000)
        .algorithm(algorithm)
        .clock(Manual::starting_at(START))
        .build()
        .expect("a rate that fits")
}

#[test]
fn a_clock_that_was_a_year_ahead_holds_nobody_back() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = since_start(algorithm, Rate::per_minute(5));
        let spend = |now: Timestamp, key: u64| {
            (0..9)
                .filter(|_| limiter.key(&key).check_at(now, 1).is_allowed())
                .count()
        };
        assert_eq!(spend(START, 0), 5);
        // Three minutes ahead, in which keys come and go, so that idle ones are dropped.
        for second in 0..180 {
            spend(START + YEAR + Duration::from_secs(second), 10 + second);
        }
        limiter.clock().set(START + YEAR + 3 * MINUTE);
        limiter.key(&9).block_for(10 * MINUTE).unwrap();
        let now = START + 3 * MINUTE;
        assert_eq!(
            limiter.key(&500).check_at(now, 0).remaining,
            5,
            "{algorithm:?}"
        );
        assert_eq!(spend(now, 500), 5, "{algorithm:?}");
        // Who spent all while it was ahead has it again within one period, two of a counter's.
        assert!(spend(now, 189) <= 1, "{algorithm:?}");
        assert_eq!(spend(now + 2 * MINUTE, 189), 5, "{algorithm:?}");
        assert_eq!(spend(now, 0), 5, "{algorithm:?}");
        // A block lasts as long as it had left.
        assert_eq!(spend(now + Duration::from_secs(599), 9), 0);
        assert_eq!(spend(now + 10 * MINUTE, 9), 5, "{algorithm:?}");
    }
}

/// A clock that is set forth and back: by little, which grants nothing, or by more than states last.
fn steps(algorithm: Algorithm, seed: u64) {
    const LIMIT: u64 = 10;
    let mut random = Random::new(seed);
    let mut number = |end: u64| u32::try_from(random.below(end)).unwrap_or(0);
    let limiter = since_start(algorithm, Rate::per_minute(LIMIT));
    let (mut ran, mut offset) = (Duration::ZERO, 2 * YEAR);
    let mut far_steps = 0;
    let mut passed = [0; 3];
    let mut ahead = Duration::ZERO;
    for _ in 0..400 {
        let second = Duration::from_secs(1);
        ran += second * number(8);
        let far = MINUTE * (4 + number(500_000));
        match number(40) {
            0 => (offset, far_steps) = (offset + far, far_steps + 1),
            1 if offset > far + YEAR => (offset, far_steps) = (offset - far, far_steps + 1),
            // A little behind, and then right again.
            2 => (offset, ahead) = (offset + ahead, Duration::ZERO),
            3 if ahead.is_zero() => {
                ahead = second * number(59);
                offset -= ahead;
            }
            _ => {}
        }
        let now = START + ran + offset;
        let (key, cost) = (number(3), u64::from(1 + number(3)));
        let allowed = limiter
            .key(&u64::from(key))
            .check_at(now, cost)
            .is_allowed();
        passed[key as usize] += if allowed { cost } else { 0 };
        // Others come and go, so that idle keys are dropped.
        let _ = limiter.key(&u64::from(100 + number(50))).check_at(now, 1);
    }
    let periods = ran.as_secs().div_ceil(60);
    let most = LIMIT * (2 + periods + far_steps);
    for passed in passed {
        assert!(passed <= most, "{algorithm:?} {seed}: {passed} of {most}");
    }
    // Back by far, and the same keys have everything again after what a state lasts.
    let now = START + ran;
    assert!(
        limiter.key(&999).check_at(now, LIMIT).is_allowed(),
        "{algorithm:?} {seed}"
    );
    for key in 0..3 {
        let _ = limiter.key(&key).check_at(now, 1);
        let all = limiter.key(&key).check_at(now + 2 * MINUTE, LIMIT);
        assert!(all.is_allowed(), "{algorithm:?} {seed}: {all:?}");
    }
}

#[test]
fn a_clock_that_is_set_grants_one_period_a_step_and_holds_nobody_back() {
    for algorithm in EVERY_ALGORITHM {
        for seed in 0..60 {
            steps(algorithm, seed);
        }
    }
}

/// Rates whose intervals a word holds exactly; what is blocked, held and shared lasts as long as it should.
#[test]
fn gcra_answers_for_forty_years_as_a_token_bucket_does() {
    const DAY: Duration = Duration::from_secs(86_400);
    for (seed, rate) in [
        Rate::per_second(10),
        Rate::per_minute(1).burst(3),
        Rate::every(DAY).burst(700),
    ]
    .into_iter()
    .enumerate()
    {
        let keys = table::<String>(Algorithm::Gcra, rate, 100);
        let bucket = table::<String>(Algorithm::TokenBucket, rate, 100);
        let mut random = Random::new(seed as u64);
        let (mut now, mut blocked_until) = (Timestamp::from_secs(1), Timestamp::ZERO);
        while now - Timestamp::ZERO < 40 * 365 * DAY {
            let gaps = [Duration::ZERO, DAY / 86_400, DAY, 20 * DAY];
            now += gaps[usize::try_from(random.below(4)).unwrap()];
            let key = format!("{}", random.below(6));
            let key = key.as_str();
            let cost = 1 + random.below(rate.burst_size() + 1);
            let expected = bucket.key(key).check_at(now, cost);
            assert_eq!(
                keys.key(key).check_at(now, cost),
                expected,
                "{rate} at {now:?}"
            );
            if random.below(50) == 0 && now >= blocked_until {
                let clock = keys.clock();
                clock.advance(now - clock.now());
                keys.key("blocked").block_for(30 * DAY).unwrap();
                blocked_until = now + 30 * DAY;
            }
            assert_eq!(
                keys.key("blocked").check_at(now, 0).is_allowed(),
                now >= blocked_until
            );
        }
    }
}

#[test]
fn whoever_comes_back_after_years_of_silence_passes_at_once() {
    const DAY: Duration = Duration::from_secs(86_400);
    let keys = table::<String>(Algorithm::Gcra, Rate::per_minute(1).burst(3), 100);
    let mut now = Timestamp::from_secs(1);
    for days in [1, 4_000, 30_000, 100] {
        for _ in 0..3 {
            assert!(keys.key("k").check_at(now, 1).is_allowed(), "{now:?}");
        }
        assert!(!keys.key("k").check_at(now, 1).is_allowed(), "{now:?}");
        now += days * DAY;
    }
}
