//! Reserve, then settle: a request whose cost is known only afterwards.

use std::time::Duration;

use tollgate_core::Timestamp;

use super::limit::{Seen, Taken};
use super::{Level, Pass, Refusal, Stack, Step, Worst, take_all};

/// What a request holds of all its limits until its real cost is known.
///
/// [`settle`](Self::settle) says what was spent: levels that were given an
/// [`estimate`](Level::estimate) get the rest back, or owe what was underestimated, up to a full
/// bucket; levels with a plain cost keep it. A hold that is dropped has spent nothing, and one that
/// is settled after its time, all of it.
///
/// What is held doesn't drain: however long a hold lives, what it gives back was never lent to
/// anyone, and the limit's bound holds in every span of time. A `Limiter` with a token bucket or
/// leaky bucket and an `ExactKeyedLimiter` keep to that exactly. GCRA in one word, a `Limiter` by
/// default or a key of a `KeyedLimiter`, has no room to keep track: an estimate is charged when it
/// is held, and comes back only while nothing was charged after it. Windows and logs give back only
/// to the window or entry that was charged, and quotas to the period.
///
/// Nobody knows when a hold is settled. So a `retry_after` counts on what is out to come back in
/// time, and a booking that had to act on it is refused at once. A key that finds no room in its
/// table is held from the bucket that such keys share, as one word does; one that has room keeps it
/// while something of it is out, and where [`AtCap::EvictNearestIdle`](crate::AtCap) says so is
/// evicted after all others, with what it holds.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Algorithm, ExactKeyedLimiter, Level, Rate, Stack, clock::Manual};
///
/// let clock = Manual::new();
/// let tokens = ExactKeyedLimiter::builder(Rate::per_minute(10_000), 1_000)
///     .algorithm(Algorithm::TokenBucket)
///     .clock(clock.clone())
///     .build()?;
/// let stack = Stack::new();
/// let acme = tokens.key("acme");
/// let hold = stack
///     .hold(&[Level::new("tokens", &acme).estimate(4_000)], Duration::from_secs(60))
///     .expect("a full bucket");
/// assert_eq!(tokens.peek("acme").remaining, 6_000);
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(tokens.peek("acme").remaining, 6_000); // what is out doesn't drain
/// hold.settle(1_500);
/// assert_eq!(tokens.peek("acme").remaining, 8_500);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a hold that is dropped gives everything back"]
pub struct Hold<'a> {
    parts: Vec<Part<'a>>,
}

/// What one level holds.
#[derive(Debug)]
struct Part<'a> {
    level: Level<'a>,
    until: Timestamp,
    taken: Option<Taken>,
}

impl<'a> Hold<'a> {
    /// The request is done and cost so much, at the levels that were given an estimate.
    pub fn settle(mut self, spent: u64) {
        self.finish(|level| if level.estimated { spent } else { level.cost });
    }

    /// The request passes at the costs that are held: nothing is settled later. The slots among them are
    /// held by what this returns, while it runs.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tollgate::{ConcurrencyLimiter, Level, Limiter, Rate, Stack};
    ///
    /// let (rate, slots) = (Limiter::new(Rate::per_hour(9)), Arc::new(ConcurrencyLimiter::new(1)));
    /// let (levels, minute) = ([Level::new("rate", &rate), Level::new("slots", &slots)], Duration::from_secs(60));
    /// let hold = Stack::new().hold(&levels, minute).expect("room");
    /// let pass = hold.keep();
    /// assert_eq!((rate.peek().remaining, slots.available()), (8, 0));
    /// drop(pass);
    /// assert_eq!((rate.peek().remaining, slots.available()), (8, 1));
    /// ```
    pub fn keep(mut self) -> Pass {
        let mut pass = Pass::default();
        for part in &mut self.parts {
            if let Some(Taken::Slot(_)) = part.taken {
                part.taken
                    .take()
                    .into_iter()
                    .for_each(|slot| pass.keep(slot));
            }
        }
        self.finish(|level| level.cost);
        pass
    }

    /// The request never happened: everything comes back, as when this is dropped.
    pub fn cancel(self) {}

    /// In the reverse of the order of charging, so that what was charged last comes back first.
    fn finish(&mut self, spent: impl Fn(&Level<'a>) -> u64) {
        let mut seen = Seen::default();
        for part in &mut self.parts {
            let Some(taken) = part.taken.take() else {
                continue;
            };
            let level = &part.level;
            let now = level.limit.now(&mut seen);
            // A slot is held for as long as the request runs: it has no estimate that could be over.
            let over = now >= part.until && !matches!(taken, Taken::Slot(_));
            let spent = if over { level.cost } else { spent(level) };
            level.limit.settle(now, taken, spent);
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.finish(|_| 0);
    }
}

impl Stack {
    /// Holds the costs of all levels, or of none, until the hold is settled, and at most for
    /// `longest`: after that all of it counts as spent.
    ///
    /// # Errors
    /// The limit that refused; nothing was charged.
    pub fn hold<'a>(
        &self,
        levels: &[Level<'a>],
        longest: Duration,
    ) -> Result<Hold<'a>, Refusal<'a>> {
        let mut seen = Seen::default();
        let mut worst = Worst::default();
        for (index, level) in levels.iter().enumerate() {
            let now = level.limit.now(&mut seen);
            worst.meet(index, level, level.limit.ask(now, level.cost));
        }
        if let Some(refusal) = worst.refusal() {
            return Err(refusal);
        }
        let mut parts = Vec::with_capacity(levels.len());
        let take =
            |level: &Level<'a>, now: Timestamp| level.limit.hold(now, level.cost, now + longest);
        let keep = &mut |level: &Level<'a>, now: Timestamp, taken| {
            parts.push(Part {
                level: *level,
                until: now + longest,
                taken: Some(taken),
            });
        };
        match take_all(levels, Step::first(levels), &mut seen, &take, keep) {
            Ok(()) => Ok(Hold { parts }),
            Err(refusal) => {
                self.lose();
                Err(refusal)
            }
        }
    }
}
