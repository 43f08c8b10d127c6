//! Requests that wait for their turn: a line for each key of a limit that refused some, in this process.
//!
//! Who stands in line holds nothing. The first asks for its whole request when there may be room, and whoever
//! comes later stands behind: nobody passes a line. Other nodes have lines of their own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::{Algorithm, Decision, Outcome, Timestamp};

use crate::backend::{Check, LimitKind};

/// Lines whose lock is shared.
const SHARDS: usize = 16;

/// Who stands behind one that asks just now, of a limit that has nothing at present, comes back after so long at
/// least.
pub(super) const SOON: Duration = Duration::from_millis(10);

/// Whose line: a limit, and the key that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spot {
    limit: u64,
    fingerprint: [u64; 2],
}

/// What a request asks of the limit that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) spot: Spot,
    cost: u64,
    /// How long one unit takes to come; zero if that isn't known.
    pace: Duration,
}

impl Demand {
    pub(crate) fn of(check: &Check<'_>) -> Self {
        let pace = match check.limit.kind() {
            LimitKind::Rate {
                rate,
                algorithm: Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket,
            } if !rate.is_zero() => rate.period().map_or(Duration::ZERO, |period| {
                let nanos = period.as_nanos() / u128::from(rate.count().max(1));
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }),
            _ => Duration::ZERO,
        };
        Self {
            spot: Spot {
                limit: check.limit.id,
                fingerprint: check.key.fingerprint(),
            },
            cost: check.cost,
            pace,
        }
    }

