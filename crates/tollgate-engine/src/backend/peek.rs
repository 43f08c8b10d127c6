//! What each check would say by itself, of a backend that only answers all of them together.

use std::time::Duration;

use tollgate::Outcome;

use super::Backend;
use crate::limits::{Check, CheckResult, LimitKind};

/// Asks about each check by itself, at no cost.
pub(super) async fn by_asking<B: Backend + ?Sized>(
    backend: &B,
    checks: &[Check<'_>],
) -> Result<Vec<CheckResult>, B::Error> {
    let mut each = Vec::with_capacity(checks.len());
    for check in checks {
        let free = [Check { cost: 0, ..*check }];
        let answer = backend.ask(&free, None).await?;
        // Only a limit that is closed without its store has no answer.
        let failure = answer.unavailable.filter(|_| answer.is_unavailable());
        let mut decision = answer.decision;
        let cost = match check.limit.kind() {
            LimitKind::Concurrency(most) => {
                if answer.allowed {
                    // It took a permit, and has given it back.
                    decision.remaining = u64::from(*most);
                }
                1
            }
            _ => check.cost,
        };
        if cost > decision.limit {
            decision.outcome = Outcome::Never;
            decision.set_wait(Duration::MAX);
        } else if decision.remaining < cost {
            // When there is enough isn't told, only when the limit is as if never used.
            decision.outcome = Outcome::Denied;
            decision.set_wait(decision.reset_after);
        }
        each.push(failure.map_or(Ok(decision), Err));
    }
    Ok(each)
}
