//! The moving window: a log of hits.

use std::collections::VecDeque;

use tollgate_core::{Arithmetic, HitLog, SlidingLog};

use super::{Call, Item, Stats, TOLERANCE, seconds, time};
use crate::tally::Judged;
use crate::tally::Side::{Model, Ours};
use crate::tally::Verdict::{Compared, ComparedBut, Excused};

const ONE_WINDOW_OLD: &str =
    "moving window: a hit exactly one window old still blocks a hit at the peer; ours is half-open";
const STALE_RESET: &str =
    "moving window: with only expired hits stored, the peer's reset is left over from the oldest";

/// The peer's log, newest first, and ours.
pub(super) struct Key {
    item: Item,
    hits: VecDeque<f64>,
    limit: SlidingLog,
    log: HitLog,
}

impl super::Key for Key {
    fn new(item: Item) -> Self {
        Self {
            item,
            hits: VecDeque::new(),
            limit: SlidingLog::new(item.rate()).unwrap(),
            log: HitLog::default(),
        }
    }

    fn step(&mut self, t: f64, call: &Call) -> Judged {
        match call {
            Call::Hit { cost, ok } => self.hit(t, *cost, *ok),
            Call::Test { cost, ok } => {
                let fits = self.counted(t) + cost <= self.item.amount;
                Model.says("ok", fits, *ok)?;
                let now = time(t);
                let ours = self.limit.earliest(&self.log, now, *cost);
                Ours.says("ok", ours == Some(now), *ok)?;
                Ok(Compared)
            }
            Call::Stats(stats) => self.stats(t, stats),
            Call::Clear => {
                self.hits.clear();
                self.log = HitLog::default();
                Ok(Compared)
            }
        }
    }
}

impl Key {
    /// How many hits the peer's test and stats count.
    fn counted(&self, t: f64) -> u64 {
        let since = t - self.item.seconds();
        let counted = self.hits.iter().filter(|hit| **hit > since);
        counted.count() as u64
    }

    fn hit(&mut self, t: f64, cost: u64, ok: bool) -> Judged {
        let since = t - self.item.seconds();
        let index = self.item.amount.checked_sub(cost);
        let deciding = index.and_then(|index| self.hits.get(index as usize).copied());
        let fits = index.is_some() && deciding.is_none_or(|hit| hit < since);
        Model.says("ok", fits, ok)?;
        if fits {
            (0..cost).for_each(|_| self.hits.push_front(t));
        }
        let ours = self.limit.decide(&mut self.log, time(t), cost);
        if deciding != Some(since) {
            Ours.says("ok", ours.is_allowed(), ok)?;
        }
        if ours.is_allowed() == ok {
            return Ok(Compared);
        }
        let hits = self.hits.iter().rev().map(|hit| (time(*hit), 1));
        self.log = HitLog::from_entries(hits);
        Ok(Excused(ONE_WINDOW_OLD))
    }

    fn stats(&self, t: f64, stats: &Stats) -> Judged {
        let (now, amount) = (time(t), self.item.amount);
        let counted = self.counted(t);
        let stale = counted == 0 && !self.hits.is_empty();
        let oldest = match counted {
            0 => self.hits.back().copied(),
            _ => self.hits.get(counted as usize - 1).copied(),
        };
        let reset = oldest.unwrap_or(t) + self.item.seconds();
        Model.says("remaining", amount - counted, stats.remaining)?;
        Model.says("reset", reset, stats.reset)?;
        Model.says("stale", stale, stats.stale)?;

        let free = self.limit.remaining(&self.log, now);
        Ours.says("remaining", free, stats.remaining)?;
        if stale {
            return Ok(ComparedBut(STALE_RESET));
        }
        // The oldest hit leaves when one more than is free now would pass. With no hit at all the
        // peer names the end of a window that began now.
        let ours = if free == amount {
            seconds(now) + self.item.seconds()
        } else {
            seconds(self.limit.earliest(&self.log, now, free + 1).unwrap())
        };
        Ours.says_nearly("reset", ours, stats.reset, TOLERANCE)?;
        Ok(Compared)
    }
}
