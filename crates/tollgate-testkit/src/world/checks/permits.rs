//! Permits: never more concurrent holders than the largest limit in force, unless holders were taken for dead.

use super::{CheckedLimit, Fault};

impl CheckedLimit<'_> {
    pub(super) fn check_permits(&self) -> Result<(), String> {
        // A holder that is frozen, disconnected or forgotten by the store may be taken for dead while it runs:
        // that is documented.
        let case = self.case;
        if case
            .record
            .faults
            .iter()
            .any(|(_, fault)| !matches!(fault, Fault::Other | Fault::Frozen(_)))
        {
            return Ok(());
        }
        let slot_life = case.setting().slot_life * 1000;
        let held: Vec<_> = self
            .passed()
            .filter(|told| told.fallback.is_none() && !case.is_of_two_versions(told))
            .collect();
        for one in &held {
            let at_once = held
                .iter()
                .filter(|other| other.at <= one.at && other.ended_at.is_some_and(|at| one.at < at));
            let at_once = u64::try_from(at_once.count()).unwrap_or(u64::MAX);
            let (limit, _) = self.allowed_between(one.asked_at, one.at);
            let trouble = self
                .faults_between(one.at.saturating_sub(2 * slot_life), one.at)
                .count();
            if at_once > limit && trouble == 0 {
                let at = one.at;
                return Err(format!("{at_once} held at {at} µs, where {limit} may"));
            }
        }
        Ok(())
    }
}
