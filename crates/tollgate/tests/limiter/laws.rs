//! Every law of the arithmetic again, for each place where a `Limiter` keeps its state.
//!
//! The lock and the word keep them all; the striped form keeps 2, 4, 5 and 6 (law 10 is in
//! `threads.rs` and in the loom models).

use std::mem::ManuallyDrop;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Algorithm, Decision, Limiter, Rate, Reservation, Timestamp, limiter};
use tollgate_testkit::laws::{self, Adjustable, Lender, Subject};
use tollgate_testkit::oracle::OracleKind;
use tollgate_testkit::traffic::TimeOrder;

use crate::common::{broken, config};

/// A leaked limiter, so that its reservations can be kept.
struct Shared(&'static Limiter<Manual>);

impl Shared {
    fn new(algorithm: Algorithm, rate: Rate) -> Self {
        Self::build(Limiter::builder(rate).algorithm(algorithm))
    }

    fn striped(rate: Rate) -> Self {
        Self::build(Limiter::builder(rate).stripes(2))
    }

    fn build(builder: limiter::Builder) -> Self {
        let limiter = builder.clock(Manual::new()).build();
        Self(Box::leak(Box::new(limiter.expect("a rate that fits"))))
    }
}

impl Subject for Shared {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.0.check_at(now, cost)
    }
}

impl Lender for Shared {
    /// Dropping would cancel: the manual clock stands still.
    type Receipt = ManuallyDrop<Reservation<&'static Limiter<Manual>>>;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Self::Receipt)> {
        let slot = self.0.reserve_at(now, cost).ok()?;
        Some((slot.ready_at(), ManuallyDrop::new(slot)))
    }

    fn give_back_at(&mut self, now: Timestamp, receipt: Self::Receipt) {
        ManuallyDrop::into_inner(receipt).cancel_at(now);
    }
}

impl Adjustable for Shared {
    fn set_rate_at(&mut self, now: Timestamp, rate: Rate) {
        self.0.set_rate_at(now, rate).expect("a rate that fits");
    }
}

every_law!(super::Shared::new);

mod striped {
    use super::*;

    /// Fast enough for a stripe to hold several tokens.
    fn rates() -> impl Strategy<Value = Rate> {
        (1u64..1_000, 1u64..20_000)
            .prop_map(|(count, burst)| Rate::new(count, Duration::from_micros(1)).burst(burst))
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn laws_2_4_5_and_6(rate in rates(), seed: u64, length in 1usize..60) {
            let make = Shared::striped;
            for order in [TimeOrder::Forward, TimeOrder::Tangled] {
                let asks = laws::requests(OracleKind::Gcra, rate, order, seed, length);
                laws::law_2_bound(OracleKind::Gcra, rate, make, &asks).map_err(broken)?;
                laws::law_4_denied_writes_nothing(rate, make, &asks).map_err(broken)?;
                laws::law_5_stale_times_grant_nothing(OracleKind::Gcra, rate, make, &asks).map_err(broken)?;
                // Law 6 without its end state: what is left may lie in a stripe.
                for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.cost > 1) {
                    let (mut whole, mut parts) = (make(rate), make(rate));
                    for earlier in &asks[..index] {
                        let _ = whole.decide_at(earlier.at, earlier.cost);
                        let _ = parts.decide_at(earlier.at, earlier.cost);
                    }
                    if whole.decide_at(ask.at, ask.cost).is_allowed() {
                        let first = 1 + seed % (ask.cost - 1);
                        prop_assert!(parts.decide_at(ask.at, first).is_allowed());
                        prop_assert!(parts.decide_at(ask.at, ask.cost - first).is_allowed());
                    }
                }
            }
        }
    }
}

mod uptime {
    use super::*;
    use tollgate::core::WindowAlignment;
    use tollgate::core::{Arithmetic as _, TokenBucket};
    use tollgate_testkit::traffic::Random;

    const DAY: Duration = Duration::from_secs(86_400);
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    /// A wall clock in 2026.
    const START: Timestamp = Timestamp::from_secs(1_790_000_000);

    fn limiter(algorithm: Algorithm, stripes: usize, rate: Rate) -> Limiter<Manual> {
        Limiter::builder(rate)
            .algorithm(algorithm)
            .stripes(stripes)
            .clock(Manual::starting_at(START))
            .build()
            .expect("a rate that fits")
    }

