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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tollgate::{Decision, Timestamp};

    use super::*;
    use crate::limits::{Answer, FailureKind, SoleLimit, Unavailable};
    use crate::policy::OnStoreFailure;

    /// A store that is away, with what its limits have chosen for that.
    struct Away(OnStoreFailure);

    impl Backend for Away {
        type Error = Infallible;

        async fn ask<'a>(
            &'a self,
            _: &'a [Check<'a>],
            _: Option<&'a mut Vec<CheckResult>>,
        ) -> Result<Answer, Infallible> {
            let unavailable = Unavailable {
                kind: FailureKind::TimedOut,
                fallback: self.0,
            };
            Ok(match self.0 {
                OnStoreFailure::Closed => Answer::unavailable(0, unavailable),
                _ => Answer {
                    unavailable: Some(unavailable),
                    ..Answer::new(Some(0), Decision::UNLIMITED)
                },
            })
        }

        fn now(&self) -> Timestamp {
            Timestamp::ZERO
        }
    }

    #[test]
    fn only_a_limit_that_is_closed_without_its_store_has_no_answer() {
        let limit = SoleLimit::new("jobs", LimitKind::Concurrency(8)).expect("a limit");
        let facts = SoleLimit::facts("nightly");
        let checks = [limit.check(&facts, 1)];
        for (fallback, is_known) in [
            (OnStoreFailure::Open, true),
            (OnStoreFailure::Local, true),
            (OnStoreFailure::Closed, false),
        ] {
            let away = Away(fallback);
            let peek =
                pin!(by_asking(&away, &checks)).poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Ok(each)) = peek else {
                panic!("it answers immediately");
            };
            assert_eq!(each[0].is_ok(), is_known, "{fallback:?}");
        }
    }
}
