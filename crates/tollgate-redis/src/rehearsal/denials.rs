//! Denials that the client of a test's store remembers, as that of a real one does.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use tollgate::clock::Clock;
use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{Answer, Check, DenyRecheck, DenyVersion, KnownDenial, Limit};

use super::{Rehearsal, State, is_leased};

impl Rehearsal {
    /// A denial that is repeated, without asking the store; or else the one that this request asks about again.
    pub(super) fn remembered(
        &self,
        state: &State,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Option<DenyRecheck<'_>>, (usize, Decision)> {
        let mut due = None;
        for (number, check) in checks.iter().enumerate() {
            let version = state.version(check.limit);
            match self.refusals.look_up(check, now, version) {
                KnownDenial::None => {}
                KnownDenial::Due(recheck) => due = due.or(Some(recheck)),
                KnownDenial::Repeat(_, decision) => return Err((number, decision)),
            }
        }
        Ok(due)
    }

    pub(super) fn note_refusal(
        &self,
        state: &State,
        checks: &[Check<'_>],
        answer: &Answer,
        now: Timestamp,
    ) {
        if let Some(check) = answer.decider.map(|number| &checks[number])
            && !is_leased(check.limit)
        {
            let version = state.version(check.limit);
            self.refusals.note(check, &answer.decision, now, version);
        }
    }

    /// A denial that was told before and still holds as far as is known.
    pub(super) fn denial_of(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        let (state, now) = (self.lock(), self.clock.now());
        checks.iter().enumerate().find_map(|(number, check)| {
            let version = state.version(check.limit);
            let decision = self.refusals.find(check, now, version)?;
            Some((number, decision))
        })
    }
}

impl State {
    /// What a remembered refusal of a limit depends on.
    fn version(&self, limit: &Limit) -> DenyVersion {
        let kind = FixedState::default().hash_one(format!("{:?}", limit.kind()));
        DenyVersion(kind, self.epoch())
    }
}
