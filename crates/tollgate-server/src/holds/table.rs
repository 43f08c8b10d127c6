//! The table of what is held: by name, with the times at which something happens by itself, and how what is gone has ended.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_engine::verdict::Permits;

use super::{HowEnded, Id};

/// So long, and of so many, it is known how they ended.
pub(super) const REMEMBERED: Duration = Duration::from_secs(600);
pub(super) const MOST_REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) held: HashMap<Id, VecDeque<Held>>,
    /// When something happens to each by itself, or would have before it was renewed.
    pub(super) ends: BinaryHeap<Reverse<(Instant, Id, u64)>>,
    /// How many hold something. Changed under the lock of the table, and read without it.
    pub(super) count: Arc<AtomicUsize>,
    /// How many are being decided about that have room and no name.
    pub(super) reserved: usize,
    /// Names of those that hold nothing and only remember an answer, from the oldest.
    pub(super) empty: VecDeque<(Id, u64)>,
    /// Names that are being decided about. Each of them has room.
    pub(super) undecided: HashSet<Id>,
    /// How what callers held by a name has ended; and from the first that ended, when that is forgotten.
    pub(super) ended: HashMap<Id, (Ended, Instant)>,
    pub(super) forgotten: VecDeque<(Instant, Id)>,
    /// The number of the next that is held.
    pub(super) next: u64,
}

/// How something ended that was held by a name.
#[derive(Debug)]
pub(super) enum Ended {
    ByCaller(HowEnded),
    /// Its time was over. What it cost may still be said.
    Unsettled(Permits),
}

#[derive(Debug)]
pub(super) struct Held {
    /// Tells it from others of its name: later ones have higher numbers.
    pub(super) number: u64,
    pub(super) permits: Permits,
    pub(super) until: Instant,
    /// What its caller has asked, if it has a name, and was told.
    pub(super) asked: Option<Id>,
    pub(super) answer: Box<[u8]>,
}

impl Held {
    /// When something happens to it by itself: its time ends, or that of an estimate.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let due = self.permits.time_left().map(|left| now + left);
        due.map_or(self.until, |due| due.min(self.until))
    }
}

impl Table {
    /// How many hold something.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many hold something, or have room to.
    pub(super) fn occupied(&self) -> usize {
        self.count() + self.undecided.len() + self.reserved
    }

    /// Ends all whose time is over, and estimates whose time is. What is held without a name is returned, to be dropped once
    /// the lock is free: that may ask a store.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Permits> {
        let mut ended = Vec::new();
        while self.ends.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, name, number))) = self.ends.pop() else {
                break;
            };
            let own = self.held.get_mut(&name);
            let Some((place, held)) = own.and_then(|own| {
                let place = own.binary_search_by_key(&number, |held| held.number).ok()?;
                Some((place, own.get_mut(place)?))
            }) else {
                continue;
            };
            if held.until > now {
                held.permits.expire();
                // Nobody can settle late what has no name, so it needs no room any more.
                let is_over = held.asked.is_none() && held.permits.is_over();
                if !is_over {
                    let next = held.next(now).max(now + Duration::from_millis(1));
                    self.ends.push(Reverse((next, name, number)));
                    continue;
                }
            }
            let (is_named, until) = (held.asked.is_some(), held.until);
            let Some(permits) = self.take_at(&name, place) else {
                continue;
            };
            if is_named && !permits.is_empty() {
                // Under the lock: whoever settles it at this moment finds it here or there.
                let rest = permits.end_unsettled();
                self.forget_ended(now);
                self.note_ended(name, Ended::Unsettled(rest), until);
            } else {
                ended.push(permits);
            }
        }
        ended
    }

    /// It is known for a while that something ended so at this time.
    pub(super) fn note_ended(&mut self, name: Id, how: Ended, at: Instant) {
        self.forget_ended(at);
        self.ended.insert(name, (how, at + REMEMBERED));
        self.forgotten.push_back((at + REMEMBERED, name));
    }

    /// How a caller ended what it held by a name, if that isn't long ago.
    pub(super) fn how_ended(&self, name: &Id, now: Instant) -> Option<HowEnded> {
        match self.ended.get(name)? {
            (Ended::ByCaller(how), until) if *until > now => Some(*how),
            _ => None,
        }
    }

    /// What ended by itself and may still be settled.
    pub(super) fn take_unsettled(&mut self, name: &Id, now: Instant) -> Option<Permits> {
        match self.ended.get(name)? {
            (Ended::Unsettled(permits), until) if *until > now && !permits.is_empty() => {}
            _ => return None,
        }
        match self.ended.remove(name)? {
            (Ended::Unsettled(permits), _) => Some(permits),
            _ => None,
        }
    }

    /// Forgets how the oldest ended.
    pub(super) fn forget_ended(&mut self, now: Instant) {
        let is_over = |table: &Self| {
            let (until, _) = table.forgotten.front()?;
            (*until <= now || table.forgotten.len() >= MOST_REMEMBERED).then_some(())
        };
        while is_over(self).is_some() {
            let Some((until, name)) = self.forgotten.pop_front() else {
                break;
            };
            // One that began and ended anew is known for longer.
            if self.ended.get(&name).is_some_and(|(_, own)| *own == until) {
                self.ended.remove(&name);
            }
        }
    }

    /// One that holds nothing is remembered for its answer; of too many of those the oldest is forgotten.
    pub(super) fn remember_empty(&mut self, name: Id, number: u64) {
        if self.empty.len() >= MOST_REMEMBERED
            && let Some((oldest, number)) = self.empty.pop_front()
            && let Some(own) = self.held.get_mut(&oldest)
        {
            own.retain(|held| held.number != number);
            if own.is_empty() {
                self.held.remove(&oldest);
            }
        }
        self.empty.push_back((name, number));
    }

    /// Whoever renews or gives back leaves a time behind: all of them are thrown out once they are many.
    pub(super) fn forget_old_ends(&mut self, now: Instant) {
        if self.ends.len() <= (self.count() + self.empty.len()) * 4 + 64 {
            return;
        }
        let all = self.held.iter().flat_map(|(name, own)| {
            let next = |held: &Held| Reverse((held.next(now), *name, held.number));
            own.iter().map(next)
        });
        self.ends = all.collect();
    }

    pub(super) fn first(&self, name: &Id) -> Option<&Held> {
        self.held.get(name)?.front()
    }

    pub(super) fn take_first(&mut self, name: &Id) -> Option<Permits> {
        self.take_at(name, 0)
    }

    pub(super) fn take_at(&mut self, name: &Id, place: usize) -> Option<Permits> {
        let own = self.held.get_mut(name)?;
        let held = own.remove(place)?;
        if held.permits.is_empty() {
            self.empty.retain(|(_, number)| *number != held.number);
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        if own.is_empty() {
            self.held.remove(name);
        }
        Some(held.permits)
    }
}
