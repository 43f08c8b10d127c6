//! A rate that warms up: the part of it that each step lets through.

use tollgate::{Algorithm, Rate};

use super::{CompiledLimit, LimitKind};

/// The whole, in tenths.
pub(crate) const TENTHS: u32 = 10;

/// Whether each part of a rate can be counted.
pub(crate) fn can_warm_up(rate: Rate) -> bool {
    (1..=TENTHS).all(|tenths| CompiledLimit::new(&warm_up_kind(rate, tenths)).is_ok())
}

/// So many tenths of a rate, exactly; of its burst, rounded up.
pub(crate) fn warm_up_kind(rate: Rate, tenths: u32) -> LimitKind {
    let longer = rate.period().and_then(|period| period.checked_mul(TENTHS));
    let more = rate.count().checked_mul(u64::from(tenths));
    let burst = u128::from(rate.burst_size()) * u128::from(tenths);
    let burst = u64::try_from(burst.div_ceil(u128::from(TENTHS))).unwrap_or(u64::MAX);
    let rate = match longer.zip(more) {
        Some((period, count)) if tenths < TENTHS => Rate::new(count, period).burst(burst),
        // A rate whose tenth can't be said is let through as it is.
        _ => rate,
    };
    let algorithm = Algorithm::Gcra;
    LimitKind::Rate { rate, algorithm }
}
