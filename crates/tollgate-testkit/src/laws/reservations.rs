//! The core's own holder takes part in every law: the shortest example of how another would.

use std::time::Duration;

use tollgate_core::{Arithmetic, Book, Booked, Decision, Rate, Timestamp};

use super::{Adjustable, Lender, Subject};

impl<A: Arithmetic> Subject for Book<A> {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.decide(now, cost)
    }
}

impl<A: Arithmetic> Lender for Book<A> {
    type Receipt = Booked;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Booked)> {
        let booked = self.reserve(now, cost, Duration::MAX).ok()?;
        Some((booked.at(), booked))
    }

    fn give_back_at(&mut self, now: Timestamp, booked: Booked) {
        self.give_back(now, &booked);
    }
}

impl<A: Arithmetic> Adjustable for Book<A> {
    /// # Panics
    /// If the algorithm can't represent the rate.
    fn set_rate_at(&mut self, now: Timestamp, rate: Rate) {
        let limit = A::new(rate).expect("the law gives rates that the algorithm takes");
        self.replace(now, limit);
    }
}
