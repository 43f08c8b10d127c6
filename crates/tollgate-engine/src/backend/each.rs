//! What each check says by itself, of a backend that only answers all together.

use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::{Answer, Backend, Check, LimitKind};

/// Charges all checks or none, and looks at each by itself then.
pub(super) async fn again<B: Backend + ?Sized>(
    backend: &B,
    checks: &[Check<'_>],
) -> Result<(Answer, Vec<Decision>), B::Error> {
    let answer = backend.check(checks).await?;
    let mut each = Vec::with_capacity(checks.len());
    for (number, check) in checks.iter().enumerate() {
        if !answer.allowed && answer.decider == Some(number) {
            each.push(answer.decision);
            continue;
        }
        if let LimitKind::Concurrency(most) = check.limit.kind() {
            // To ask would be to take one more. It wasn't the one that refused.
            let most = u64::from(*most);
            let (open, zero) = (Outcome::Allowed, Duration::ZERO);
            each.push(Decision::new(open, most, most, zero, zero));
            continue;
        }
        let left = [Check { cost: 0, ..*check }];
        let mut decision = backend.check(&left).await?.decision;
        if !answer.allowed && decision.remaining < check.cost {
            decision.outcome = match check.cost > decision.limit {
                true => Outcome::Never,
                false => Outcome::Denied,
            };
            decision.retry_after = answer.decision.retry_after;
        }
        each.push(decision);
    }
    Ok((answer, each))
}
