//! The decision of a limiter without a policy: allowed with a permit, or denied.

use std::ops::Deref;

use tollgate::{Decision, stack::HeldPermits};
use tollgate_engine::backend::{Answer, AnswerSource};
use tollgate_engine::policy::OnStoreFailure;

/// The decision of a [`RedisLimiter`](crate::RedisLimiter) about a request: allowed, with what the request
/// holds, or denied.
///
/// Match on it, and keep the allowed request while the work runs: dropping it releases its permit.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::LimitKind;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
/// use tollgate_redis::LimitDecision;
///
/// let exports = redis.limiter_with_kind("exports", LimitKind::Concurrency(1)).build()?;
/// match exports.check("ada").await {
///     LimitDecision::Allowed(allowed) => {
///         // The request runs here, or in a task that `allowed.into_permit()` is moved into.
///         assert!(exports.check("ada").await.denied().is_some());
///         drop(allowed);
///     }
///     LimitDecision::Denied(denied) => println!("429: come back in {:?}", denied.decision.wait_or_max()),
/// }
/// assert!(exports.check("ada").await.denied().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an allowed request releases its permit when it is dropped: match on it, and keep it while the work runs"]
pub enum LimitDecision {
    /// The request may pass.
    Allowed(AllowedRequest),
    /// The request may not pass, and was charged nothing.
    Denied(DecisionDetails),
}

/// An allowed request, with what it holds while it runs.
///
/// ```
/// # use tollgate::{Rate, clock::Manual};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
/// let mails = redis.limiter("mails", Rate::per_hour(10)).build()?;
/// let allowed = mails.check("ada").await.allowed().expect("the first");
/// assert_eq!(allowed.decision.remaining, 9);
/// let permit = allowed.into_permit(); // to be moved into a task
/// # drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an allowed request releases its permit when it is dropped"]
pub struct AllowedRequest {
    findings: DecisionDetails,
    pass: HeldPermits,
}

/// The details of a decision, allowed or denied.
///
/// ```
/// # use tollgate::{Rate, clock::Manual};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
/// use tollgate_redis::DecisionDetails;
///
/// let log = |told: &DecisionDetails| told.decision.to_string();
/// let logins = redis.limiter("logins", Rate::per_hour(1)).build()?;
/// assert_eq!(log(&*logins.check("ada").await), "allowed, 0 of 1 left");
/// assert_eq!(log(&*logins.check("ada").await), "denied, retry after 3600s");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DecisionDetails {
    /// The decision of the limit.
    pub decision: Decision,
    /// What decided instead, if the store was unreachable. A denial by a limit that is
    /// [closed](OnStoreFailure::Closed) then isn't about the limit: respond with 503, not 429.
    pub fallback: Option<OnStoreFailure>,
    /// The source of the answer, and so what it says about the store.
    pub source: AnswerSource,
}

impl LimitDecision {
    /// The allowed request; `None` if it was denied.
    pub fn allowed(self) -> Option<AllowedRequest> {
        match self {
            Self::Allowed(passed) => Some(passed),
            Self::Denied(_) => None,
        }
    }

    /// The details of the denial; `None` if the request was allowed.
    pub fn denied(&self) -> Option<&DecisionDetails> {
        match self {
            Self::Allowed(_) => None,
            Self::Denied(findings) => Some(findings),
        }
    }
}

impl AllowedRequest {
    /// The permit of the request, to hold while the work runs. It borrows nothing, so it can be moved into a
    /// task.
    pub fn into_permit(self) -> HeldPermits {
        self.pass
    }
}

/// A backend's answer to one check.
impl From<Answer> for LimitDecision {
    #[inline]
    fn from(answer: Answer) -> Self {
        let findings = DecisionDetails {
            decision: answer.decision,
            fallback: answer.unavailable.map(|store| store.fallback),
            source: answer.source,
        };
        if answer.allowed {
            Self::Allowed(AllowedRequest {
                findings,
                pass: answer.pass,
            })
        } else {
            Self::Denied(findings)
        }
    }
}

impl Deref for LimitDecision {
    type Target = DecisionDetails;

    fn deref(&self) -> &DecisionDetails {
        match self {
            Self::Allowed(passed) => passed,
            Self::Denied(findings) => findings,
        }
    }
}

impl Deref for AllowedRequest {
    type Target = DecisionDetails;

    fn deref(&self) -> &DecisionDetails {
        &self.findings
    }
}
