//! What was decided without the store of a test is told to it.

use std::time::Duration;

use tollgate::Decision;
use tollgate_engine::backend::{Check, Limit, LimitKind};

use super::{Rehearsal, State, is_level, peek};
use crate::question::StoreForm;

impl Rehearsal {
    /// Tells the store what was decided without it: as much is used at least.
    pub(super) fn tell(&self, state: &State, check: &Check<'_>) {
        if let Some(owed) = self.local.owed(check) {
            let left = state.memory.answer(&[peek(check)]).decision;
            let missing = match part_by_part(check.limit, &left) {
                // To a part of a token, rounded up: a level that flaps would lose one each time.
                Some(used) => {
                    let missing = owed.tokens(PARTS).saturating_sub(used);
                    u64::try_from(missing.div_ceil(PARTS.into())).unwrap_or(u64::MAX)
                }
                None => {
                    let used = left.limit.saturating_sub(left.remaining);
                    owed.used.saturating_sub(used)
                }
            };
            let cost = missing.min(left.remaining);
            if cost > 0 {
                let mut charged = state.memory.answer(&[Check { cost, ..*check }]);
                charged.pass.settle(cost);
            }
            self.local.told(check, &owed);
        }
    }
}

/// So many parts is a token, where levels are compared.
const PARTS: u64 = 1_000_000;

/// What is used of a level, in parts of a token; nothing of other limits.
fn part_by_part(limit: &Limit, left: &Decision) -> Option<u128> {
    let form = StoreForm::of(limit, Duration::ZERO).ok()?;
    let LimitKind::Rate { rate, .. } = limit.kind() else {
        return None;
    };
    let each = rate.period()?.as_nanos().max(1);
    let parts = left.reset_after.as_nanos() * u128::from(rate.count()) * u128::from(PARTS) / each;
    is_level(&form).then_some(parts)
}
