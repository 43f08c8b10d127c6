//! Rules that warm up: after a start their rates grow, tenth by tenth, to what they are.
//!
//! Beside each rate of such a rule stands a gate, a limit of this process alone that is a part of the rate. The rule's
//! own counters know nothing of it, so that a node which has just started takes nothing from the others of a fleet.

use std::time::Duration;

use tollgate::{Algorithm, LimitError, Rate, Timestamp};

use super::counters::{Counters, Sharing};
use crate::limits::{CoreForm, Limit, LimitKind};
use crate::policy::{Counting, Limits, OnStoreFailure};

/// What the name of a gate's counter begins with.
const NAME: &str = "warm-up";
/// The whole, in tenths.
const TENTHS: u32 = 10;

/// The gates of a rule.
#[derive(Debug)]
pub(crate) struct WarmUp {
    since: Timestamp,
    length: Duration,
    /// By the tenths that are let through: the first is one.
    steps: Box<[Box<[Limit]>]>,
}

/// One rate, and what it is at each step.
pub(crate) struct Gate(Vec<LimitKind>);

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

impl WarmUp {
    /// The gates of a rule that came into force at this time.
    pub(crate) fn new(
        (rule, limits): (&str, &Limits),
        (since, length): (Timestamp, Duration),
        counters: &mut Counters,
    ) -> Result<Self, LimitError> {
        let rates = limits.rates.iter();
        // A stock that is had once has no rate to grow.
        let rates = rates.filter(|rate| !rate.is_unlimited() && !rate.is_zero());
        let gates: Vec<_> = rates
            .map(|rate| Gate::new(*rate))
            .collect::<Result<_, _>>()?;
        let whole: Vec<_> = gates
            .iter()
            .filter_map(|gate| gate.0.last().cloned())
            .collect();
        let placed = counters.place(&format!("{NAME}/{rule}"), Sharing::Alone, &whole)?;
        let steps = (0..9).map(|step| {
            let own = placed.iter().zip(&gates);
            let own = own.map(|(limit, Gate(kinds))| {
                let mut limit = limit.with_kind(kinds[step].clone())?;
                limit.counting = Counting::Local;
                limit.on_store_failure = OnStoreFailure::Local;
                // What it refuses may pass sooner, at the next step.
                limit.lasting = false;
                Ok(limit)
            });
            own.collect::<Result<_, LimitError>>()
        });
        Ok(Self {
            since,
            length,
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    /// When it began.
    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }

    /// The gates that stand at this time: none once it is warm.
    #[inline]
    pub(crate) fn gates(&self, now: Timestamp) -> &[Limit] {
        let passed = now - self.since;
        if passed >= self.length {
            return &[];
        }
        let step = passed.as_nanos() * 9 / self.length.as_nanos().max(1);
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        self.steps.get(step).map_or(&[], |gates| gates)
    }
}

/// Whether a limit is a gate, by the name of its counter.
pub(crate) fn is_gate(limit: &Limit) -> bool {
    let name = limit.counter().name.strip_prefix(NAME);
    name.is_some_and(|rest| rest.starts_with('/'))
}
