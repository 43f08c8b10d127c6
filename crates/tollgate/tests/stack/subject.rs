//! One limit that can be held from, with the verbs that come between.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Decision, ExactKeyedLimiter, KeyedLimiter, Level, Limiter, Rate, Reservation, Stack,
    Timestamp, exact_keyed, keyed,
    stack::{Hold, Terms},
};

use super::world::START;

pub(crate) type Table = ExactKeyedLimiter<String, Manual>;
type OneKey = exact_keyed::Key<'static, String, str, Manual>;

/// Where the state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    Limiter(Algorithm),
    /// A limiter of one word with stripes.
    Striped,
    Exact(Algorithm),
    Keyed,
}

/// Limits live for ever, so that what is held of them can be kept anywhere.
#[derive(Clone, Copy)]
enum Limit {
    Limiter(&'static Limiter<Manual>),
    Exact(&'static Table, &'static OneKey),
    Keyed(&'static KeyedLimiter<Manual>),
}

pub(crate) struct Subject {
    pub(crate) clock: Manual,
    pub(crate) stack: Stack,
    limit: Limit,
}

pub(crate) enum Slot {
    Limiter(Reservation<&'static Limiter<Manual>>),
    Exact(Reservation<OneKey>),
    Keyed(Reservation<keyed::Key<'static, Manual>>),
}

fn forever<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Subject {
    pub(crate) fn new(place: Keeper, rate: Rate) -> Self {
        let clock = Manual::starting_at(START);
        let limit = match place {
            Keeper::Limiter(_) | Keeper::Striped => {
                let builder = Limiter::builder(rate);
                let builder = match place {
                    Keeper::Limiter(algorithm) => builder.algorithm(algorithm),
                    _ => builder.stripes(2),
                };
                Limit::Limiter(forever(
                    builder
                        .clock(clock.clone())
                        .build()
                        .expect("a rate that fits"),
                ))
            }
            Keeper::Exact(algorithm) => {
                let builder = ExactKeyedLimiter::builder(rate, 4).algorithm(algorithm);
                let builder = builder.longest_wait(Duration::MAX).clock(clock.clone());
                let table: &'static Table = forever(builder.build().expect("a rate that fits"));
                Limit::Exact(table, forever(table.key("key")))
            }
            Keeper::Keyed => {
                let builder = KeyedLimiter::builder(rate, 4).clock(clock.clone());
                Limit::Keyed(forever(builder.build().expect("a rate that fits")))
            }
        };
        Self {
            clock,
            stack: Stack::new(),
            limit,
        }
    }

    pub(crate) fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    fn level(&self, cost: u64) -> Level<'static> {
        match self.limit {
            Limit::Limiter(limiter) => Level::estimated("limit", limiter, cost),
            Limit::Exact(_, key) => Level::estimated("limit", key, cost),
            // It takes no estimate. At the rate in force: a key keeps the one that it was made at.
            Limit::Keyed(table) => Level::new("limit", &table.key("key")).cost(cost),
        }
    }

    /// Holds an estimate for so long at most; nothing of it is spent if it is dropped.
    pub(crate) fn hold(&self, cost: u64, millis: u64) -> Option<Hold<'static>> {
        let terms = Terms::within(Duration::from_millis(millis)).refund_on_drop();
        self.hold_on(cost, terms)
    }

    pub(crate) fn hold_on(&self, cost: u64, terms: Terms) -> Option<Hold<'static>> {
        self.stack.hold(&[self.level(cost)], terms).ok()
    }

    pub(crate) fn check(&self, cost: u64) -> Decision {
        match self.limit {
            Limit::Limiter(limiter) => limiter.check_n(cost),
            Limit::Exact(table, _) => table.check_n("key", cost),
            Limit::Keyed(table) => table.check_n("key", cost),
        }
    }

    /// What is left at a time of the clock, in nanoseconds.
    pub(crate) fn look_at(&self, nanos: u128) -> u64 {
        let at = Timestamp::from_nanos(u64::try_from(nanos).expect("within the clock"));
        match self.limit {
            Limit::Limiter(limiter) => limiter.peek_at(at).remaining,
            Limit::Exact(table, _) => table.key("key").check_at(at, 0).remaining,
            Limit::Keyed(table) => table.key("key").check_at(at, 0).remaining,
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.check(0).remaining
    }

    pub(crate) fn reserve(&self, cost: u64) -> Option<Slot> {
        match self.limit {
            Limit::Limiter(limiter) => limiter.reserve(cost).ok().map(Slot::Limiter),
            Limit::Exact(table, _) => {
                let slot = table.key("key").reserve(cost);
                slot.ok().map(Slot::Exact)
            }
            Limit::Keyed(table) => table.key("key").reserve(cost).ok().map(Slot::Keyed),
        }
    }

    pub(crate) fn set_rate(&self, rate: Rate) {
        match self.limit {
            Limit::Limiter(limiter) => limiter.set_rate(rate),
            Limit::Exact(table, _) => table.set_rate(rate),
            Limit::Keyed(table) => table.set_rate(rate),
        }
        .expect("a rate that fits");
    }

    /// Gives tokens; no if nobody can.
    pub(crate) fn refund(&self, tokens: u64) -> bool {
        match self.limit {
            Limit::Limiter(_) => return false,
            Limit::Exact(table, _) => table.key("key").refund(tokens),
            Limit::Keyed(table) => table.key("key").refund(tokens),
        }
        true
    }

    pub(crate) fn table(&self) -> &'static Table {
        match self.limit {
            Limit::Exact(table, _) => table,
            _ => unreachable!("no table of exact keys"),
        }
    }
}

impl Slot {
    pub(crate) fn delay(&self) -> Duration {
        match self {
            Self::Limiter(slot) => slot.delay(),
            Self::Exact(slot) => slot.delay(),
            Self::Keyed(slot) => slot.delay(),
        }
    }

    pub(crate) fn keep(self) {
        match self {
            Self::Limiter(slot) => slot.keep(),
            Self::Exact(slot) => slot.keep(),
            Self::Keyed(slot) => slot.keep(),
        }
    }

    pub(crate) fn cancel(self) {
        match self {
            Self::Limiter(slot) => slot.cancel(),
            Self::Exact(slot) => slot.cancel(),
            Self::Keyed(slot) => slot.cancel(),
        }
    }
}