    #[test]
    fn a_limiter_answers_for_forty_years_as_the_exact_form_does() {
        // Rates whose intervals a word holds exactly.
        let rates = [
            Rate::per_second(10),
            Rate::per_minute(1).burst(3),
            Rate::every(DAY).burst(700),
        ];
        for (seed, rate) in rates.into_iter().enumerate() {
            let limiter = limiter(Algorithm::Gcra, 0, rate);
            let exact = TokenBucket::new(rate).unwrap();
            let mut state = Default::default();
            let mut random = Random::new(seed as u64);
            let mut now = START;
            while now - START < 40 * YEAR {
                let gap = random.pick(&[Duration::ZERO, DAY / 86_400, DAY, 20 * DAY]);
                now += gap;
                let cost = 1 + random.below(rate.burst_size() + 1);
                let expected = exact.decide(&mut state, now, cost);
                let decision = limiter.check_at(now, cost);
                assert_eq!(decision, expected, "{rate} after {:?}", now - START);
            }
        }
    }

    #[test]
    fn a_striped_limiter_keeps_its_rate_for_forty_years() {
        let limiter = limiter(
            Algorithm::Gcra,
            4,
            Rate::per_second(10_000_000).burst(1_000),
        );
        for _ in 0..400 {
            limiter.clock().advance(YEAR / 10);
            let passed = || (0..3_000).filter(|_| limiter.allow()).count();
            assert_eq!(passed(), 1_000);
            limiter.clock().advance(Duration::from_micros(10));
            let refilled = passed();
            assert!((90..=100).contains(&refilled), "{refilled}");
        }
    }

    #[test]
    fn what_is_booked_far_ahead_stays_booked() {
        let limiter = limiter(Algorithm::Gcra, 0, Rate::every(DAY).burst(2));
        assert!(limiter.allow_n(2));
        for ahead in 1..=20 {
            let booked = limiter.reserve(1).expect("any time ahead");
            assert_eq!(booked.delay(), ahead * DAY);
            booked.keep();
        }
        assert_eq!(limiter.check().wait_or_max(), 21 * DAY);
        assert!(!limiter.allow());
        // A smaller bucket owes what the larger one had spent.
        limiter.set_rate(Rate::every(DAY).burst(1)).unwrap();
        assert_eq!(limiter.check().wait_or_max(), 22 * DAY);
        limiter.clock().advance(3 * DAY);
        assert_eq!(limiter.check().wait_or_max(), 19 * DAY);
    }

    #[test]
    fn a_clock_that_was_far_ahead_holds_nobody_back() {
        let aligned = Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO));
        for (algorithm, stripes) in [
            (Algorithm::Gcra, 0),
            (Algorithm::Gcra, 2),
            (Algorithm::TokenBucket, 0),
            (Algorithm::LeakyBucket, 0),
            (aligned, 0),
            (Algorithm::FixedWindow(WindowAlignment::FirstHit), 0),
            (Algorithm::SlidingLog, 0),
            (Algorithm::SlidingCounter, 0),
        ] {
            for ahead in [3 * DAY, YEAR, 5 * YEAR, 20 * YEAR] {
                let limiter = limiter(algorithm, stripes, Rate::per_minute(600));
                let spend = || (0..1_000).filter(|_| limiter.allow()).count();
                limiter.clock().advance(ahead);
                assert_eq!(spend(), 600);
                if algorithm != Algorithm::SlidingLog {
                    // What is booked by the wrong time acts by it.
                    limiter.reserve(600).expect("any time ahead").keep();
                }
                limiter.clock().set(START);
                assert_eq!(limiter.peek().limit, 600);
                assert!(spend() <= 600, "{algorithm:?} {ahead:?}");
                limiter.clock().advance(DAY / 480);
                assert_eq!(spend(), 600, "{algorithm:?} {ahead:?}");
            }
        }
    }

    #[test]
    fn a_limiter_made_by_a_clock_that_was_ahead_goes_on() {
        let limiter = limiter(Algorithm::Gcra, 0, Rate::per_minute(5));
        assert!(limiter.allow_n(5));
        let before = Timestamp::from_secs(1_700_000_000);
        limiter.clock().set(before);
        assert!(!limiter.allow());
        limiter.clock().set(before + DAY / 1_440);
        assert!(limiter.allow_n(5));
    }
}
