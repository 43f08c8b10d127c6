//! Law 9: a refund never returns what another request has taken.

use tollgate_core::Rate;

use super::state::check_same_answers;
use super::{LawViolation, Lender, admission_bound, requests, state_after};
use crate::oracle::{Hit, OracleKind};
use crate::traffic::{Arrival, Random, TimeOrder};

/// How many reservations are made at one instant and cancelled in reverse.
const RESERVATIONS: usize = 6;

/// Law 9: in a random run of checks, reservations and cancellations, all that was not cancelled keeps the bound
/// of law 2, each counted at its start. Buckets round that time up to a whole nanosecond, so their windows are
/// one nanosecond longer.
///
/// # Errors
/// The first window that holds too much.
pub fn law_9_bound_of_what_was_kept<S: Lender>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    seed: u64,
    length: usize,
) -> Result<(), LawViolation> {
    let mut random = Random::new(!seed);
    let mut subject = make(rate);
    let mut kept: Vec<(Hit, Option<S::Receipt>)> = Vec::new();
    let mut asks = requests(kind, rate, TimeOrder::Forward, seed, length);
    if random.below(2) == 0 {
        compress_times(rate, &mut asks);
    }
    for Arrival { at, cost } in asks {
        match random.below(8) {
            0 | 1 => {
                if subject.decide_at(at, cost).is_allowed() && cost > 0 {
                    kept.push((Hit { at, cost }, None));
                }
            }
            2..=4 => {
                if let Some((acts_at, receipt)) = subject.reserve_at(at, cost) {
                    let hit = Hit { at: acts_at, cost };
                    kept.push((hit, Some(receipt)));
                }
            }
            which => {
                // The latest every other time, else any one: both orders of cancelling occur.
                let index = match kept.len().checked_sub(1) {
                    None => continue,
                    Some(latest) if which == 5 => latest,
                    Some(latest) => random_index(&mut random, latest),
                };
                if let Some(receipt) = kept[index].1.take() {
                    subject.give_back_at(at, receipt);
                    kept.remove(index);
                }
            }
        }
    }
    let mut hits: Vec<Hit> = kept.iter().map(|(hit, _)| *hit).collect();
    hits.sort_by_key(|hit| hit.at);
    admission_bound::check(9, kind, rate, &hits)
}

/// Moves requests so close together that reservations accumulate.
fn compress_times(rate: Rate, asks: &mut [Arrival]) {
    let period = rate.period().map_or(1, |period| period.as_nanos());
    let tokens = u128::from(rate.count().min(rate.burst_size()).max(1));
    let a_few = (period * tokens / u128::from(rate.count().max(1)) / 4).max(2);
    let Some(mut before) = asks.first().map(|ask| ask.at) else {
        return;
    };
    let mut at = before;
    for ask in asks {
        let gap = u128::from(ask.at.nanos_since(before)) % a_few;
        before = ask.at;
        at = at.plus_nanos(u64::try_from(gap).unwrap_or(u64::MAX));
        ask.at = at;
    }
}

/// An index up to `latest`.
fn random_index(random: &mut Random, latest: usize) -> usize {
    let end = u64::try_from(latest).unwrap_or(u64::MAX).saturating_add(1);
    usize::try_from(random.below(end)).unwrap_or(latest)
}

/// Law 9: reservations made and cancelled in reverse order at one instant leave no trace.
///
/// # Errors
/// The first answer that shows a trace.
pub fn law_9_reverse_order_restores<S: Lender>(
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let (before, rest) = asks.split_at(asks.len() / 2);
    let Some(now) = rest.first().map(|ask| ask.at) else {
        return Ok(());
    };
    let mut untouched = state_after(&make, rate, before);
    let mut subject = state_after(&make, rate, before);
    let mut receipts = Vec::new();
    for ask in rest.iter().take(RESERVATIONS) {
        receipts.extend(subject.reserve_at(now, ask.cost));
    }
    for (_, receipt) in receipts.into_iter().rev() {
        subject.give_back_at(now, receipt);
    }
    check_same_answers(9, rate, &mut subject, &mut untouched, rest)
}
