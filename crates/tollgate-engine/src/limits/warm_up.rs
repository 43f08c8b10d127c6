//! A rate that warms up: the part of it that each step lets through.

use tollgate::{Algorithm, LimitError, Rate};

use super::{CoreForm, LimitKind};

/// The whole, in tenths.
pub(crate) const TENTHS: u32 = 10;

/// One rate, and what it is at each step.
pub(crate) struct Gate(pub(crate) Vec<LimitKind>);

impl Gate {
    pub(crate) fn new(rate: Rate) -> Result<Self, LimitError> {
        let kind = |tenths| LimitKind::Rate {
            rate: part(rate, tenths),
            algorithm: Algorithm::Gcra,
        };
        let kinds: Vec<_> = (1..=TENTHS).map(kind).collect();
        for kind in &kinds {
            CoreForm::new(kind)?;
        }
        Ok(Self(kinds))
    }
}

/// So many tenths of a rate, exactly; of its burst, rounded up.
fn part(rate: Rate, tenths: u32) -> Rate {
    let longer = rate.period().and_then(|period| period.checked_mul(TENTHS));
    let more = rate.count().checked_mul(u64::from(tenths));
    let burst = u128::from(rate.burst_size()) * u128::from(tenths);
    let burst = u64::try_from(burst.div_ceil(u128::from(TENTHS))).unwrap_or(u64::MAX);
    match longer.zip(more) {
        Some((period, count)) if tenths < TENTHS => Rate::new(count, period).burst(burst),
        // A rate whose tenth can't be said is let through as it is.
        _ => rate,
    }
}
