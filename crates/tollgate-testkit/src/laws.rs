//! The laws of a rate limit, as functions to test any implementation that keeps its state.
//!
//! An implementation takes part with [`Subject`], [`Lender`] if it can reserve and refund, and [`Adjustable`]
//! if its rate can change. Each law makes fresh subjects with a factory, sends them requests and compares
//! answers. It never inspects the state, so an atomic word, a lock, a table and a server are tested alike.
//! [`LimitLedger`](tollgate_core::LimitLedger), the core's own implementation, takes part like any other:
//!
//! ```
//! use tollgate_core::{Arithmetic, LimitLedger, Gcra, Rate};
//! use tollgate_testkit::laws;
//! use tollgate_testkit::oracle::OracleKind;
//!
//! let rate = Rate::per_second(10).burst(5);
//! let make = |rate| LimitLedger::new(Gcra::new(rate).expect("the rate fits one word"));
//! laws::check_all(OracleKind::Gcra, rate, make, 7)?;
//! laws::check_all_reservations(OracleKind::Gcra, rate, make, 7)?;
//! # Ok::<(), laws::LawViolation>(())
//! ```
//!
//! | law | statement |
//! |---|---|
//! | 1 | answers equal the oracle's; what one word admits, the exact form admits |
//! | 2 | in any window, no more passes than the bound |
//! | 3 | `retry_after` is tight: allowed then, denied one nanosecond earlier |
//! | 4 | denials and peeks write nothing |
//! | 5 | times out of order neither panic nor grant extra |
//! | 6 | cost a + b allowed ⇒ a then b allowed, same state after |
//! | 7 | once idle, the same as never seen |
//! | 8 | `remaining = r` ⇒ r passes, r + 1 does not |
//! | 9 | a refund never returns what another request has taken |

use std::fmt;

use tollgate_core::{Decision, Rate, Timestamp};

use crate::oracle::{Hit, OracleKind};
use crate::traffic::{Arrival, TimeOrder, Traffic};

mod admission_bound;
mod decisions;
mod reservation_laws;
mod reservations;
mod state;

pub use admission_bound::{law_2_bound, law_2_live_change, law_5_stale_times_grant_nothing};
pub use decisions::{
    law_1_equals_the_oracle, law_1_exact_form_admits_it_too, law_3_retry_is_tight,
    law_8_remaining_is_true,
};
pub use reservation_laws::{law_9_bound_of_what_was_kept, law_9_reverse_order_restores};
pub use state::{law_4_denied_writes_nothing, law_6_costs_add_up, law_7_idle_is_never_seen};

/// An implementation that keeps one limit's state.
pub trait Subject {
    /// Decides one request and charges it if it passes. A cost of 0 peeks.
    fn decide_at(&mut self, now: Timestamp, cost: u64) -> Decision;
}

/// An implementation with reservations and refunds.
pub trait Lender: Subject {
    /// What a refund needs to know of a charge.
    type Receipt;

    /// Charges the cost for the earliest possible time, now or later. Returns that time and the receipt; `None`
    /// if there is no such time, or it is too far ahead.
    fn reserve_at(&mut self, now: Timestamp, cost: u64) -> Option<(Timestamp, Self::Receipt)>;

    /// Refunds what a reservation took, as far as that is still possible.
    fn give_back_at(&mut self, now: Timestamp, receipt: Self::Receipt);
}

/// An implementation whose rate can change while it is in use.
pub trait Adjustable: Subject {
    /// Carries the state over to another rate.
    fn set_rate_at(&mut self, now: Timestamp, rate: Rate);

    /// The fastest rate at which earlier charges may drain after a change: the new rate, unless the old one may
    /// stay in force for them.
    fn fastest_drain_rate(_old: Rate, new: Rate) -> Rate {
        new
    }
}

/// A law that did not hold, and what was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LawViolation {
    law: u8,
    seen: String,
}

impl LawViolation {
    /// The number of the law: 1 to 9.
    pub const fn law(&self) -> u8 {
        self.law
    }
}

impl fmt::Display for LawViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "law {} is broken: {}", self.law, self.seen)
    }
}

impl std::error::Error for LawViolation {}

/// Returns a [`LawViolation`] unless the condition holds.
macro_rules! ensure {
    ($law:expr, $holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err($crate::laws::LawViolation { law: $law, seen: format!($($seen)+) });
        }
    };
}
pub(crate) use ensure;

/// How many requests a run of [`check_all`] has.
const RUN: usize = 40;

/// Laws 1 to 8 with traffic of this seed, in order and out of order.
///
/// # Errors
/// The first law that does not hold.
pub fn check_all<S: Subject>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    seed: u64,
) -> Result<(), LawViolation> {
    for order in [TimeOrder::Forward, TimeOrder::Tangled] {
        let asks = requests(kind, rate, order, seed, RUN);
        law_1_equals_the_oracle(kind, rate, &make, &asks)?;
        if kind == OracleKind::Gcra {
            law_1_exact_form_admits_it_too(rate, &make, &asks)?;
        }
        law_2_bound(kind, rate, &make, &asks)?;
        law_3_retry_is_tight(kind, rate, &make, &asks)?;
        law_4_denied_writes_nothing(rate, &make, &asks)?;
        law_5_stale_times_grant_nothing(kind, rate, &make, &asks)?;
        law_6_costs_add_up(rate, &make, &asks)?;
        law_7_idle_is_never_seen(kind, rate, &make, &asks)?;
        law_8_remaining_is_true(rate, &make, &asks)?;
    }
    Ok(())
}

/// Law 9 with reservations of this seed.
///
/// # Errors
/// The first part of it that does not hold.
pub fn check_all_reservations<S: Lender>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    seed: u64,
) -> Result<(), LawViolation> {
    law_9_bound_of_what_was_kept(kind, rate, &make, seed, RUN)?;
    let asks = requests(kind, rate, TimeOrder::Forward, seed, RUN);
    law_9_reverse_order_restores(rate, &make, &asks)
}

/// A fresh subject after these requests. To probe a state without changing it, a law makes another subject the
/// same way and probes that one.
fn state_after<S: Subject>(make: &impl Fn(Rate) -> S, rate: Rate, asks: &[Arrival]) -> S {
    let mut subject = make(rate);
    for ask in asks {
        let _ = subject.decide_at(ask.at, ask.cost);
    }
    subject
}

/// The requests that were admitted, each at its time or at that of the hit before it, whichever is later.
fn admitted<S: Subject>(subject: &mut S, asks: &[Arrival]) -> Vec<Hit> {
    let mut hits: Vec<Hit> = Vec::new();
    for ask in asks {
        if subject.decide_at(ask.at, ask.cost).is_allowed() && ask.cost > 0 {
            let at = hits.last().map_or(ask.at, |last| last.at.max(ask.at));
            let cost = ask.cost;
            hits.push(Hit { at, cost });
        }
    }
    hits
}

/// The first `length` requests of a seed, with times that this algorithm can represent.
pub fn requests(
    kind: OracleKind,
    rate: Rate,
    order: TimeOrder,
    seed: u64,
    length: usize,
) -> Vec<Arrival> {
    let traffic = Traffic::until(rate, order, seed, kind.latest_supported_time());
    traffic.take(length).collect()
}
