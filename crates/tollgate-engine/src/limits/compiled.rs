//! A limit in the form in which the core crate decides it. Compiled once, with the policy.

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

/// A limit in the form that the core crate takes.
#[derive(Clone, Debug)]
pub(crate) enum CompiledLimit {
    Gcra(Tier),
    /// The number of the algorithm in [`EXACT_ALGORITHMS`], and the rate compiled for it.
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
            // The engine decides adaptive limits itself, so no backend reads this.
            LimitKind::Adaptive(own) => Self::Concurrency(own.max),
        })
    }
}
