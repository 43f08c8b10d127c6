//! The oracles of the three window algorithms: sums over the list of hits.

use tollgate_core::{Rate, Timestamp, WindowAlignment};

use super::{Hit, Oracle, as_count};

/// The common part of the three: the hits, and the count of a window.
#[derive(Clone, Debug)]
struct HitHistory {
    unlimited: bool,
    count: u64,
    /// The window's length in nanoseconds.
    length: u64,
    hits: Vec<Hit>,
}

impl HitHistory {
    fn new(rate: Rate) -> Self {
        let period = rate.period().map_or(1_000_000_000, |p| p.as_nanos());
        Self {
            unlimited: rate.is_unlimited(),
            count: rate.count(),
            length: u64::try_from(period).unwrap_or(u64::MAX),
            hits: Vec::new(),
        }
    }

    fn latest(&self) -> Timestamp {
        self.hits.last().map_or(Timestamp::ZERO, |hit| hit.at)
    }

    /// Adds a hit, no earlier than the latest.
    fn push(&mut self, at: Timestamp, cost: u64) {
        if !self.unlimited {
            let at = at.max(self.latest());
            self.hits.push(Hit { at, cost });
        }
    }

    /// The sum of the hits for which `picks` is true.
    fn sum_matching(&self, picks: impl Fn(Timestamp) -> bool) -> u128 {
        let picked = self.hits.iter().filter(|hit| picks(hit.at));
        picked.map(|hit| u128::from(hit.cost)).sum()
    }

    /// The remaining room, if `used` is taken.
    fn remaining_room(&self, used: u128) -> u64 {
        as_count(u128::from(self.count).saturating_sub(used))
    }
}

/// This many nanoseconds later, unless time ends before.
fn after(time: Timestamp, nanos: u64) -> Option<Timestamp> {
    let nanos = time.as_nanos().checked_add(nanos)?;
    Some(Timestamp::from_nanos(nanos))
}

/// At most `count` in each window. Windows begin at boundaries or at the first hit.
#[derive(Clone, Debug)]
pub struct FixedOracle {
    history: HitHistory,
    align: WindowAlignment,
}

impl FixedOracle {
    /// No hit yet.
    pub fn new(rate: Rate, align: WindowAlignment) -> Self {
        let history = HitHistory::new(rate);
        Self { history, align }
    }

    /// The window that contains `time`, as its first time and the first time after it.
    fn window_of(&self, time: Timestamp) -> (Timestamp, Option<Timestamp>) {
        let length = self.history.length;
        match self.align {
            WindowAlignment::Boundary(boundary) => {
                let first = Timestamp::from_nanos(boundary.as_nanos() % length);
                if time < first {
                    return (Timestamp::ZERO, Some(first));
                }
                let whole = time.nanos_since(first) / length;
                let start = first.plus_nanos(whole * length);
                (start, after(start, length))
            }
            WindowAlignment::FirstHit => {
                let mut start = None;
                for hit in &self.history.hits {
                    if start.is_none_or(|start| hit.at.nanos_since(start) >= length) {
                        start = Some(hit.at);
                    }
                }
                let open = start.filter(|start| time.nanos_since(*start) < length);
                let start = open.unwrap_or(time);
                (start, after(start, length))
            }
        }
    }

    fn room(&self, now: Timestamp) -> u64 {
        let (start, end) = self.window_of(now.max(self.history.latest()));
        let used = |at| at >= start && end.is_none_or(|end| at < end);
        self.history.remaining_room(self.history.sum_matching(used))
    }
}

impl Oracle for FixedOracle {
    fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.history.unlimited {
            return Some(now);
        }
        if cost > self.history.count {
            return None;
        }
        if cost <= self.room(now) {
            return Some(now);
        }
        self.window_of(now.max(self.history.latest())).1
    }

    fn remaining(&self, now: Timestamp) -> u64 {
        if self.history.unlimited {
            return u64::MAX;
        }
        self.room(now)
    }

    fn record(&mut self, now: Timestamp, cost: u64) {
        self.history.push(now, cost);
    }
}

/// At most `count` in any `(t − length, t]`.
#[derive(Clone, Debug)]
pub struct LogOracle {
    history: HitHistory,
}

