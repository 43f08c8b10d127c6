//! Which algorithm a limiter's table is of: chosen once, so that entries hold one kind of state.

use std::borrow::Borrow;
use std::time::Duration;

use tollgate_core::{
    Arithmetic as _, Decision, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter,
    SlidingLog, Timestamp, TokenBucket, Unbooked, units,
};

use super::act::{Allow, Check, Look, Reserve};
use super::kept::Kept;
use super::shard::{Lookup, Work};
use super::table::{Plan, Table, Timeline};
use crate::cell::Ticket;
use crate::holds::HoldId;
use crate::{Algorithm, Tier};

/// The last time that GCRA's word can tell from the next, nine years after the anchor. A state
/// charged then is never idle, so it is never dropped.
const LAST_OF_GCRA: Timestamp = Timestamp::from_nanos(units::LAST_NANO);

/// A table of any algorithm.
#[derive(Debug)]
pub(super) enum Tables<K> {
    Gcra(Table<K, Gcra>),
    TokenBucket(Table<K, TokenBucket>),
    LeakyBucket(Table<K, LeakyBucket>),
    FixedWindow(Table<K, FixedWindow>),
    SlidingLog(Table<K, SlidingLog>),
    SlidingCounter(Table<K, SlidingCounter>),
}

/// Evaluates the same expression on whichever table it is.
macro_rules! each {
    ($self:expr, $table:ident => $call:expr) => {
        match $self {
            Tables::Gcra($table) => $call,
            Tables::TokenBucket($table) => $call,
            Tables::LeakyBucket($table) => $call,
            Tables::FixedWindow($table) => $call,
            Tables::SlidingLog($table) => $call,
            Tables::SlidingCounter($table) => $call,
        }
    };
}

pub(super) use each;

impl<K> Tables<K> {
    /// A table for this algorithm on a clock that shows `now`.
    pub(super) fn new(
        algorithm: Algorithm,
        rate: Rate,
        plan: Plan<K>,
        now: Timestamp,
    ) -> Result<Self, LimitError> {
        // Only GCRA's word is too short for a clock that counts from long ago, and only for the
        // others does it matter where the clock's origin is.
        let anchored = Timeline {
            anchor: now,
            // Room for a clock that is set back, too.
            start: Timestamp::from_nanos(LAST_OF_GCRA.as_nanos() / 4),
            last: LAST_OF_GCRA,
        };
        Ok(match algorithm {
            Algorithm::Gcra => Self::Gcra(Table::new(Gcra::new(rate)?, plan, Some(anchored))),
            _ => Self::on(algorithm, rate, plan, None)?,
        })
    }

    /// A table whose states count time like this.
    pub(super) fn on(
        algorithm: Algorithm,
        rate: Rate,
        plan: Plan<K>,
        timeline: Option<Timeline>,
    ) -> Result<Self, LimitError> {
        Ok(match algorithm {
            Algorithm::Gcra => Self::Gcra(Table::new(Gcra::new(rate)?, plan, timeline)),
            Algorithm::TokenBucket => {
                Self::TokenBucket(Table::new(TokenBucket::new(rate)?, plan, timeline))
            }
            Algorithm::LeakyBucket => {
                Self::LeakyBucket(Table::new(LeakyBucket::new(rate)?, plan, timeline))
            }
            Algorithm::FixedWindow(align) => {
                let limit = FixedWindow::new(rate)?.align(align);
                Self::FixedWindow(Table::new(limit, plan, timeline))
            }
            Algorithm::SlidingLog => {
                Self::SlidingLog(Table::new(SlidingLog::new(rate)?, plan, timeline))
            }
            Algorithm::SlidingCounter => {
                Self::SlidingCounter(Table::new(SlidingCounter::new(rate)?, plan, timeline))
            }
        })
    }

