//! Requests that wait in the queue: no longer than their rule allows, behind those that came before, and never
//! for ever.

use tollgate_core::Outcome;

use super::{CLOCK_TOLERANCE, CheckContext, ReportedDecision, TIMEOUTS};
use crate::world::scenario::LimitSort;

pub(super) fn check_queue_order(case: CheckContext<'_>) -> Result<(), String> {
    if case.record.waiting > 0 {
        return Err(format!("{} wait in the end", case.record.waiting));
    }
    // The first and the last attempt.
    let asks = 2 * (TIMEOUTS * case.setting().timeout * 1_000 + CLOCK_TOLERANCE);
    for told in &case.record.answers {
        let frozen = case.frozen_between(told.ask.node, told.asked_at, told.at);
        let longest = case.setting().longest_wait() + asks + frozen;
        if case.setting().longest_wait() > 0 && told.at - told.asked_at > longest {
            return Err(format!("it waited for more than {longest} µs: {told:?}"));
        }
        check_no_early_denial(case, told)?;
    }
    in_order(case)
}

/// Checks that no request is denied that could wait.
fn check_no_early_denial(case: CheckContext<'_>, told: &ReportedDecision) -> Result<(), String> {
    let rule = told.rule.map(|rule| &case.setting().rules[rule]);
    let Some(waits) = rule.and_then(|rule| rule.waits) else {
        return Ok(());
    };
    let is_limit = told.fallback.is_none() && told.decision.outcome == Outcome::Denied;
    let wait = u64::try_from(told.decision.wait_or_max().as_micros()).unwrap_or(u64::MAX);
    let until = told.at.saturating_add(wait);
    if is_limit && !told.allowed && until < told.asked_at + 1_000 * waits {
        Err(format!("refused, where it could wait: {told:?}"))
    } else {
        Ok(())
    }
}

/// Checks that no request passes one that came before it and still waits.
fn in_order(case: CheckContext<'_>) -> Result<(), String> {
    let [rule] = &case.setting().rules[..] else {
        return Ok(());
    };
    if rule.waits.is_none() || rule.versions.iter().any(|limits| limits.len() > 1) {
        return Ok(());
    }
    // By then it is waiting, or has its answer.
    let stands = TIMEOUTS * case.setting().timeout * 1_000 + CLOCK_TOLERANCE;
    let answers = &case.record.answers;
    for first in answers {
        let stands = first.asked_at + stands;
        let passed = answers.iter().find(|other| {
            let is_beside = other.ask.node == first.ask.node
                && other.life == first.life
                && (rule.is_shared || other.ask.who == first.ask.who);
            is_beside && other.allowed && stands < other.asked_at && other.at < first.at
        });
        let Some(passed) = passed else { continue };
        let (from, to) = (first.asked_at, passed.at);
        let is_frozen = case.frozen_between(first.ask.node, from, to) > 0;
        let mut versions = case.record.versions.iter();
        let is_changed =
            versions.any(|(at, node, _)| *node == first.ask.node && from <= *at && *at <= to);
        let is_costly = rule.sort == LimitSort::Slots || passed.ask.cost > 0;
        if !is_frozen && !is_changed && is_costly {
            return Err(format!("{passed:?} passed one that waited: {first:?}"));
        }
    }
    Ok(())
}