    /// How long so many units take to come.
    fn takes(&self, units: u64) -> Duration {
        let nanos = self.pace.as_nanos().saturating_mul(u128::from(units));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// All lines of an engine.
pub(crate) struct Turns {
    /// How many stand in all lines. Read (relaxed) by those who might pass one: who is late is no worse off than
    /// one who came just before.
    waiting: AtomicUsize,
    /// Tells who stands anywhere from all others.
    next: AtomicU64,
    shards: [Mutex<HashMap<Spot, Line, FixedState>>; SHARDS],
}

/// Those who wait for one key, in the order in which they came.
struct Line {
    places: BTreeMap<u64, Waiter>,
    /// What all of them ask for.
    cost: u64,
    /// When the first asks again.
    asks_at: Timestamp,
    /// What it was told last.
    said: Decision,
}

struct Waiter {
    cost: u64,
    waker: Option<Waker>,
}

impl Line {
    fn first(&self) -> Option<u64> {
        self.places.keys().next().copied()
    }

    /// Lets the first look again.
    fn wake(&mut self) -> Option<Waker> {
        let mut first = self.places.first_entry()?;
        first.get_mut().waker.take()
    }
}

/// A place in a line, left when this is dropped.
pub(crate) struct Standing<'a> {
    turns: &'a Turns,
    demand: Demand,
    number: u64,
}

/// What one who stands in line is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It is the first, and asks at this time.
    First(Timestamp),
    Behind,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Whether anybody waits.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn shard(&self, spot: Spot) -> MutexGuard<'_, HashMap<Spot, Line, FixedState>> {
        let number = usize::try_from(spot.fingerprint[0] % SHARDS as u64).unwrap_or(0);
        self.shards[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What one is told who would stand at the end of a line; none if there is no line.
    pub(crate) fn behind(&self, demand: &Demand, now: Timestamp) -> Option<Decision> {
        let shard = self.shard(demand.spot);
        let line = shard.get(&demand.spot)?;
        let first = line.places.values().next().map_or(0, |first| first.cost);
        let ahead = line.cost.saturating_sub(first).saturating_add(demand.cost);
        let wait = (line.asks_at - now).saturating_add(demand.takes(ahead));
        let mut said = line.said;
        let wait = match said.retry_after {
            Duration::ZERO => wait,
            _ => wait.max(SOON),
        };
        (said.outcome, said.retry_after) = (Outcome::Denied, wait);
        Some(said)
    }

    /// Stands at the end of a line, unless too many wait. The first of a line was told this, and asks again at
    /// that time.
    pub(crate) fn join(
        &self,
        demand: Demand,
        (said, asks_at): (Decision, Timestamp),
        most: usize,
    ) -> Option<Standing<'_>> {
        let waiting = self
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
                (waiting < most).then_some(waiting + 1)
            });
        waiting.ok()?;
        let mut shard = self.shard(demand.spot);
        let line = shard.entry(demand.spot).or_insert_with(|| Line {
            places: BTreeMap::new(),
            cost: 0,
            asks_at,
            said,
        });
        // Under the lock, so that they stand in this order.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        line.cost = line.cost.saturating_add(demand.cost);
        let cost = demand.cost;
        line.places.insert(number, Waiter { cost, waker: None });
        Some(Standing {
            turns: self,
            demand,
            number,
        })
    }

    /// Something that was held may be free: the first of a line asks at once.
    pub(crate) fn poke(&self, spot: Spot) {
        if !self.is_any() {
            return;
        }
        let mut shard = self.shard(spot);
        let woken = shard.get_mut(&spot).and_then(|line| {
            line.asks_at = Timestamp::ZERO;
            line.wake()
        });
        drop(shard);
        woken.into_iter().for_each(Waker::wake);
    }

    /// All may be different: the first of each line asks at once.
    pub(crate) fn poke_all(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = shard.values_mut();
            let woken: Vec<_> = lines
                .filter_map(|line| {
                    line.asks_at = Timestamp::ZERO;
                    line.wake()
                })
                .collect();
            drop(shard);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Takes one out of a line, and wakes who is first then: when that asks, if it is known.
    fn leave(
        &self,
        spot: Spot,
        number: u64,
        asks_at: impl FnOnce(&Waiter, &Waiter) -> Option<Timestamp>,
    ) {
        let mut shard = self.shard(spot);
        let Some(line) = shard.get_mut(&spot) else {
            return;
        };
        let was_first = line.first() == Some(number);
        let Some(gone) = line.places.remove(&number) else {
            return;
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        line.cost = line.cost.saturating_sub(gone.cost);
        let mut woken = None;
        match line.places.values().next() {
            None => {
                shard.remove(&spot);
            }
            Some(next) if was_first => {
                if let Some(at) = asks_at(&gone, next) {
                    line.asks_at = at;
                }
                woken = line.wake();
            }
            Some(_) => {}
        }
        drop(shard);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Standing<'_> {
    pub(crate) fn spot(&self) -> Spot {
        self.demand.spot
    }

    /// What it is to do; the task is woken when that changes.
    pub(crate) fn look(&self, waker: &Waker) -> Stand {
        let mut shard = self.turns.shard(self.demand.spot);
        let Some(line) = shard.get_mut(&self.demand.spot) else {
            return Stand::First(Timestamp::ZERO);
        };
        if let Some(own) = line.places.get_mut(&self.number)
            && !own.waker.as_ref().is_some_and(|own| own.will_wake(waker))
        {
            own.waker = Some(waker.clone());
        }
        match line.first() == Some(self.number) {
            true => Stand::First(line.asks_at),
            false => Stand::Behind,
        }
    }

    /// It asked, as the first, for what the policy makes of its request now, was told this, and asks again at that
    /// time.
    pub(crate) fn asks_again(&mut self, demand: Demand, said: Decision, asks_at: Timestamp) {
        self.demand = demand;
        if let Some(line) = self
            .turns
            .shard(self.demand.spot)
            .get_mut(&self.demand.spot)
        {
            (line.said, line.asks_at) = (said, asks_at);
        }
    }

    /// How long it would have to stand on, as far as that is known. It leaves.
    pub(crate) fn turn_in(self, now: Timestamp) -> Duration {
        let shard = self.turns.shard(self.demand.spot);
        let line = shard.get(&self.demand.spot);
        line.map_or(Duration::ZERO, |line| {
            let ahead = line.places.range(..=self.number).skip(1);
            let ahead = ahead.map(|(_, waiter)| waiter.cost);
            let ahead = ahead.fold(0, u64::saturating_add);
            (line.asks_at - now).saturating_add(self.demand.takes(ahead))
        })
    }

    /// It passed, with so much left then: who is next asks when there may be enough for it.
    pub(crate) fn passed(self, left: u64, now: Timestamp) {
        let demand = self.demand;
        self.turns.leave(demand.spot, self.number, |_, next| {
            Some(now + demand.takes(next.cost.saturating_sub(left)))
        });
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        // Who asks for as much waits for as long; another asks when that is.
        self.turns
            .leave(self.demand.spot, self.number, |gone, next| {
                (gone.cost != next.cost).then_some(Timestamp::ZERO)
            });
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns")
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
