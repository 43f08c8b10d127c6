//! What each check says by itself, of a backend that only answers all together.

use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::Backend;
use crate::limits::{Answer, Check, LimitKind, Source};

/// Charges all checks or none, and looks at each by itself then.
pub(super) async fn again<B: Backend + ?Sized>(
    backend: &B,
    checks: &[Check<'_>],
) -> Result<(Answer, Vec<Decision>), B::Error> {
    let answer = backend.check(checks).await?;
    if !answer.allowed && answer.source == Source::Known {
        return Ok((answer, Vec::new()));
    }
    let mut each = Vec::with_capacity(checks.len());
    for (number, check) in checks.iter().enumerate() {
        if !answer.allowed && answer.decider == Some(number) {
            each.push(answer.decision);
            continue;
        }
        if let LimitKind::Concurrency(most) = check.limit.kind() {
            // Asking would take one more slot. It isn't the check that refused.
            let most = u64::from(*most);
            let (open, zero) = (Outcome::Allowed, Duration::ZERO);
            each.push(Decision::new(open, most, most, zero, zero));
            continue;
        }
        let left = [Check { cost: 0, ..*check }];
        let mut decision = backend.check(&left).await?.decision;
        if !answer.allowed && decision.remaining < check.cost {
            decision.outcome = if check.cost > decision.limit {
                Outcome::Never
            } else {
                Outcome::Denied
            };
            decision.retry_after = answer.decision.retry_after;
        }
        each.push(decision);
    }
    Ok((answer, each))
}

/// Looks at each by itself.
pub(super) async fn peek<B: Backend + ?Sized>(
    backend: &B,
    checks: &[Check<'_>],
) -> Result<Vec<Decision>, B::Error> {
    let mut each = Vec::with_capacity(checks.len());
    for check in checks {
        let left = [Check { cost: 0, ..*check }];
        let (_, left) = backend.check_each(&left).await?;
        let mut decision = left.first().copied().unwrap_or(Decision::UNLIMITED);
        let cost = match check.limit.kind() {
            LimitKind::Concurrency(_) => 1,
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
        each.push(decision);
    }
    Ok(each)
}
