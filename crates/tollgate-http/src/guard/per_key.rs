//! One rate for each key.

use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;

use tollgate::Rate;
use tollgate::clock::{Clock, Monotonic};
use tollgate::{Decision, KeyedLimiter, LimitError, Outcome};

use super::answers::{Answers, Speaks};
use super::keys::{Address, KeyOf};
use super::request::Request;
use super::{Admission, Asked, Limits};
use crate::{Kind, Shown};

/// Keys that are sure of a place, unless told otherwise: 25 MB at most.
const KEYS: usize = 1_000_000;

const NO_KEY: &str =
    "a request has no key to be limited by: put the layer that finds it before this one";

/// What becomes of a request that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// It is answered 500, and that is logged: somebody forgot to put the key there.
    #[default]
    Fail,
    /// It is counted by the address of its connection.
    Peer,
    /// It passes.
    Pass,
}

/// A rate for each key, in memory.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{PerKey, keys::Address};
///
/// let limits = PerKey::new(Rate::per_second(10).burst(20), Address::new())?;
/// # let _ = limits;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
pub struct PerKey<K, C: Clock = Monotonic> {
    limiter: Arc<KeyedLimiter<C>>,
    key: K,
    name: Box<str>,
    missing: Missing,
}

impl<K> PerKey<K> {
    /// This rate for each key, a million of which are sure of a place.
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn new(rate: Rate, key: K) -> Result<Self, LimitError> {
        let limiter = KeyedLimiter::builder(rate, KEYS).build()?;
        Ok(Self::by(Arc::new(limiter), key))
    }
}

impl<K, C: Clock> PerKey<K, C> {
    /// By a limiter that others may share.
    pub fn by(limiter: Arc<KeyedLimiter<C>>, key: K) -> Self {
        Self {
            limiter,
            key,
            name: "requests".into(),
            missing: Missing::Fail,
        }
    }

    /// What clients are told that it is called.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// What becomes of requests that have no key.
    #[must_use]
    pub const fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }
}

impl<K, C: Clock> PerKey<K, C> {
    /// What the limiter says of this key, and what the client is told of that.
    fn decide(&self, request: &impl Request, key: &impl Hash, answers: &Answers) -> Admission<()> {
        let decision = self.limiter.check(key);
        let shown = || Some(Shown::of_bucket(&self.name, &decision, self.limiter.rate()));
        if decision.is_allowed() {
            return Admission::Passed {
                held: (),
                fields: answers.passed(shown),
            };
        }
        let refusal = (kind(&decision), &*self.name);
        Admission::Refused(answers.refused(Speaks::of(request), refusal, &decision, shown))
    }
}

/// A cost that never fits is no matter of time.
fn kind(decision: &Decision) -> Kind {
    match decision.outcome {
        Outcome::Never => Kind::TooLarge,
        _ => Kind::Rate,
    }
}

impl<R: Request, K: KeyOf<R>, C: Clock + 'static> Limits<R> for PerKey<K, C> {
    type Held = ();
    type Question = Infallible;

    #[inline]
    fn ask(&self, request: &R, answers: &Answers) -> Asked<(), Infallible> {
        if let Some(key) = self.key.key(request) {
            return Asked::Now(self.decide(request, &key, answers));
        }
        Asked::Now(match self.missing {
            Missing::Pass => Admission::Exempt,
            Missing::Peer => match Address::new().key(request) {
                Some(key) => self.decide(request, &(key, "peer"), answers),
                None => Admission::Failed(NO_KEY),
            },
            Missing::Fail => Admission::Failed(NO_KEY),
        })
    }

    async fn answer(&self, question: Infallible, _: &Answers) -> Admission<()> {
        match question {}
    }

    fn is_everyone(&self) -> bool {
        self.key.is_everyone()
    }
}
