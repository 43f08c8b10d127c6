//! What happens when the timer of a key rings, and what else the driver asks of the table.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use tollgate::Timestamp;

use super::{KEPT, KeyFired, Table, index};
use crate::debounce::Fired;
use crate::timeline::{Edge, Rang};
use crate::work::Store;

impl<K, T> Store for Table<K, T>
where
    K: Hash + Eq + Clone + Send + 'static,
    T: Send + 'static,
{
    type Job = KeyFired<K, T>;
    type Outcome = ();
    type Rest = Box<Self>;

    fn due(&self) -> Option<Timestamp> {
        let not_before = self.spacing.not_before();
        if !self.order.is_empty() {
            return Some(not_before);
        }
        let Reverse((at, ..)) = self.timers.peek()?;
        Some((*at).max(not_before))
    }

    fn take(&mut self, now: Timestamp) -> Option<KeyFired<K, T>> {
        if now < self.spacing.not_before() {
            return None;
        }
        if let Some(key) = self.order.pop_front() {
            let fired = self.ready.remove(&key)?;
            if self.order.is_empty() && self.ready.capacity() > KEPT {
                // A burst of keys is over, and its memory is freed.
                (self.order, self.ready) = (VecDeque::new(), HashMap::default());
            }
            self.spacing.fired(now);
            return Some((key, fired));
        }
        while let Some(Reverse((at, slot, stamp))) = self.timers.peek().copied() {
            if at > now {
                return None;
            }
            self.timers.pop();
            let times = self.times;
            let place = self.slots.get_mut(index(slot));
            let place = place.filter(|place| place.stamp == stamp);
            let Some(entry) = place.and_then(|place| place.entry.as_mut()) else {
                self.stale = self.stale.saturating_sub(1);
                continue;
            };
            let Some(timer) = entry.line.timer() else {
                // It only lasted until its last firing doesn't count any more.
                let until = entry.line.over(&times);
                self.forget_or_keep(slot, stamp, until, now);
                continue;
            };
            if timer > now {
                self.push((timer, slot, stamp));
                continue;
            }
            if entry.line.ring(&times, now) == Rang::Again {
                let again = entry.line.timer().unwrap_or(now);
                self.push((again, slot, stamp));
                continue;
            }
            if let Some(fired) = self.rang(slot, stamp, now) {
                self.spacing.fired(now);
                return Some(fired);
            }
        }
        None
    }

    fn defer(&mut self, (key, fired): KeyFired<K, T>) {
        self.spacing.put_off();
        self.put_off(key, fired);
    }

    fn ended(&mut self, _now: Timestamp, _outcome: Option<()>) {}

    fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        self.spacing.set_back(from, to);
        let entries = self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut());
        entries.for_each(|entry| entry.line.set_back(from, to));
        // All of them by as much, so their order stays.
        let timers = std::mem::take(&mut self.timers).into_vec().into_iter();
        self.timers = timers
            .map(|Reverse((at, slot, stamp))| Reverse((at.shifted(from, to), slot, stamp)))
            .collect();
    }

    fn flush(&mut self, now: Timestamp) {
        self.flush_all(now);
        self.spacing = self.spacing.reset();
    }

    fn clear(&mut self) -> Box<Self> {
        let fresh = Self::new(self.times, self.spacing, self.capacity, self.when_full);
        Box::new(std::mem::replace(self, fresh))
    }
}

impl<K: Hash + Eq + Clone, T> Table<K, T> {
    /// The wait of an entry whose timer is out of the heap is over.
    fn rang(&mut self, slot: u32, stamp: u32, now: Timestamp) -> Option<KeyFired<K, T>> {
        let times = self.times;
        let entry = self.entry_mut(slot)?;
        let called = entry.line.called().unwrap_or(now);
        let value = entry.value.take();
        let fired = value.filter(|_| times.trailing == Edge::On);
        if fired.is_some() {
            entry.line.fire(now);
        }
        let until = entry.line.over(&times);
        let key = match &fired {
            None => None,
            Some(_) if until > now => Some(entry.key.clone()),
            Some(_) => {
                // Its timer is out of the heap, so there is none that is stale.
                let key = self.remove(slot).map(|entry| entry.key);
                self.stale = self.stale.saturating_sub(1);
                return key.zip(fired.map(|value| Fired { value, called }));
            }
        };
        self.forget_or_keep(slot, stamp, until, now);
        key.zip(fired.map(|value| Fired { value, called }))
    }

    /// An entry without a timer is forgotten, or kept until its last firing doesn't count any more.
    fn forget_or_keep(&mut self, slot: u32, stamp: u32, until: Timestamp, now: Timestamp) {
        if until > now {
            self.push((until, slot, stamp));
        } else {
            drop(self.remove(slot));
            self.stale = self.stale.saturating_sub(1);
        }
    }
}
