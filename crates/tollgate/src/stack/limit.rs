//! What a composite limiter needs of a limit, whatever its kind.

use std::fmt;
use std::num::NonZeroU64;

use tollgate_core::{Decision, GcraParams, TatState, Timestamp};

use super::LimitKind;
use super::held_permits::PermitPointer;
use crate::cell::ChargeTicket;
use crate::clock::Clock;
use crate::keyed::KeyRate;
use crate::tree::Receipt;

/// The time of a request. Limits on the same clock share one reading.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockReading {
    clock: Option<usize>,
    now: Timestamp,
}

impl ClockReading {
    #[inline(always)]
    pub(crate) fn read(&mut self, clock: &impl Clock) -> Timestamp {
        let identity = clock.source_id();
        if identity.is_none() || identity != self.clock {
            self.clock = identity;
            self.now = clock.now();
        }
        self.now
    }
}

/// A limit that a [`CompositeLimiter`](super::CompositeLimiter) can check.
pub(crate) trait ComposableLimit: fmt::Debug + Sync {
    /// The kind of the limit, and which requests share it.
    fn kind_and_scope(&self) -> (LimitKind, LimitScope);

    /// The time of this request on the limit's clock.
    fn now(&self, seen: &mut ClockReading) -> Timestamp;

    /// Decides without charging.
    fn look(&self, now: Timestamp, cost: u64) -> Decision;

    /// Decides for a real request, which is denied if this denies. A denial may move a key's debt,
    /// once, to the faster rate of the request, so that its `retry_after` comes true.
    fn ask(&self, now: Timestamp, cost: u64) -> Decision {
        self.look(now, cost)
    }

    /// Whether [`ask`](Self::ask) allows the cost.
    fn fits(&self, seen: &mut ClockReading, cost: u64) -> bool {
        let now = self.now(seen);
        self.ask(now, cost).is_allowed()
    }

    /// Charges the cost, or returns the denial.
    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision>;

    /// Charges the cost if the fast path suffices and two words are enough to refund it. `None` decides
    /// nothing: then [`take`](Self::take) has to decide.
    fn charge(&self, seen: &mut ClockReading, cost: u64) -> Option<FastCharge> {
        let _ = (seen, cost);
        None
    }

    /// Charges an estimate that expires at `until`.
    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<LevelCharge, Decision> {
        let _ = until;
        self.take(now, cost)
    }

    /// Settles a charge at what was spent: all or nothing, unless the limit accepts estimates. `spent`
    /// is 0 for a request that another limit denied: then the charge is refunded, as far as no later
    /// decision relies on it.
    fn settle(&self, now: Timestamp, taken: LevelCharge, spent: u64);

    /// Moves the expiry of an estimate to `until`. Does nothing for a limit that doesn't expire
    /// estimates itself.
    fn prolong(&self, taken: &mut LevelCharge, until: Timestamp) {
        let _ = (taken, until);
    }

    /// Charges the cost of a request whose estimate has expired: as a debt, or as far as there is room.
    fn charge_late(&self, now: Timestamp, cost: u64) {
        let room = self.look(now, 0).remaining;
        let _ = self.take(now, cost.min(room));
    }
}

/// A keyed limiter on any clock; each call names the key.
pub(crate) trait ComposableKeyedLimit: Send + Sync {
    fn now(&self, _: &KeyRate, seen: &mut ClockReading) -> Timestamp;
    /// Starts to load the key's state into the CPU cache.
    fn prefetch(&self, key: &KeyRate);
    fn fits(&self, key: &KeyRate, seen: &mut ClockReading, cost: u64) -> bool;
    fn look(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Decision;
    fn ask(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Decision;
    fn take(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision>;
    fn charge(&self, key: &KeyRate, seen: &mut ClockReading, cost: u64) -> Option<FastCharge>;
    fn settle(&self, key: &KeyRate, now: Timestamp, taken: LevelCharge, spent: u64);
}

/// Which requests share a limit. Limits are charged in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitScope {
    /// The requests of one key.
    Key,
    /// All requests.
    Shared,
    /// All requests, by permits. Charged last, so that a permit is held as briefly as possible.
    Permits,
}

impl LimitScope {
    /// In the charging order.
    pub(super) const ALL: [Self; 3] = [Self::Key, Self::Shared, Self::Permits];
}

/// A charge, as its refund needs it.
#[derive(Debug)]
pub(crate) enum LevelCharge {
    /// A charge of a rate.
    Charge(ChargeTicket),
    /// A charge of a quota.
    #[cfg(feature = "quota")]
    Quota(crate::quota::Receipt),
    /// A charge of every class from a leaf to the root.
    Tree(Box<Receipt>),
    /// A permit.
    Permit(PermitPointer),
}

/// A charge to a limit whose state is one word: the word after the charge, and the price. It is two
/// words, so that it is returned in registers; moving a [`LevelCharge`] costs more than the charge
/// itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastCharge {
    tat_after: NonZeroU64,
    price: u64,
}

impl FastCharge {
    #[inline(always)]
    pub(crate) fn new(after: TatState, pace: GcraParams, cost: u64) -> Option<Self> {
        let after = NonZeroU64::new(after.to_word())?;
        let price = pace.interval.checked_mul(cost)?;
        Some(Self {
            tat_after: after,
            price,
        })
    }

    /// The equivalent charge of one token at the full price, made at this time.
    pub(super) fn taken(self, now: Timestamp) -> LevelCharge {
        let pace = GcraParams {
            interval: self.price,
            capacity: 0,
        };
        let charge = pace.charge_receipt(TatState::from_word(self.tat_after.get()), now, 1);
        LevelCharge::Charge(ChargeTicket::Charged(charge))
    }
}
