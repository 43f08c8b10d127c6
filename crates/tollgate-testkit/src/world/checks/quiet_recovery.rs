//! Once all is quiet, nothing is lost for good: every client can have its whole limit, and keys expire by
//! themselves.

use super::CheckContext;

pub(super) fn check_quiet_recovery(case: CheckContext<'_>) -> Result<(), String> {
    let quiet_at = case.record.quiet_at;
    let mut last = case
        .record
        .answers
        .iter()
        .filter(|told| told.asked_at >= quiet_at)
        .peekable();
    if last.peek().is_none() {
        return Err("nobody got an answer in the end".to_owned());
    }
    for told in last {
        if case.is_blocked(&told.ask) {
            continue;
        }
        if !told.allowed || told.fallback.is_some() {
            return Err(format!("in the end, when all was quiet: {told:?}"));
        }
    }
    if let Some((key, _)) = case.record.keys.iter().find(|(_, ends)| !ends) {
        return Err(format!("the store keeps {key} for ever"));
    }
    Ok(())
}
