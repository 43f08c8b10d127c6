//! The sliding counter: two counts, the older one weighted by its share still in view.

use std::collections::HashMap;
use std::fmt::Debug;

use tollgate_core::{Arithmetic, SlidingCounter, SlidingCounts, Timestamp};

use super::{Call, Item, Stats, TICKS_PER_SECOND, TOLERANCE, seconds, time};
use crate::tally::Judged;
use crate::tally::Side::{Model, Ours};
use crate::tally::Verdict::{Compared, Excused};

const WEIGHT_NOISE: &str =
    "sliding counter: the exact weight is a whole number or just below, and the double is not";
const WINDOW_NOISE: &str =
    "sliding counter: the double puts a time just before a window's end into the next window";
const RESET_NOISE: &str = "sliding counter: the time to the next step is zero or a whole step within the noise of doubles";

/// The peer's counters by window, and our counts.
pub(super) struct Key {
    item: Item,
    counters: HashMap<u64, u64>,
    limit: SlidingCounter,
    counts: SlidingCounts,
}

/// What the peer reads at one time, in its doubles.
struct View {
    index: u64,
    previous_index: u64,
    previous: u64,
    previous_left: f64,
    current: u64,
    current_left: f64,
    weighted: f64,
}

impl super::Key for Key {
    fn new(item: Item) -> Self {
        Self {
            item,
            counters: HashMap::new(),
            limit: SlidingCounter::new(item.rate()).unwrap(),
            counts: SlidingCounts::default(),
        }
    }

    fn step(&mut self, t: f64, call: &Call) -> Judged {
        let now = time(t);
        let view = self.view(t);
        let verdict = match call {
            Call::Hit { cost, ok } => {
                let fits = *cost <= self.item.amount
                    && view.weighted.floor() + *cost as f64 <= self.item.amount as f64;
                Model.says("ok", fits, *ok)?;
                if fits {
                    *self.counters.entry(view.index).or_default() += cost;
                }
                let ours = self.limit.decide(&mut self.counts, now, *cost);
                self.judge(t, &view, ours.is_allowed(), *ok)
            }
            Call::Test { cost, ok } => {
                let room = self.item.amount as f64 - *cost as f64 + 1.0;
                Model.says("ok", view.weighted < room, *ok)?;
                let ours = self.limit.earliest(&self.counts, now, *cost);
                self.judge(t, &view, ours == Some(now), *ok)
            }
            Call::Stats(stats) => self.stats(t, &view, stats),
            Call::Clear => {
                self.counters.remove(&view.index);
                self.counters.remove(&view.previous_index);
                self.counts = SlidingCounts::default();
                Ok(Compared)
            }
        };
        if let Ok(Excused(_)) = verdict {
            let view = self.view(t);
            let start = Timestamp::from_nanos(view.index * self.item.ticks());
            self.counts = SlidingCounts {
                start,
                previous: view.previous,
                current: view.current,
            };
        }
        verdict
    }
}

impl Key {
    fn view(&self, t: f64) -> View {
        let window = self.item.seconds();
        let (index, previous_index) = ((t / window) as u64, ((t - window) / window) as u64);
        let count = |index| self.counters.get(&index).copied().unwrap_or(0);
        let (previous, current) = (count(previous_index), count(index));
        let previous_left = if previous == 0 {
            0.0
        } else {
            (1.0 - (((t - window) / window) % 1.0)) * window
        };
        View {
            index,
            previous_index,
            previous,
            previous_left,
            current,
            current_left: (1.0 - ((t / window) % 1.0)) * window + window,
            weighted: previous as f64 * previous_left / window + current as f64,
        }
    }

    /// A difference is excused where the peer's doubles differ from exact arithmetic on the peer's
    /// own counts.
    fn judge<T: PartialEq + Debug>(&self, t: f64, view: &View, ours: T, recorded: T) -> Judged {
        if ours == recorded {
            return Ok(Compared);
        }
        let (now, window) = (time(t).as_nanos(), self.item.ticks());
        if now / window != view.index || now / window != view.previous_index + 1 {
            return Ok(Excused(WINDOW_NOISE));
        }
        let left = u128::from(window - now % window);
        let exact = u128::from(view.previous) * left / u128::from(window);
        let floor = view.weighted.floor() as u128;
        let rounded = exact + u128::from(view.current) != floor
            && (view.weighted - view.weighted.round()).abs() <= TOLERANCE;
        if !rounded {
            Ours.says("answer", ours, recorded)?;
        }
        Ok(Excused(WEIGHT_NOISE))
    }

    fn stats(&self, t: f64, view: &View, stats: &Stats) -> Judged {
        let (now, window) = (time(t), self.item.seconds());
        let used = view.weighted.floor() as u64;
        let left = self.item.amount.saturating_sub(used);
        Model.says("remaining", left, stats.remaining)?;
        let mut reset_in = f64::INFINITY;
        if view.previous > 0 {
            reset_in = view.previous_left % (window / view.previous as f64);
        }
        if view.current > 0 {
            reset_in = reset_in.min(view.current_left % window);
        }
        let reset = t + if reset_in.is_finite() { reset_in } else { 0.0 };
        Model.says("reset", reset, stats.reset)?;

        let free = self.limit.remaining(&self.counts, now);
        if free != stats.remaining {
            return self.judge(t, view, free, stats.remaining);
        }
        let (ours, at_step) = self.reset_from_counts(now);
        let near = Ours.says_nearly("reset", ours, stats.reset, TOLERANCE);
        if near.is_err() && at_step {
            return Ok(Excused(RESET_NOISE));
        }
        near.map(|()| Compared)
    }

    /// The peer's reset, which is the next time that one of the two counts steps down, from our
    /// counts in exact arithmetic; and whether a step lies here within the tolerance.
    fn reset_from_counts(&self, now: Timestamp) -> (f64, bool) {
        let counts = self.limit.rolled_to(&self.counts, now);
        let window = u128::from(self.item.ticks());
        let left = window - u128::from(now.as_nanos()) % window;
        let second = TICKS_PER_SECOND as f64;
        let mut reset_in = f64::INFINITY;
        let mut at_step = false;
        let mut step = |passes_in: f64, every: f64| {
            at_step |= passes_in.min(every - passes_in) <= TOLERANCE;
            reset_in = reset_in.min(passes_in);
        };
        if counts.previous > 0 {
            let previous = u128::from(counts.previous);
            let passes_in = (left * previous % window) as f64 / counts.previous as f64;
            let every = self.item.seconds() / counts.previous as f64;
            step(passes_in / second, every);
        }
        if counts.current > 0 {
            step((left % window) as f64 / second, self.item.seconds());
        }
        let reset_in = if reset_in.is_finite() { reset_in } else { 0.0 };
        (seconds(now) + reset_in, at_step)
    }
}
