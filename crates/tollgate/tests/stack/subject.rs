//! One limit that can be held from, with the verbs that come between.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, Decision, KeyedLimiter, Limit, Limiter, Rate, Reservation,
    StoredKeyLimiter, Timestamp, keyed,
    stack::{CostReservation, ReservationTerms},
    stored_keys,
};

use super::world::START;

pub(crate) type Table = StoredKeyLimiter<String, Manual>;
type OneKey = stored_keys::Key<'static, String, str, Manual>;

/// Where the state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    Limiter(Algorithm),
    /// A limiter of one word with stripes.
    Striped,
    Exact(Algorithm),
    Keyed,
}

/// The limits are leaked, so that their holds can be kept anywhere.
#[derive(Clone, Copy)]
enum TestedLimit {
    Limiter(&'static Limiter<Manual>),
    Exact(&'static Table, &'static OneKey),
    Keyed(&'static KeyedLimiter<Manual>),
}

pub(crate) struct Subject {
    pub(crate) clock: Manual,
    pub(crate) stack: CompositeLimiter,
    limit: TestedLimit,
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
                TestedLimit::Limiter(forever(
                    builder
                        .clock(clock.clone())
                        .build()
                        .expect("a rate that fits"),
                ))
            }
            Keeper::Exact(algorithm) => {
                let builder = StoredKeyLimiter::builder(rate, 4).algorithm(algorithm);
                let builder = builder.longest_wait(Duration::MAX).clock(clock.clone());
                let table: &'static Table = forever(builder.build().expect("a rate that fits"));
                TestedLimit::Exact(table, forever(table.key("key")))
            }
            Keeper::Keyed => {
                let builder = KeyedLimiter::builder(rate, 4).clock(clock.clone());
                TestedLimit::Keyed(forever(builder.build().expect("a rate that fits")))
            }
        };
        Self {
            clock,
            stack: CompositeLimiter::new(),
            limit,
        }
    }

    pub(crate) fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    fn level(&self, cost: u64) -> Limit<'static> {
        match self.limit {
            TestedLimit::Limiter(limiter) => Limit::estimated("limit", limiter, cost),
            TestedLimit::Exact(_, key) => Limit::estimated("limit", key, cost),
            // It takes no estimate. At the rate in force: a key keeps the one that it was made at.
            TestedLimit::Keyed(table) => Limit::new("limit", &table.key("key")).cost(cost),
        }
    }

    /// Holds an estimate for so long at most; nothing of it is spent if it is dropped.
    pub(crate) fn hold(&self, cost: u64, millis: u64) -> Option<CostReservation<'static>> {
        let terms = ReservationTerms::for_at_most(Duration::from_millis(millis)).refund_on_drop();
        self.hold_on(cost, terms)
    }

    pub(crate) fn hold_on(
        &self,
        cost: u64,
        terms: ReservationTerms,
    ) -> Option<CostReservation<'static>> {
        self.stack.hold(&[self.level(cost)], terms).ok()
    }

    pub(crate) fn check(&self, cost: u64) -> Decision {
        match self.limit {
            TestedLimit::Limiter(limiter) => limiter.check_n(cost),
            TestedLimit::Exact(table, _) => table.check_n("key", cost),
            TestedLimit::Keyed(table) => table.check_n("key", cost),
        }
    }

    /// What is left at a time of the clock, in nanoseconds.
    pub(crate) fn look_at(&self, nanos: u128) -> u64 {
        let at = Timestamp::from_nanos(u64::try_from(nanos).expect("within the clock"));
        match self.limit {
            TestedLimit::Limiter(limiter) => limiter.peek_at(at).remaining,
            TestedLimit::Exact(table, _) => table.key("key").check_at(at, 0).remaining,
            TestedLimit::Keyed(table) => table.key("key").check_at(at, 0).remaining,
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.check(0).remaining
    }

    pub(crate) fn reserve(&self, cost: u64) -> Option<Slot> {
        match self.limit {
            TestedLimit::Limiter(limiter) => limiter.reserve(cost).ok().map(Slot::Limiter),
            TestedLimit::Exact(table, _) => {
                let slot = table.key("key").reserve(cost);
                slot.ok().map(Slot::Exact)
            }
            TestedLimit::Keyed(table) => table.key("key").reserve(cost).ok().map(Slot::Keyed),
        }
    }

    pub(crate) fn set_rate(&self, rate: Rate) {
        match self.limit {
            TestedLimit::Limiter(limiter) => limiter.set_rate(rate),
            TestedLimit::Exact(table, _) => table.set_rate(rate),
            TestedLimit::Keyed(table) => table.set_rate(rate),
        }
        .expect("a rate that fits");
    }

    /// Gives tokens; no if nobody can.
    pub(crate) fn refund(&self, tokens: u64) -> bool {
        match self.limit {
            TestedLimit::Limiter(_) => return false,
            TestedLimit::Exact(table, _) => table.key("key").refund(tokens),
            TestedLimit::Keyed(table) => table.key("key").refund(tokens),
        }
        true
    }

    pub(crate) fn table(&self) -> &'static Table {
        match self.limit {
            TestedLimit::Exact(table, _) => table,
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
