//! Without faults more can be checked: requests that a slow oracle admits pass, and a reported wait is long
//! enough.

use tollgate_core::Outcome;

use super::bucket::Bucket;
use super::{CheckContext, Fault, ReportedDecision};
use crate::world::scenario::{Amount, CountingChoice, LimitSort, Rule};

pub(super) fn check_undisturbed_runs(case: CheckContext<'_>) -> Result<(), String> {
    check_reported_waits(case)?;
    // A request is decided at one instant only if nothing takes any time.
    let is_at_once = case.is_calm() && case.setting().delay == 0;
    if !is_at_once || case.setting().rules.len() > 1 || case.setting().versions > 1 {
        return Ok(());
    }
    let rule = &case.setting().rules[0];
    if rule.estimated.is_some() || rule.waits.is_some() {
        return Ok(());
    }
    match (rule.sort, rule.counted, &rule.versions[0][..]) {
        (LimitSort::Level(_), CountingChoice::Exact, [amount]) => {
            check_against_oracle(case, rule, *amount)
        }
        _ => Ok(()),
    }
}

/// Checks that each answer, and each wait, equals that of a bucket with the same requests in the same order. A
/// node that remembers a denial doesn't know what passed since.
fn check_against_oracle(case: CheckContext<'_>, rule: &Rule, amount: Amount) -> Result<(), String> {
    let keys = usize::try_from(case.setting().keys).unwrap_or(1);
    let mut buckets = vec![Bucket::default(); keys];
    // For each key: until when something is remembered, and until when something from before the last
    // admission.
    let mut remembered = vec![(0, 0); keys];
    for told in &case.record.answers {
        let key = if rule.is_shared { 0 } else { told.ask.who };
        let (bucket, (latest, stale)) = (&mut buckets[key], &mut remembered[key]);
        // A denial is repeated from memory for as long as it holds: at the time of the answer.
        let passes = bucket.take(told.at, told.ask.cost, amount);
        if passes != told.allowed {
            let says = if passes { "passes" } else { "doesn't pass" };
            return Err(format!("it {says} by the oracle, and not here: {told:?}"));
        }
        let said = u64::try_from(told.decision.wait_or_max().as_micros()).unwrap_or(u64::MAX);
        match told.decision.outcome {
            Outcome::Allowed => *stale = *latest,
            Outcome::Denied => {
                let wait = bucket.wait(told.ask.cost, amount);
                // A wait that is computed from a remembered denial is rounded up more than once.
                let (is_fresh, rounded) = if case.setting().remembers {
                    (*stale <= told.at, 2)
                } else {
                    (true, 0)
                };
                if is_fresh && !(wait..=wait.saturating_add(rounded)).contains(&said) {
                    return Err(format!("it passes in {wait} µs by the oracle: {told:?}"));
                }
                *latest = (*latest).max(told.at.saturating_add(said));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that a request that comes back at the reported time passes, unless another came between or a fault
/// occurred.
fn check_reported_waits(case: CheckContext<'_>) -> Result<(), String> {
    if case.setting().remembers {
        // A remembered denial was true when it was reported; since then others may have passed.
        return Ok(());
    }
    let answers = &case.record.answers;
    for back in answers.iter().filter(|told| !told.allowed) {
        let Some(number) = back.returned else {
            continue;
        };
        let before = &answers[number];
        let Some(rule) = before.rule.filter(|rule| back.rule == Some(*rule)) else {
            continue;
        };
        let rule = &case.setting().rules[rule];
        // It isn't known when held costs come back, and a waiting request stands behind others.
        let is_known = rule.estimated.is_none() && case.setting().longest_wait() == 0;
        let is_exact =
            rule.counted == CountingChoice::Exact && rule.sort != LimitSort::Slots && is_known;
        let by_store = before.fallback.is_none() && back.fallback.is_none();
        let is_told = back.decision.outcome == Outcome::Denied && before.version == back.version;
        // Since the first attempt: a query in flight may have been counted after it.
        let from = before.asked_at.saturating_sub(case.version_ends_at());
        let is_between = |other: &&ReportedDecision| {
            let is_another = !std::ptr::eq(*other, before) && !std::ptr::eq(*other, back);
            // A request that one limit denied may have been charged to another and refunded.
            is_another
                && (other.allowed || case.setting().rules.len() > 1)
                && from <= other.at
                && other.asked_at <= back.at
                && rule.counts_both(other.ask.who, back.ask.who)
        };
        // What was decided without the store is reported to it at some time.
        let untold = from.saturating_sub(rule.drains());
        let is_untold = |other: &ReportedDecision| other.fallback.is_some() && untold <= other.at;
        let moved = case.record.faults.iter().any(|(at, fault)| {
            // A clock that was set back may take as long to catch up as a bucket takes to fill.
            let from = match fault {
                Fault::Stepped(by) if *by < 0 => untold,
                _ => from,
            };
            from <= *at && *at <= back.at
        });
        let mut versions = case.record.versions.iter();
        let changed = versions.any(|(at, _, _)| from <= *at && *at <= back.at);
        if is_exact
            && by_store
            && is_told
            && !moved
            && !changed
            && !answers[..number].iter().any(is_untold)
            && !answers.iter().any(|other| is_between(&other))
        {
            return Err(format!(
                "told to come back, and refused: {before:?}, then {back:?}"
            ));
        }
    }
    Ok(())
}
