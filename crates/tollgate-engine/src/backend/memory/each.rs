//! What each check of a request says by itself, beside the one answer to all.

use tollgate::{Clock, Decision, Level};

use super::{BorrowedFrom, Memory, level};
use crate::limits::Check;

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// What each check says after all were charged, if they were.
    pub(crate) fn look_after(&self, checks: &[Check<'_>], are_charged: bool) -> Vec<Decision> {
        let each = checks.iter().map(|check| self.look(check, are_charged));
        each.collect()
    }

    /// What is left of a limit. Of slots too none is taken for that.
    pub(super) fn left(&self, check: &Check<'_>) -> Decision {
        let owned = BorrowedFrom::of(Some(check));
        let held = self.hold(Some(check), &owned);
        level(&held, check).map_or(Decision::UNLIMITED, |level| {
            *self.stack.peek(&[level.cost(0)]).decision()
        })
    }

    /// What each check would say by itself, charging nothing: what is left is as it is now.
    pub fn peek_each(&self, checks: &[Check<'_>]) -> Vec<Decision> {
        let said = |check: &Check<'_>| {
            let owned = BorrowedFrom::of(Some(check));
            let held = self.hold(Some(check), &owned);
            let level = level(&held, check);
            level.map_or(Decision::UNLIMITED, |level| self.would(&level))
        };
        checks.iter().map(said).collect()
    }

    /// Why a limit would refuse, or what is left of it.
    fn would(&self, level: &Level<'_>) -> Decision {
        let said = |level| *self.stack.peek(&[level]).decision();
        Some(said(level.clone()))
            .filter(|decision| !decision.is_allowed())
            .unwrap_or_else(|| said(level.clone().cost(0)))
    }

    /// What is left of a limit that passed, or would have; of another, why not.
    fn look(&self, check: &Check<'_>, is_charged: bool) -> Decision {
        let owned = BorrowedFrom::of(Some(check));
        let held = self.hold(Some(check), &owned);
        let Some(level) = level(&held, check) else {
            return Decision::UNLIMITED;
        };
        if is_charged {
            *self.stack.peek(&[level.cost(0)]).decision()
        } else {
            self.would(&level)
        }
    }
}
