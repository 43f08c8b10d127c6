//! Every law of the arithmetic again, for the places where a `Limiter` keeps its state.
//!
//! The lock and the word keep them all; the striped form keeps 2, 4, 5 and 6 (law 10 is in
//! `threads.rs` and in the loom models).

use std::mem::ManuallyDrop;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Algorithm, Builder, Decision, Limiter, Rate, Reservation, Timestamp};
use tollgate_testkit::laws::{self, Adjustable, Lender, Subject};
use tollgate_testkit::oracle::Kind;
use tollgate_testkit::traffic::Order;

#[macro_use]
mod common;

use common::{broken, config};

/// A limiter that lives for ever, so that its reservations can be kept.
struct Shared(&'static Limiter<Manual>);

impl Shared {
    fn new(algorithm: Algorithm, rate: Rate) -> Self {
        Self::build(Limiter::builder(rate).algorithm(algorithm))
    }

    fn striped(rate: Rate) -> Self {
        Self::build(Limiter::builder(rate).stripes(2))
    }

    fn build(builder: Builder) -> Self {
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
        Some((slot.act_at(), ManuallyDrop::new(slot)))
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

every_law!(crate::Shared::new);

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
            for order in [Order::Forward, Order::Tangled] {
                let asks = laws::requests(Kind::Gcra, rate, order, seed, length);
                laws::law_2_bound(Kind::Gcra, rate, make, &asks).map_err(broken)?;
                laws::law_4_denied_writes_nothing(rate, make, &asks).map_err(broken)?;
                laws::law_5_stale_times_grant_nothing(Kind::Gcra, rate, make, &asks).map_err(broken)?;
                // Law 6 without its end state: what is left may lie in a stripe.
                for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.cost > 1) {
                    let (mut whole, mut parts) = (make(rate), make(rate));
                    for earlier in &asks[..index] {
                        whole.decide_at(earlier.at, earlier.cost);
                        parts.decide_at(earlier.at, earlier.cost);
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