    /// Which algorithm it is of.
    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Gcra(_) => Algorithm::Gcra,
            Self::TokenBucket(_) => Algorithm::TokenBucket,
            Self::LeakyBucket(_) => Algorithm::LeakyBucket,
            Self::FixedWindow(table) => Algorithm::FixedWindow(table.limit().alignment()),
            Self::SlidingLog(_) => Algorithm::SlidingLog,
            Self::SlidingCounter(_) => Algorithm::SlidingCounter,
        }
    }

    /// That a tier is of this algorithm.
    #[inline]
    pub(super) fn expect(&self, tier: &Tier) -> Result<(), LimitError> {
        fn is_of<K, A: Kept>(_: &Table<K, A>, tier: &Tier) -> bool {
            A::of(tier).is_some()
        }
        if each!(self, table => is_of(table, tier)) {
            Ok(())
        } else {
            Err(tier.not_for(self.algorithm()))
        }
    }

    /// Whether a key is blocked.
    pub(super) fn is_blocked<Q>(&self, ask: &Lookup<'_, Q>) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.is_blocked(ask))
    }

    /// The rate of all keys that are asked without one, if there is one.
    pub(super) fn own_rate(&self) -> Option<Rate> {
        each!(self, table => table.has_one_rate()).then(|| self.rate())
    }

    pub(super) fn rate(&self) -> Rate {
        each!(self, table => table.limit().rate())
    }

    pub(super) fn set_rate(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        each!(self, table => table.change(now, table.limit().at_rate(rate)?));
        Ok(())
    }

    pub(super) fn memory_bound(&self) -> usize {
        each!(self, table => table.memory_bound())
    }

    pub(super) fn check_many<'q, Q>(
        &self,
        requests: impl Iterator<Item = (Lookup<'q, Q>, u64)>,
        each: impl FnMut(Decision, u64),
    ) where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized + 'q,
    {
        each!(self, table => table.check_many(requests, each));
    }

    /// Visits every key that is active at `now`, outside of all locks: how long until it is idle, whether
    /// it is blocked.
    pub(super) fn for_each(&self, now: Timestamp, mut each: impl FnMut(&K, Duration, bool))
    where
        K: Clone,
    {
        let mut active = Vec::new();
        each!(self, table => for number in 0..table.shards() {
            table.for_each_of(number, now, |entry, _, idle, until| {
                // Under the shard's lock, so that it counts from where the states do.
                let local = table.local_time(now);
                active.push((entry.key.clone(), idle.max(until) - local, until > local));
            });
            for (key, idle_after, blocked) in active.drain(..) {
                each(&key, idle_after, blocked);
            }
        });
    }

    /// How many keys are active at `now`.
    pub(super) fn count(&self, now: Timestamp) -> usize {
        let mut count = 0;
        each!(self, table => table.for_each(now, |_, _, _, _| count += 1));
        count
    }

    pub(super) fn work(&self) -> (Work, u64) {
        each!(self, table => table.work())
    }

    pub(super) fn allow<Q>(&self, ask: &Lookup<'_, Q>, tier: Option<&Tier>, cost: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.act(ask, tier, &Allow(cost)))
    }

    pub(super) fn check<Q>(&self, ask: &Lookup<'_, Q>, tier: Option<&Tier>, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.act(ask, tier, &Check(cost)))
    }

    pub(super) fn reserve<Q>(
        &self,
        ask: &Lookup<'_, Q>,
        tier: Option<&Tier>,
        act: &Reserve,
    ) -> Result<Ticket, Unbooked>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.reserve(ask, tier, act))
    }

    pub(super) fn look<Q>(&self, ask: &Lookup<'_, Q>, tier: Option<&Tier>, look: Look) -> Decision
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.act(ask, tier, &look))
    }

    pub(super) fn hold<Q>(
        &self,
        ask: &Lookup<'_, Q>,
        tier: Option<&Tier>,
        act: &Reserve,
        until: Timestamp,
    ) -> Result<Ticket, Unbooked>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.hold(ask, tier, act, until))
    }

    pub(super) fn settle<Q>(&self, ask: &Lookup<'_, Q>, id: HoldId, spent: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.settle(ask, id, spent));
    }

    pub(super) fn prolong<Q>(&self, ask: &Lookup<'_, Q>, id: &mut HoldId, until: Timestamp)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.prolong(ask, id, until));
    }

    pub(super) fn prolong_shared<Q: ?Sized>(
        &self,
        ask: &Lookup<'_, Q>,
        id: &mut HoldId,
        until: Timestamp,
    ) {
        each!(self, table => table.prolong_shared(ask, id, until));
    }

    pub(super) fn settle_shared<Q: ?Sized>(&self, ask: &Lookup<'_, Q>, id: HoldId, spent: u64) {
        each!(self, table => table.settle_shared(ask, id, spent));
    }

    pub(super) fn give_back<Q>(&self, ask: &Lookup<'_, Q>, ticket: &Ticket)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.give_back(ask, ticket));
    }

    pub(super) fn unbook<Q>(&self, ask: &Lookup<'_, Q>, ticket: &Ticket) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.unbook(ask, ticket))
    }

    pub(super) fn reset<Q>(&self, ask: &Lookup<'_, Q>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.reset(ask));
    }

    pub(super) fn gift<Q>(&self, ask: &Lookup<'_, Q>, tokens: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.gift(ask, tokens));
    }

    pub(super) fn penalize<Q>(&self, ask: &Lookup<'_, Q>, tier: Option<&Tier>, tokens: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.penalize(ask, tier, tokens))
    }

    pub(super) fn block<Q>(&self, ask: &Lookup<'_, Q>, duration: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.block(ask, duration))
    }
}
