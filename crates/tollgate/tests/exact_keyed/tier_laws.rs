//! Every law of the arithmetic for one key at a tier that comes with each call.

use std::mem::ManuallyDrop;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Decision, Rate, Reservation, StoredKeyLimiter, Tier, Timestamp, stored_keys,
};
use tollgate_testkit::laws::{Adjustable, Lender, Subject};

type Slot = Reservation<stored_keys::Key<'static, String, str, Manual>>;

/// One key of a leaked table, so that its reservations can be kept.
struct OneKey {
    table: &'static StoredKeyLimiter<String, Manual>,
    tier: &'static Tier,
}

impl OneKey {
    /// The limiter's own rate is another than the key's.
    fn new(algorithm: Algorithm, rate: Rate) -> Self {
        let table = StoredKeyLimiter::builder(Rate::per_minute(7), 4)
            .algorithm(algorithm)
            .longest_wait(Duration::MAX)
            .clock(Manual::new())
            .build()
            .expect("a rate that fits");
        let tier = Tier::new(table.algorithm(), rate).expect("a rate that fits");
        Self {
            table: Box::leak(Box::new(table)),
            tier: Box::leak(Box::new(tier)),
        }
    }

    fn key(&self) -> stored_keys::Key<'static, String, str, Manual> {
        self.table.key("key").at(self.tier).expect("what it can do")
    }
}

impl Subject for OneKey {
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.key().check_at(now, cost)
    }
}

impl Lender for OneKey {
    /// Dropping would cancel: the manual clock stands still.
    type Receipt = ManuallyDrop<Slot>;

    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Self::Receipt)> {
        let slot = self.key().reserve_at(now, cost).ok()?;
        Some((slot.ready_at(), ManuallyDrop::new(slot)))
    }

    fn give_back_at(&mut self, now: Timestamp, receipt: Self::Receipt) {
        ManuallyDrop::into_inner(receipt).cancel_at(now);
    }
}

impl Adjustable for OneKey {
    /// The next call comes with another tier.
    fn set_rate_at(&mut self, _now: Timestamp, rate: Rate) {
        let tier = Tier::new(self.table.algorithm(), rate).expect("a rate that fits");
        self.tier = Box::leak(Box::new(tier));
    }

    /// Until a slower tier lets the key pass.
    fn fastest_drain_rate(old: Rate, new: Rate) -> Rate {
        if old.is_faster_than(new) { old } else { new }
    }
}

every_law!(super::OneKey::new);