impl LogOracle {
    /// No hit yet.
    pub fn new(rate: Rate) -> Self {
        let history = HitHistory::new(rate);
        Self { history }
    }

    fn room(&self, now: Timestamp) -> u64 {
        let now = now.max(self.history.latest());
        let in_view = |at| now.nanos_since(at) < self.history.length;
        self.history
            .remaining_room(self.history.sum_matching(in_view))
    }
}

impl Oracle for LogOracle {
    fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.history.unlimited || cost <= self.room(now) {
            return Some(now);
        }
        if cost > self.history.count {
            return None;
        }
        // Room appears only when a hit leaves the window, and the hits are in order of time.
        let slides_out = |hit: &Hit| after(hit.at, self.history.length);
        let mut times = self.history.hits.iter().filter_map(slides_out);
        times.find(|at| *at > now && cost <= self.room(*at))
    }

    fn remaining(&self, now: Timestamp) -> u64 {
        if self.history.unlimited {
            return u64::MAX;
        }
        self.room(now)
    }

    fn record(&mut self, now: Timestamp, cost: u64) {
        self.history.push(now, cost);
    }
}

/// `booked_until(previous · share in view) + current + cost` at most the allowance.
#[derive(Clone, Debug)]
pub struct CounterOracle {
    history: HitHistory,
    burst: u64,
}

impl CounterOracle {
    /// No hit yet.
    pub fn new(rate: Rate) -> Self {
        let history = HitHistory::new(rate);
        let burst = if rate.is_zero() { 0 } else { rate.burst_size() };
        Self { history, burst }
    }

    /// The number of the aligned window that contains `time`.
    fn window_of(&self, time: Timestamp) -> u64 {
        time.as_nanos() / self.history.length
    }

    /// A time before the latest hit's window counts as that window's start.
    fn effective(&self, now: Timestamp) -> Timestamp {
        let start = self.window_of(self.history.latest()) * self.history.length;
        now.max(Timestamp::from_nanos(start))
    }

    fn room(&self, now: Timestamp) -> u64 {
        let now = self.effective(now);
        let (this, length) = (self.window_of(now), u128::from(self.history.length));
        let current = self.history.sum_matching(|at| self.window_of(at) == this);
        let previous = self
            .history
            .sum_matching(|at| self.window_of(at) + 1 == this);
        let in_view = length - u128::from(now.as_nanos()) % length;
        let estimate = previous * in_view / length + current;
        let count = u128::from(self.history.count);
        let lent = match count.checked_sub(previous) {
            Some(quiet) if count > 0 => (u128::from(self.burst) - count) * quiet / count,
            _ => 0,
        };
        as_count((count + lent).saturating_sub(estimate))
    }

    /// The first time in `from..=to`, within one window, at which the cost passes. Within a window the estimate
    /// only falls, so a binary search finds it.
    fn search(&self, from: Timestamp, to: Timestamp, cost: u64) -> Option<Timestamp> {
        let passes = |nanos| cost <= self.room(Timestamp::from_nanos(nanos));
        let (mut low, mut high) = (from.as_nanos(), to.as_nanos());
        if !passes(high) {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if passes(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(Timestamp::from_nanos(low))
    }
}

impl Oracle for CounterOracle {
    fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.history.unlimited || cost == 0 {
            return Some(now);
        }
        if cost > self.burst {
            return None;
        }
        let from = self.effective(now);
        if cost <= self.room(from) {
            return Some(now);
        }
        // This window, the next, and the first time of the one after, when nothing is in view.
        let mut from = from;
        for _ in 0..3 {
            let past = from.as_nanos() % self.history.length;
            let to = from.plus_nanos(self.history.length - past - 1);
            let found = self.search(from, to, cost);
            if found.is_some() {
                return found;
            }
            from = after(to, 1)?;
        }
        None
    }

    fn remaining(&self, now: Timestamp) -> u64 {
        if self.history.unlimited {
            return u64::MAX;
        }
        self.room(now)
    }

    fn record(&mut self, now: Timestamp, cost: u64) {
        // The list stays in order of time; within a window that changes no sum.
        self.history.push(self.effective(now), cost);
    }
}
