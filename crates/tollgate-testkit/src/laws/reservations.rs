//! The core's own implementation takes part in every law: the shortest example for others.

use std::time::Duration;

use tollgate_core::{Arithmetic, Booking, Decision, LimitLedger, Rate, Timestamp};

use super::{Adjustable, Lender, Subject};

impl<A: Arithmetic> Subject for LimitLedger<A> {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.decide(now, cost)
    }
}

impl<A: Arithmetic> Lender for LimitLedger<A> {
    type Receipt = Booking;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Booking)> {
        let booked = self.reserve(now, cost, Duration::MAX).ok()?;
        Some((booked.at(), booked))
    }

    fn give_back_at(&mut self, now: Timestamp, booked: Booking) {
        self.cancel(now, &booked);
    }
}

impl<A: Arithmetic> Adjustable for LimitLedger<A> {
    /// # Panics
    /// If the algorithm can't represent the rate.
    fn set_rate_at(&mut self, now: Timestamp, rate: Rate) {
        let limit = A::new(rate).expect("the law gives rates that the algorithm takes");
        self.set_limit(now, limit);
    }
}
