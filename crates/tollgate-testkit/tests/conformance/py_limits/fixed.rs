//! The fixed window, which begins at the first hit of a key.

use tollgate_core::{Arithmetic, FixedWindow, Timestamp, WindowAlignment, WindowCount};

use super::{Call, Item, TOLERANCE, seconds, time};
use crate::tally::Judged;
use crate::tally::Side::{Model, Ours};
use crate::tally::Verdict::{Compared, ComparedThenSet};

const REFUSED_COUNTED: &str = "fixed window: the peer counts refused hits; ours only what passed";

/// The peer's counter and ours.
pub(super) struct Key {
    item: Item,
    count: u64,
    expires: f64,
    limit: FixedWindow,
    window: WindowCount,
}

impl super::Key for Key {
    fn new(item: Item) -> Self {
        Self {
            item,
            count: 0,
            expires: 0.0,
            limit: FixedWindow::new(item.rate())
                .unwrap()
                .with_alignment(WindowAlignment::FirstHit),
            window: WindowCount::default(),
        }
    }

    fn step(&mut self, t: f64, call: &Call) -> Judged {
        let now = time(t);
        if self.expires <= t {
            (self.count, self.expires) = (0, t);
        }
        match call {
            Call::Hit { cost, ok } => return self.hit(t, *cost, *ok),
            Call::Test { cost, ok } => {
                let fits = self.count + cost <= self.item.amount;
                Model.says("ok", fits, *ok)?;
                let ours = self.limit.earliest(&self.window, now, *cost);
                Ours.says("ok", ours == Some(now), *ok)?;
            }
            Call::Stats(stats) => {
                let left = self.item.amount.saturating_sub(self.count);
                Model.says("remaining", left, stats.remaining)?;
                Model.says("reset", self.expires, stats.reset)?;
                let left = self.limit.remaining(&self.window, now);
                Ours.says("remaining", left, stats.remaining)?;
                // With no window open the peer says "now".
                let reset = seconds(self.limit.idle_at(&self.window).max(now));
                Ours.says_nearly("reset", reset, stats.reset, TOLERANCE)?;
            }
            Call::Clear => {
                (self.count, self.expires) = (0, t);
                self.window = WindowCount::default();
            }
        }
        Ok(Compared)
    }
}

impl Key {
    fn hit(&mut self, t: f64, cost: u64, ok: bool) -> Judged {
        if self.count == 0 {
            self.expires = t + self.item.seconds();
        }
        self.count += cost;
        Model.says("ok", self.count <= self.item.amount, ok)?;
        let ours = self.limit.decide(&mut self.window, time(t), cost);
        Ours.says("ok", ours.is_allowed(), ok)?;
        if ok {
            return Ok(Compared);
        }
        let start = time(self.expires).as_nanos() - self.item.ticks();
        self.window = WindowCount {
            start: Timestamp::from_nanos(start),
            count: self.count,
        };
        Ok(ComparedThenSet(REFUSED_COUNTED))
    }
}
