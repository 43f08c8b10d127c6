//! The form of the recorded operations, and the peer's limit as one of ours.

use std::time::Duration;

use serde::Deserialize;
use tollgate_core::{Arithmetic, Rate, TokenBucket};

use super::model::UNLIMITED;

#[derive(Deserialize)]
pub(super) struct Sequence {
    pub(super) id: u64,
    pub(super) limit: Limit,
    pub(super) burst: i64,
    pub(super) ops: Vec<Op>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Op {
    pub(super) t: i64,
    pub(super) tokens_after: f64,
    #[serde(flatten)]
    pub(super) call: Call,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Call {
    Allow { n: i64, ok: bool },
    Reserve { n: i64, ok: bool, delay: i64 },
    Delay { rid: usize, delay: i64 },
    Cancel { rid: usize },
    SetLimit { limit: Limit },
    SetBurst { burst: i64 },
    Tokens { tokens: f64 },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Limit {
    PerSecond(f64),
    Named(String),
}

impl From<f64> for Limit {
    fn from(limit: f64) -> Self {
        if limit == UNLIMITED {
            Self::Named("inf".into())
        } else {
            Self::PerSecond(limit)
        }
    }
}

impl Limit {
    pub(super) fn value(&self) -> f64 {
        match self {
            Self::PerSecond(limit) => *limit,
            Self::Named(name) => {
                assert_eq!(name, "inf");
                UNLIMITED
            }
        }
    }
}

/// The peer's limit as a rate: a double is `m · 2^e`, so `m` in each `2^-e` seconds is exact.
/// Where that period is too long for a duration, one in each `1 / limit` is nearest.
fn rate_of(limit: f64, burst: i64) -> Rate {
    let burst = u64::try_from(burst).unwrap();
    if limit == UNLIMITED {
        return Rate::unlimited().burst(burst);
    }
    if limit <= 0.0 {
        return Rate::zero().burst(burst);
    }
    let exponent = i32::try_from((limit.to_bits() >> 52) & 0x7ff).unwrap() - 1075;
    let mantissa = (limit.to_bits() & ((1 << 52) - 1)) | (1 << 52);
    let zeros = mantissa.trailing_zeros();
    let (count, exponent) = (mantissa >> zeros, exponent + zeros.cast_signed());
    let rate = match exponent {
        0.. => Rate::per_second(count << exponent),
        -63..0 => Rate::new(count, Duration::from_secs(1 << -exponent)),
        _ => Rate::every(Duration::from_secs_f64((1.0 / limit).min(1e15))),
    };
    rate.burst(burst)
}

/// Our limit for the peer's.
pub(super) fn limit_of(limit: f64, burst: i64) -> TokenBucket {
    TokenBucket::new(rate_of(limit, burst)).unwrap()
}
