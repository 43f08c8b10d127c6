//! Laws about single decisions: equal to the oracle's, and accurate.

use tollgate_core::{Outcome, Rate, Timestamp};

use super::{LawViolation, Subject, ensure, state_after};
use crate::oracle::{LevelOracle, Oracle, OracleKind};
use crate::traffic::Arrival;

/// Law 1: outcome, remaining and retry_after equal those of the slow model.
///
/// # Errors
/// The first answer that differs.
pub fn law_1_equals_the_oracle<S: Subject>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let (mut subject, mut oracle) = (make(rate), kind.oracle(rate));
    for ask in asks {
        let expect = oracle.decide(ask.at, ask.cost);
        let got = subject.decide_at(ask.at, ask.cost);
        let same = got.outcome == expect.outcome
            && got.remaining == expect.remaining
            && got.wait_or_max() == expect.retry_after;
        ensure!(1, same, "{rate}: {ask:?} got {got:?}, oracle {expect:?}");
    }
    Ok(())
}

/// Law 1 for one word, second half: what the rounded interval admits, the exact form admits too.
///
/// # Errors
/// The first request that only the rounded form admits.
pub fn law_1_exact_form_admits_it_too<S: Subject>(
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let (mut subject, mut exact) = (make(rate), LevelOracle::leaky_bucket(rate));
    for ask in asks {
        if ask.cost == 0 || !subject.decide_at(ask.at, ask.cost).is_allowed() {
            continue;
        }
        let answer = exact.decide(ask.at, ask.cost);
        let too = answer.outcome == Outcome::Allowed;
        ensure!(1, too, "{rate}: {ask:?} passed, exactly it is {answer:?}");
    }
    Ok(())
}

/// Law 3: a denied request passes after exactly `retry_after`, and a request that never passes doesn't pass at
/// the end of time either.
///
/// # Errors
/// The first `retry_after` that is too short or too long.
pub fn law_3_retry_is_tight<S: Subject>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let mut subject = make(rate);
    for (index, ask) in asks.iter().enumerate() {
        let decision = subject.decide_at(ask.at, ask.cost);
        let passes_at = |time| {
            let mut probe = state_after(&make, rate, &asks[..=index]);
            probe.decide_at(time, ask.cost).is_allowed()
        };
        let holds = match decision.outcome {
            Outcome::Allowed => decision.wait_or_max().is_zero(),
            Outcome::Never => !passes_at(kind.latest_supported_time()),
            Outcome::Denied => {
                let then = ask.at + decision.wait_or_max();
                let before = Timestamp::from_nanos(then.as_nanos() - 1);
                passes_at(then) && !passes_at(before)
            }
        };
        ensure!(3, holds, "{rate}: {ask:?} got {decision:?}");
    }
    Ok(())
}

/// Law 8: `remaining` passes and one more does not; a fresh limit admits `limit` and never one more.
///
/// Remaining 0 says nothing about a cost of 0, which a state in debt denies.
///
/// # Errors
/// The first `remaining` that is too small or too large.
pub fn law_8_remaining_is_true<S: Subject>(
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let start = asks.first().map_or(Timestamp::ZERO, |ask| ask.at);
    let limit = make(rate).decide_at(start, 0).limit;
    let whole = make(rate).decide_at(start, limit);
    ensure!(
        8,
        whole.is_allowed(),
        "{rate}: fresh, {limit} got {whole:?}"
    );
    if let Some(more) = limit.checked_add(1) {
        let outcome = make(rate).decide_at(start, more).outcome;
        let never = outcome == Outcome::Never;
        ensure!(8, never, "{rate}: fresh, {more} got {outcome:?}");
    }
    for (index, ask) in asks.iter().enumerate() {
        let passes = |cost| {
            let mut probe = state_after(&make, rate, &asks[..=index]);
            probe.decide_at(ask.at, cost).is_allowed()
        };
        let mut subject = state_after(&make, rate, &asks[..index]);
        let rest = subject.decide_at(ask.at, ask.cost).remaining;
        let enough = rest == 0 || passes(rest);
        ensure!(8, enough, "{rate}: after {ask:?}, {rest} does not pass");
        let no_more = rest.checked_add(1).is_none_or(|more| !passes(more));
        ensure!(8, no_more, "{rate}: after {ask:?}, {rest} + 1 passes");
    }
    Ok(())
}
