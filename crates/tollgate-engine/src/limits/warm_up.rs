//! A rate that warms up: the part of it that each step allows.

use tollgate::{Algorithm, Rate};

use super::{CompiledLimit, LimitKind};

/// The whole rate, in tenths.
pub(crate) const TENTHS: u32 = 10;

/// Whether every tenth of a rate is a valid limit.
pub(crate) fn can_warm_up(rate: Rate) -> bool {
    (1..=TENTHS).all(|tenths| CompiledLimit::new(&warm_up_kind(rate, tenths)).is_ok())
}

/// A number of tenths of a rate, exactly, with the burst rounded up.
pub(crate) fn warm_up_kind(rate: Rate, tenths: u32) -> LimitKind {
    let longer = rate.period().and_then(|period| period.checked_mul(TENTHS));
    let more = rate.count().checked_mul(u64::from(tenths));
    let burst = u128::from(rate.burst_size()) * u128::from(tenths);
    let burst = u64::try_from(burst.div_ceil(u128::from(TENTHS))).unwrap_or(u64::MAX);
    let rate = match longer.zip(more) {
        Some((period, count)) if tenths < TENTHS => Rate::new(count, period).burst(burst),
        // A rate whose tenths overflow applies in full.
        _ => rate,
    };
    let algorithm = Algorithm::Gcra;
    LimitKind::Rate { rate, algorithm }
}
