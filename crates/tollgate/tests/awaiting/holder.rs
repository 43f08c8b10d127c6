//! One interface for all limiters that can be waited for: a limiter, or its key "ada".

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Decision, KeyedLimiter, Limiter, Rate, RateDenied, Reservation, StoredKeyLimiter,
    Timestamp,
    core::WindowAlignment,
    wait::{Acquire, LimitHandle},
};

pub(super) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

/// A limit that can be waited for, whoever owns it.
pub(super) trait Holder {
    type Home<'a>: LimitHandle
    where
        Self: 'a;

    /// Not a key whose word counts by the rate of whoever asked last: then what is booked ahead depends on
    /// who asked since the rate changed.
    const BOOKS_THROUGH_CHANGES: bool = true;

    fn acquire(&self, cost: u64) -> Acquire<Self::Home<'_>>;
    fn check_at(&self, now: Timestamp, cost: u64) -> Decision;
    fn reserve_at(
        &self,
        now: Timestamp,
        cost: u64,
    ) -> Result<Reservation<Self::Home<'_>>, RateDenied>;
    fn set_rate(&self, rate: Rate);
}

impl Holder for Limiter<Manual> {
    type Home<'a> = &'a Self;

    fn acquire(&self, cost: u64) -> Acquire<&Self> {
        self.acquire_n(cost)
    }

    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.check_at(now, cost)
    }

    fn reserve_at(
        &self,
        now: Timestamp,
        cost: u64,
    ) -> Result<Reservation<Self::Home<'_>>, RateDenied> {
        self.reserve_at(now, cost)
    }

    fn set_rate(&self, rate: Rate) {
        self.set_rate(rate).expect("a rate that fits");
    }
}

impl Holder for KeyedLimiter<Manual> {
    type Home<'a> = tollgate::keyed::Key<'a, Manual>;

    const BOOKS_THROUGH_CHANGES: bool = false;

    fn acquire(&self, cost: u64) -> Acquire<Self::Home<'_>> {
        self.key("ada").acquire_n(cost)
    }

    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.key("ada").check_at(now, cost)
    }

    fn reserve_at(
        &self,
        now: Timestamp,
        cost: u64,
    ) -> Result<Reservation<Self::Home<'_>>, RateDenied> {
        self.key("ada").reserve_at(now, cost)
    }

    fn set_rate(&self, rate: Rate) {
        self.set_rate(rate).expect("a rate that fits");
    }
}

impl Holder for StoredKeyLimiter<String, Manual> {
    type Home<'a> = tollgate::stored_keys::Key<'a, String, str, Manual>;

    fn acquire(&self, cost: u64) -> Acquire<Self::Home<'_>> {
        self.key("ada").acquire_n(cost)
    }

    fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        self.key("ada").check_at(now, cost)
    }

    fn reserve_at(
        &self,
        now: Timestamp,
        cost: u64,
    ) -> Result<Reservation<Self::Home<'_>>, RateDenied> {
        self.key("ada").reserve_at(now, cost)
    }

    fn set_rate(&self, rate: Rate) {
        self.set_rate(rate).expect("a rate that fits");
    }
}
