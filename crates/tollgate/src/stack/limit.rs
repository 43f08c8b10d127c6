//! What a stack needs of a limit, whatever its kind.

use std::fmt;
use std::num::NonZeroU64;

use tollgate_core::{Decision, GcraParams, TatState, Timestamp};

use super::LimitKind;
use super::held_permits::PermitPointer;
use crate::cell::ChargeTicket;
use crate::clock::Clock;
use crate::keyed::KeyRate;
use crate::tree::Receipt;

/// The time as a clock showed it to this request, so that limits on one clock read it once.
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

/// A limit that can stand in a [`CompositeLimiter`](super::CompositeLimiter).
pub(crate) trait ComposableLimit: fmt::Debug + Sync {
    /// What it limits, and who shares it.
    fn kind_and_scope(&self) -> (LimitKind, LimitScope);

    /// The time on its clock, as this request sees it.
    fn now(&self, seen: &mut ClockReading) -> Timestamp;

    /// Decides without charging.
    fn look(&self, now: Timestamp, cost: u64) -> Decision;

    /// The same for a real request, which fails if this refuses it. Such a refusal may, once, move a key's debt
    /// to the faster rate at which it was asked, so that the wait that it is told comes true.
    fn ask(&self, now: Timestamp, cost: u64) -> Decision {
        self.look(now, cost)
    }

    /// Whether [`ask`](Self::ask) says that the cost passes.
    fn fits(&self, seen: &mut ClockReading, cost: u64) -> bool {
        let now = self.now(seen);
        self.ask(now, cost).is_allowed()
    }

    /// Charges the cost, or says why not.
    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision>;

    /// Charges the cost, if the quick way suffices and two words are all that is needed to give it back. `None`
    /// decides nothing: then [`take`](Self::take) has to be asked.
    fn charge(&self, seen: &mut ClockReading, cost: u64) -> Option<FastCharge> {
        let _ = (seen, cost);
        None
    }

    /// Charges an estimate that is to be settled by `until`.
    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<LevelCharge, Decision> {
        let _ = until;
        self.take(now, cost)
    }

    /// Settles what was taken, of which `spent` was spent: all or nothing of it, unless it takes estimates. Nothing gives back
    /// what was taken for a request that was then refused, as far as nobody else relies on it.
    fn settle(&self, now: Timestamp, taken: LevelCharge, spent: u64);

    /// Prolongs what was taken as an estimate, until then. A limit that doesn't end estimates by itself has nothing to do.
    fn prolong(&self, taken: &mut LevelCharge, until: Timestamp) {
        let _ = (taken, until);
    }

    /// Charges what a request cost whose estimate has ended: as a debt, or as far as there is room.
    fn charge_late(&self, now: Timestamp, cost: u64) {
        let room = self.look(now, 0).remaining;
        let _ = self.take(now, cost.min(room));
    }
}

/// A keyed limiter, whatever its clock, with the key given in each call.
pub(crate) trait ComposableKeyedLimit: Send + Sync {
    fn now(&self, _: &KeyRate, seen: &mut ClockReading) -> Timestamp;
    /// Starts to bring the key's state into the cache.
    fn prefetch(&self, key: &KeyRate);
    fn fits(&self, key: &KeyRate, seen: &mut ClockReading, cost: u64) -> bool;
    fn look(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Decision;
    fn ask(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Decision;
    fn take(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision>;
    fn charge(&self, key: &KeyRate, seen: &mut ClockReading, cost: u64) -> Option<FastCharge>;
    fn settle(&self, key: &KeyRate, now: Timestamp, taken: LevelCharge, spent: u64);
}

/// Who shares a limit. Limits are charged in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitScope {
    /// The requests of one key.
    Key,
    /// All.
    Shared,
    /// All requests, and it is to be held for as short as possible: slots.
    Permits,
}

impl LimitScope {
    /// In the order of charging.
    pub(super) const ALL: [Self; 3] = [Self::Key, Self::Shared, Self::Permits];
}

/// What a limit took, to be given back.
#[derive(Debug)]
pub(crate) enum LevelCharge {
    /// A charge of a rate.
    Charge(ChargeTicket),
    /// A charge of a quota.
    #[cfg(feature = "quota")]
    Quota(crate::quota::Receipt),
    /// A charge of every class from a leaf to the root.
    Tree(Box<Receipt>),
    /// A slot.
    Permit(PermitPointer),
}

/// A charge of a word: what it left there, and its price. Two words, so that they come back in
/// registers; moving a [`Taken`] costs more than the charge.
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

    /// The same as one token of that price, charged at this time.
    pub(super) fn taken(self, now: Timestamp) -> LevelCharge {
        let pace = GcraParams {
            interval: self.price,
            capacity: 0,
        };
        let charge = pace.charge_receipt(TatState::from_word(self.tat_after.get()), now, 1);
        LevelCharge::Charge(ChargeTicket::Charged(charge))
    }
}
