//! The fixed window, which begins at the first hit of a key.

use tollgate_core::{Algorithm, Align, FixedWindow, Timestamp, Window};

use super::{Call, Item, TOLERANCE, seconds, time};
use crate::tally::Verdict::{self, Compared, ComparedThenSet};

const REFUSED_COUNTED: &str = "fixed window: the peer counts refused hits; ours only what passed";

/// The peer's counter and ours.
pub(super) struct Key {
    item: Item,
    count: u64,
    expires: f64,
    limit: FixedWindow,
    window: Window,
}

impl super::Key for Key {
    fn new(item: Item) -> Self {
        Self {
            item,
            count: 0,
            expires: 0.0,
            limit: FixedWindow::new(item.rate())
                .unwrap()
                .align(Align::FirstHit),
            window: Window::default(),
        }
    }

    fn step(&mut self, t: f64, call: &Call) -> Verdict {
        let now = time(t);
        if self.expires <= t {
            (self.count, self.expires) = (0, t);
        }
        match call {
            Call::Hit { cost, ok } => return self.hit(t, *cost, *ok),
            Call::Test { cost, ok } => {
                let fits = self.count + cost <= self.item.amount;
                assert_eq!(fits, *ok, "the peer's model");
                let ours = self.limit.earliest(&self.window, now, *cost);
                assert_eq!(ours == Some(now), *ok);
            }
            Call::Stats(stats) => {
                let left = self.item.amount.saturating_sub(self.count);
                assert_eq!(left, stats.remaining, "the peer's model");
                assert_eq!(self.expires, stats.reset, "the peer's model");
                assert_eq!(self.limit.remaining(&self.window, now), stats.remaining);
                // With no window open the peer says "now".
                let reset = seconds(self.limit.idle_at(&self.window).max(now));
                assert!((reset - stats.reset).abs() <= TOLERANCE, "{reset}");
            }
            Call::Clear => {
                (self.count, self.expires) = (0, t);
                self.window = Window::default();
            }
        }
        Compared
    }
}

impl Key {
    fn hit(&mut self, t: f64, cost: u64, ok: bool) -> Verdict {
        if self.count == 0 {
            self.expires = t + self.item.seconds();
        }
        self.count += cost;
        assert_eq!(self.count <= self.item.amount, ok, "the peer's model");
        let ours = self.limit.decide(&mut self.window, time(t), cost);
        assert_eq!(ours.is_allowed(), ok, "{ours:?}");
        if ok {
            return Compared;
        }
        let start = time(self.expires).as_nanos() - self.item.ticks();
        self.window = Window::from_parts(Timestamp::from_nanos(start), self.count);
        ComparedThenSet(REFUSED_COUNTED)
    }
}
