//! A limit in the form in which core decides by it: made once, when a policy is compiled.

use tollgate::quota::Quota;
use tollgate::{Algorithm, LimitError, Tier};

use super::kind::LimitKind;

/// The algorithms that need more than a word of state, by number.
pub(crate) const EXACT_ALGORITHMS: [Algorithm; 4] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

/// A limit as core takes it.
#[derive(Clone, Debug)]
pub(crate) enum CompiledLimit {
    Gcra(Tier),
    /// Which of the [exact](EXACT_ALGORITHMS) algorithms, and the rate made for it.
    Exact(usize, Tier),
    Window(Tier),
    Quota(Box<Quota>),
    Concurrency(u32),
}

impl CompiledLimit {
    pub(crate) fn new(kind: &LimitKind) -> Result<Self, LimitError> {
        Ok(match kind {
            LimitKind::Rate {
                rate,
                algorithm: Algorithm::Gcra,
            } => Self::Gcra(Tier::new(Algorithm::Gcra, *rate)?),
            LimitKind::Rate { rate, algorithm } => {
                let number = EXACT_ALGORITHMS.iter().position(|own| {
                    std::mem::discriminant(own) == std::mem::discriminant(algorithm)
                });
                let tier = Tier::new(*algorithm, *rate)?;
                match algorithm {
                    Algorithm::FixedWindow(_) => Self::Window(tier),
                    _ => Self::Exact(number.unwrap_or(0), tier),
                }
            }
            LimitKind::Quota(quota) => Self::Quota(Box::new(quota.clone())),
            LimitKind::Concurrency(limit) => Self::Concurrency(*limit),
            // No backend is asked about it.
            LimitKind::Adaptive(own) => Self::Concurrency(own.max),
        })
    }
}
