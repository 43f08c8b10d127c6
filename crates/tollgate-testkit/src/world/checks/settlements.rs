//! The result of a settlement: a request learns that it was late if its estimate had expired, and only then.

use tollgate::stack::SettlementTiming;

use super::settled_cost::Timing;
use super::{CLOCK_TOLERANCE, CheckContext, CheckedLimit, ReportedDecision};

pub(super) fn check_settlements(case: CheckContext<'_>) -> Result<(), String> {
    for told in &case.record.answers {
        // A charge of a decision without the store may be held nowhere.
        let Some(settled) = told.settled.filter(|_| told.fallback.is_none()) else {
            continue;
        };
        let timings = timings(case, told);
        let is_late = timings.contains(&Timing::Late);
        let is_in_time = timings.iter().all(|timing| *timing == Timing::InTime);
        let is_right = match settled {
            SettlementTiming::InTime => !is_late,
            SettlementTiming::Late => !is_in_time,
        };
        if !is_right && told.version == told.last_version {
            return Err(format!("its cost was settled {settled:?}: {told:?}"));
        }
    }
    Ok(())
}

/// The timing for each rule that estimated the cost of a request.
fn timings(case: CheckContext<'_>, told: &ReportedDecision) -> Vec<Timing> {
    let rules = case.setting().rules.iter().enumerate();
    let estimated = rules.filter(|(number, rule)| {
        rule.estimated.is_some() && rule.is_in(told.version) && rule.meets(*number, &told.ask)
    });
    let timings = estimated.flat_map(|(number, rule)| {
        let of = move |period: u64| CheckedLimit {
            case,
            rule,
            number,
            period,
            key: told.ask.who,
        };
        let limits = rule.periods().into_iter().map(of);
        limits.map(move |limit| limit.timing(told, CLOCK_TOLERANCE))
    });
    timings.collect()
}
