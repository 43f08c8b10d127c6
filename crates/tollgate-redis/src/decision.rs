//! What a limiter of its own says of a request: it passes and holds what it takes, or it is refused.

use std::ops::Deref;

use tollgate::{Decision, stack::Pass};
use tollgate_engine::backend::{Answer, Source};
use tollgate_engine::policy::OnStoreFailure;

/// What a [`RedisLimiter`](crate::RedisLimiter) says of a request: it passes and holds what it takes, or it is
/// refused.
///
/// Match on it, and keep what passed for as long as the request runs: a slot is given back when it is dropped.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::LimitKind;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
/// use tollgate_redis::LimitVerdict;
///
/// let exports = redis.limiter_of("exports", LimitKind::Concurrency(1)).build()?;
/// match exports.check("ada").await {
///     LimitVerdict::Passed(passed) => {
///         // The request runs here, or in a task that `passed.into_pass()` is moved into.
///         assert!(exports.check("ada").await.refused().is_some());
///         drop(passed);
///     }
///     LimitVerdict::Refused(refused) => println!("429: come back in {:?}", refused.decision.wait()),
/// }
/// assert!(exports.check("ada").await.refused().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slot when it is dropped: match on it, and keep it while the request runs"]
pub enum LimitVerdict {
    /// The request may pass.
    Passed(LimitPassed),
    /// It may not, and was charged nothing.
    Refused(LimitFindings),
}

/// A request that may pass, with what it holds while it runs.
///
/// ```
/// # use tollgate::{Rate, clock::Manual};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
/// let mails = redis.limiter("mails", Rate::per_hour(10)).build()?;
/// let passed = mails.check("ada").await.passed().expect("the first");
/// assert_eq!(passed.decision.remaining, 9);
/// let pass = passed.into_pass(); // to be moved into a task
/// # drop(pass);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slot when it is dropped"]
pub struct LimitPassed {
    findings: LimitFindings,
    pass: Pass,
}

/// What is told of a request, whether it passed or was refused.
///
/// ```
/// # use tollgate::{Rate, clock::Manual};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
/// use tollgate_redis::LimitFindings;
///
/// let log = |told: &LimitFindings| told.decision.to_string();
/// let logins = redis.limiter("logins", Rate::per_hour(1)).build()?;
/// assert_eq!(log(&*logins.check("ada").await), "allowed, 0 of 1 left");
/// assert_eq!(log(&*logins.check("ada").await), "denied, retry after 3600s");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LimitFindings {
    /// What the limit said.
    pub decision: Decision,
    /// If the store couldn't be asked: what decided instead. A refusal of a limit that is
    /// [closed](OnStoreFailure::Closed) then says nothing about that limit: 503, not 429.
    pub fallback: Option<OnStoreFailure>,
    /// Where the answer is from: what that says about the store.
    pub source: Source,
}

impl LimitVerdict {
    /// What passed; none if it was refused.
    pub fn passed(self) -> Option<LimitPassed> {
        match self {
            Self::Passed(passed) => Some(passed),
            Self::Refused(_) => None,
        }
    }

    /// What was refused; none if it passed.
    pub fn refused(&self) -> Option<&LimitFindings> {
        match self {
            Self::Passed(_) => None,
            Self::Refused(findings) => Some(findings),
        }
    }
}

impl LimitPassed {
    /// What holds the slot of the request while it runs. It borrows nothing, so it may be moved into a task.
    pub fn into_pass(self) -> Pass {
        self.pass
    }
}

/// What a backend has said of one check.
impl From<Answer> for LimitVerdict {
    #[inline]
    fn from(answer: Answer) -> Self {
        let findings = LimitFindings {
            decision: answer.decision,
            fallback: answer.unavailable.map(|store| store.fallback),
            source: answer.source,
        };
        if answer.allowed {
            Self::Passed(LimitPassed {
                findings,
                pass: answer.pass,
            })
        } else {
            Self::Refused(findings)
        }
    }
}

impl Deref for LimitVerdict {
    type Target = LimitFindings;

    fn deref(&self) -> &LimitFindings {
        match self {
            Self::Passed(passed) => passed,
            Self::Refused(findings) => findings,
        }
    }
}

impl Deref for LimitPassed {
    type Target = LimitFindings;

    fn deref(&self) -> &LimitFindings {
        &self.findings
    }
}
