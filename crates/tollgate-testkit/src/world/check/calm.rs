//! Where nothing goes wrong, more can be said: what a slow oracle admits passes, and the wait told is enough.

use tollgate_core::Outcome;

use super::{Case, Told};
use crate::world::story::{Amount, Counted, Rule, Sort};

pub(super) fn judge(case: Case<'_>) -> Result<(), String> {
    told_waits(case)?;
    if !case.is_calm() || case.setting().rules.len() > 1 || case.setting().versions > 1 {
        return Ok(());
    }
    let rule = &case.setting().rules[0];
    match (rule.sort, rule.counted) {
        (Sort::Level(_), Counted::Exact) => as_the_oracle(case, rule),
        (Sort::Level(_), Counted::Leased) => none_refused_in_vain(case, rule),
        _ => Ok(()),
    }
}

/// Each answer is what a bucket would say that is asked in the same order.
fn as_the_oracle(case: Case<'_>, rule: &Rule) -> Result<(), String> {
    let amount = rule.amounts[0];
    let keys = usize::try_from(case.setting().keys).unwrap_or(1);
    let mut buckets = vec![Bucket::default(); keys];
    for told in &case.record.answers {
        let bucket = &mut buckets[if rule.is_shared { 0 } else { told.ask.who }];
        // What was refused is repeated from memory for as long as it holds: at the time of the answer.
        let passes = bucket.take(told.at, told.ask.cost, amount);
        if passes != told.allowed {
            let says = if passes { "passes" } else { "doesn't pass" };
            return Err(format!("it {says} by the oracle, and not here: {told:?}"));
        }
    }
    Ok(())
}

/// A bucket in units, of which a token costs as many as a period has microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    debt: u128,
    at: u64,
}

impl Bucket {
    fn take(&mut self, now: u64, cost: u64, amount: Amount) -> bool {
        let passed = u128::from(now - self.at) * u128::from(amount.count);
        self.debt = self.debt.saturating_sub(passed);
        self.at = now;
        let after = self.debt + u128::from(cost) * u128::from(amount.period);
        let fits = after <= u128::from(amount.burst) * u128::from(amount.period);
        if fits {
            self.debt = after;
        }
        fits
    }
}

/// As long as all that was ever asked for, and all that nodes may hold, fits into the burst, nobody is refused.
fn none_refused_in_vain(case: Case<'_>, rule: &Rule) -> Result<(), String> {
    let burst = rule.amounts[0].burst;
    let nodes = u64::try_from(case.setting().nodes).unwrap_or(1);
    let keys = usize::try_from(case.setting().keys).unwrap_or(1);
    let mut asked = vec![0; keys];
    for told in &case.record.answers {
        let asked = &mut asked[if rule.is_shared { 0 } else { told.ask.who }];
        *asked += told.ask.cost;
        let fits = *asked + nodes * (burst / 10).max(1) <= burst;
        if fits && !told.allowed {
            return Err(format!(
                "refused where {asked} of {burst} were asked for: {told:?}"
            ));
        }
    }
    Ok(())
}

/// Who comes back when he was told passes, unless someone came between or something happened.
fn told_waits(case: Case<'_>) -> Result<(), String> {
    if case.setting().remembers {
        // What a node remembers was true when it was told; since then others may have passed.
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
        let is_exact = rule.counted == Counted::Exact && rule.sort != Sort::Slots;
        let by_store = before.fallback.is_none() && back.fallback.is_none();
        let is_told = back.decision.outcome == Outcome::Denied && before.version == back.version;
        // Since it was asked about first: what was under way may have been counted after it.
        let from = before.asked_at.saturating_sub(case.lingers());
        let is_between = |other: &&Told| {
            other.allowed
                && from <= other.at
                && other.asked_at <= back.at
                && (rule.is_shared || other.ask.who == back.ask.who)
        };
        let moved = case
            .record
            .faults
            .iter()
            .any(|(at, _)| from <= *at && *at <= back.at);
        let changed = case
            .record
            .versions
            .iter()
            .any(|(at, _, _)| from <= *at && *at <= back.at);
        let dropped = case
            .story
            .events
            .iter()
            .any(|(at, _)| from <= *at && *at <= back.at && case.setting().rules.len() > 1);
        if is_exact
            && by_store
            && is_told
            && !moved
            && !changed
            && !dropped
            && !answers.iter().any(|other| is_between(&other))
        {
            return Err(format!(
                "told to come back, and refused: {before:?}, then {back:?}"
            ));
        }
    }
    Ok(())
}
