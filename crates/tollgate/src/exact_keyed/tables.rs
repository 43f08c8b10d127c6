//! Which algorithm a limiter's table is of: chosen once, so that entries hold one kind of state.

use std::borrow::Borrow;
use std::time::Duration;

use tollgate_core::{
    Algorithm as _, Decision, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter,
    SlidingLog, Timestamp, TokenBucket, Unbooked,
};

use super::act::{Allow, Check, Reserve};
use super::shard::{Ask, Work};
use super::table::Table;
use crate::cell::Ticket;
use crate::{Algorithm, AtCap};

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

impl<K> Tables<K> {
    pub(super) fn new(
        algorithm: Algorithm,
        rate: Rate,
        capacity: usize,
        at_cap: AtCap,
        now: Timestamp,
    ) -> Result<Self, LimitError> {
        // Only GCRA's word is too short for a clock that counts from long ago, and only for the
        // others does it matter where the clock's origin is.
        Ok(match algorithm {
            Algorithm::Gcra => {
                let limit = Gcra::new(rate)?;
                Self::Gcra(Table::new(limit, capacity, at_cap, Some(now)))
            }
            Algorithm::TokenBucket => {
                let limit = TokenBucket::new(rate)?;
                Self::TokenBucket(Table::new(limit, capacity, at_cap, None))
            }
            Algorithm::LeakyBucket => {
                let limit = LeakyBucket::new(rate)?;
                Self::LeakyBucket(Table::new(limit, capacity, at_cap, None))
            }
            Algorithm::FixedWindow(align) => {
                let limit = FixedWindow::new(rate)?.align(align);
                Self::FixedWindow(Table::new(limit, capacity, at_cap, None))
            }
            Algorithm::SlidingLog => {
                let limit = SlidingLog::new(rate)?;
                Self::SlidingLog(Table::new(limit, capacity, at_cap, None))
            }
            Algorithm::SlidingCounter => {
                let limit = SlidingCounter::new(rate)?;
                Self::SlidingCounter(Table::new(limit, capacity, at_cap, None))
            }
        })
    }

    pub(super) fn rate(&self) -> Rate {
        each!(self, table => table.rate())
    }

    pub(super) fn set_rate(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        match self {
            Self::Gcra(table) => table.change(now, Gcra::new(rate)?),
            Self::TokenBucket(table) => table.change(now, TokenBucket::new(rate)?),
            Self::LeakyBucket(table) => table.change(now, LeakyBucket::new(rate)?),
            Self::FixedWindow(table) => {
                let align = table.limit().alignment();
                table.change(now, FixedWindow::new(rate)?.align(align));
            }
            Self::SlidingLog(table) => table.change(now, SlidingLog::new(rate)?),
            Self::SlidingCounter(table) => table.change(now, SlidingCounter::new(rate)?),
        }
        Ok(())
    }

    pub(super) fn for_each(&self, now: Timestamp, each: impl FnMut(&K, Duration, bool)) {
        each!(self, table => table.for_each(now, each));
    }

    pub(super) fn work(&self) -> (Work, u64) {
        each!(self, table => table.work())
    }

    pub(super) fn allow<Q>(&self, ask: &Ask<'_, Q>, cost: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.act(ask, &Allow(cost)))
    }

    pub(super) fn check<Q>(&self, ask: &Ask<'_, Q>, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.act(ask, &Check(cost)))
    }

    pub(super) fn reserve<Q>(&self, ask: &Ask<'_, Q>, act: &Reserve) -> Result<Ticket, Unbooked>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.reserve(ask, act))
    }

    pub(super) fn give_back<Q>(&self, ask: &Ask<'_, Q>, ticket: &Ticket)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.give_back(ask, ticket));
    }

    pub(super) fn reset<Q>(&self, ask: &Ask<'_, Q>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.reset(ask));
    }

    pub(super) fn gift<Q>(&self, ask: &Ask<'_, Q>, tokens: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        each!(self, table => table.gift(ask, tokens));
    }

    pub(super) fn penalize<Q>(&self, ask: &Ask<'_, Q>, tokens: u64) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.penalize(ask, tokens))
    }

    pub(super) fn block<Q>(&self, ask: &Ask<'_, Q>, duration: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        each!(self, table => table.block(ask, duration))
    }
}
