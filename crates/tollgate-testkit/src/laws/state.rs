//! Laws about the state between requests, tested by the answers of two subjects that must have equal states.

use tollgate_core::{Rate, Timestamp};

use super::{LawViolation, Subject, ensure, state_after};
use crate::oracle::OracleKind;
use crate::traffic::Arrival;

/// Law 4: leaving out all denied requests and all peeks changes no answer.
///
/// # Errors
/// The first answer that differs.
pub fn law_4_denied_writes_nothing<S: Subject>(
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let (mut all, mut only_admitted) = (make(rate), make(rate));
    for ask in asks {
        let decision = all.decide_at(ask.at, ask.cost);
        if decision.is_allowed() && ask.cost > 0 {
            let twin = only_admitted.decide_at(ask.at, ask.cost);
            let same = decision == twin;
            ensure!(
                4,
                same,
                "{rate}: {ask:?} got {decision:?}, without denials {twin:?}"
            );
        }
    }
    let last = asks.last().map_or(Timestamp::ZERO, |ask| ask.at);
    check_same_answers(4, rate, &mut all, &mut only_admitted, &[peek(last)])
}

/// Law 6: where a cost passes, its two parts pass one after the other, and nothing that follows
/// can tell the difference.
///
/// # Errors
/// The first split that makes a difference.
pub fn law_6_costs_add_up<S: Subject>(
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.cost > 1) {
        let mut whole = state_after(&make, rate, &asks[..index]);
        let mut split = state_after(&make, rate, &asks[..index]);
        let at_once = whole.decide_at(ask.at, ask.cost);
        if !at_once.is_allowed() {
            continue;
        }
        let part = if index.is_multiple_of(2) {
            1
        } else {
            ask.cost / 2
        };
        let first = split.decide_at(ask.at, part);
        let second = split.decide_at(ask.at, ask.cost - part);
        let same = first.is_allowed() && second == at_once;
        ensure!(
            6,
            same,
            "{rate}: {ask:?} got {at_once:?}, {part} first {second:?}"
        );
        check_same_answers(6, rate, &mut whole, &mut split, &asks[index + 1..])?;
    }
    Ok(())
}

/// Law 7: after `reset_after`, a used subject and a fresh one answer alike.
///
/// # Errors
/// The first answer that differs.
pub fn law_7_idle_is_never_seen<S: Subject>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    for used in [asks, &asks[..asks.len() / 2]] {
        let Some(last) = used.last() else {
            return Ok(());
        };
        let mut subject = state_after(&make, rate, used);
        let idle_at = last.at + subject.decide_at(last.at, 0).reset_after;
        let later = shift_requests(idle_at, asks);
        if later
            .iter()
            .any(|ask| ask.at >= kind.latest_supported_time())
        {
            // It doesn't become idle again within the times that the algorithm distinguishes.
            continue;
        }
        check_same_answers(7, rate, &mut subject, &mut make(rate), &later)?;
    }
    Ok(())
}

/// The same gaps from another time on, without those that step back.
fn shift_requests(start: Timestamp, asks: &[Arrival]) -> Vec<Arrival> {
    let origin = asks.first().map_or(Timestamp::ZERO, |ask| ask.at);
    let mut at = start;
    let moved = asks.iter().map(|ask| {
        at = at.max(start.plus_nanos(ask.at.nanos_since(origin)));
        Arrival { at, ..*ask }
    });
    moved.collect()
}

const fn peek(at: Timestamp) -> Arrival {
    Arrival { at, cost: 0 }
}

/// Checks that two subjects give the same answers to the same requests.
pub(super) fn check_same_answers<S: Subject>(
    law: u8,
    rate: Rate,
    one: &mut S,
    other: &mut S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    for ask in asks {
        let (a, b) = (
            one.decide_at(ask.at, ask.cost),
            other.decide_at(ask.at, ask.cost),
        );
        ensure!(law, a == b, "{rate}: {ask:?} got {a:?} and {b:?}");
    }
    Ok(())
}
