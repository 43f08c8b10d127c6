//! Each decision is counted once: a process's counters equal the decisions that clients got.

use super::{CheckContext, ReportedDecision};
use crate::world::simulation::RecordedTally;

pub(super) fn check_tallies(case: CheckContext<'_>) -> Result<(), String> {
    for tallied in &case.record.counted {
        let answers = case.record.answers.iter();
        let own: Vec<&ReportedDecision> = answers
            .filter(|told| told.ask.node == tallied.node && told.life == tallied.life)
            .collect();
        let count = |is_one: &dyn Fn(&ReportedDecision) -> bool| {
            let count = own.iter().filter(|told| is_one(told)).count();
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        let process = (tallied.node, tallied.life);
        let refunds = case
            .record
            .refunds
            .iter()
            .filter(|refund| **refund == process);
        let refunds = u64::try_from(refunds.count()).unwrap_or(u64::MAX);
        let told = (
            count(&|told| told.allowed) + refunds,
            count(&|told| !told.allowed),
        );
        if told != (tallied.passed, tallied.denied) {
            return Err(format!(
                "passed and denied are {told:?}, and counted {tallied:?}"
            ));
        }
        // Only the process knows by which version a request was decided.
        if case.setting().versions == 1 {
            rules(case, tallied, &own)?;
        }
    }
    Ok(())
}

/// Checks that each rule and each limit of a tree has counted the requests that it allowed and denied.
fn rules(
    case: CheckContext<'_>,
    tallied: &RecordedTally,
    own: &[&ReportedDecision],
) -> Result<(), String> {
    for (number, passed, denied) in &tallied.rules {
        let rule = &case.setting().rules[*number];
        // A limit that a request brings along is counted by itself, whichever counter it uses.
        let is_own = |told: &ReportedDecision| rule.adjusted_cost(0, told.ask.brings).is_none();
        let has_passed = |told: &&&ReportedDecision| match rule.leaf {
            None => told.allowed && rule.meets(*number, &told.ask),
            Some(_) => (told.charged >> number) & 1 == 1 && is_own(told),
        };
        let has_denied =
            |told: &&&ReportedDecision| !told.allowed && told.rule == Some(*number) && is_own(told);
        let told = (
            own.iter().filter(has_passed).count(),
            own.iter().filter(has_denied).count(),
        );
        let told = (told.0 as u64, told.1 as u64);
        // The charge of a limit in shadow mode isn't reported if a rule denies the request.
        let is_told = !(rule.is_shadow() && case.setting().charges_each);
        if is_told && told != (*passed, *denied) {
            return Err(format!(
                "r{number} let pass and denied {told:?}, and counted {:?}",
                (passed, denied)
            ));
        }
    }
    Ok(())
}
