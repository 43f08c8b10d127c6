//! The pending keys, and one heap of all their timers.
//!
//! A key is an entry in a slab, found by an index of four bytes a key. Each entry has at most one timer
//! in the heap. A call changes only the entry: the timer fires at its old time, reads the entry, and is
//! set again. So a key that is called a million times costs one timer. A timer whose key was removed is
//! skipped when it fires, and if such timers are the majority, the heap is cleared of them.

use super::{TooManyKeys, WhenFull};
use crate::debounce::{Firing, FiringSpacing};
use crate::runner::{AfterChange, PendingStore};
use crate::timeline::{CallEffect, CallTimeline, DebounceTiming, Edge, TimerEffect};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use tollgate::Timestamp;

/// A key that fires.
pub(super) type KeyFiring<K, T> = (K, Firing<T>);

/// The time of a timer, and its entry by slot and stamp. It is stale if the slot has another stamp now.
type TimerEntry = (Timestamp, u32, u32);

/// The result of a change, and what to do after it.
type ChangeResult<R, K, T> = (R, AfterChange<KeyFiring<K, T>>);

/// The result of a call: accepted, or denied.
type CallResult<K, T> = Result<ReplacedItem<K, T>, TooManyKeys<K, T>>;

/// What was discarded, to be dropped after the lock is released.
type CancelledKey<K, T> = (Option<KeyEntry<K, T>>, Option<Firing<T>>);

/// What was replaced or discarded, to be dropped after the lock is released.
type ReplacedItem<K, T> = (Option<K>, Option<T>);

/// The result of a wait that ended.
struct EndedWait<K, T> {
    fired: Option<KeyFiring<K, T>>,
    dropped: Option<T>,
    /// How long its entry is needed.
    until: Timestamp,
}

/// All keys of one debouncer.
#[derive(Debug)]
pub struct KeyTable<K, T> {
    times: DebounceTiming,
    spacing: FiringSpacing,
    capacity: usize,
    when_full: WhenFull,
    hasher: RandomState,
    index: HashTable<u32>,
    slots: Vec<KeySlot<K, T>>,
    free: Vec<u32>,
    timers: BinaryHeap<Reverse<TimerEntry>>,
    /// The number of timers whose keys were removed.
    stale_timers: usize,
    /// Keys that have fired and wait for another action to end, in order.
    firing_order: VecDeque<K>,
    waiting_firings: HashMap<K, Firing<T>, RandomState>,
}

#[derive(Debug)]
struct KeySlot<K, T> {
    entry: Option<KeyEntry<K, T>>,
    /// How often the slot was used; timers of an earlier use have another stamp.
    stamp: u32,
}

#[derive(Debug)]
pub(super) struct KeyEntry<K, T> {
    key: K,
    value: Option<T>,
    timeline: CallTimeline,
}

impl<K: Hash + Eq + Clone, T> KeyTable<K, T> {
    pub(super) fn new(times: DebounceTiming, capacity: usize, when_full: WhenFull) -> Self {
        Self {
            times,
            spacing: FiringSpacing::new(times.spacing),
            // Slots have 32-bit numbers.
            capacity: capacity.clamp(1, u32::MAX as usize),
            when_full,
            hasher: RandomState::default(),
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            stale_timers: 0,
            firing_order: VecDeque::new(),
            waiting_firings: HashMap::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn is_pending(&self, key: &K) -> bool {
        let is_waiting = |slot| {
            self.entry(slot)
                .is_some_and(|e| e.timeline.timer().is_some())
        };
        self.find(key).is_some_and(is_waiting) || self.waiting_firings.contains_key(key)
    }

    #[inline]
    pub(super) fn call(
        &mut self,
        key: K,
        value: T,
        now: Timestamp,
    ) -> ChangeResult<CallResult<K, T>, K, T> {
        let Some(slot) = self.find(&key) else {
            return self.insert_call(key, value, now);
        };
        let times = self.times;
        let Some(entry) = self.entry_mut(slot) else {
            return (Ok((Some(key), Some(value))), AfterChange::None);
        };
        match entry.timeline.call(&times, now) {
            CallEffect::Waiting | CallEffect::TimerSet => {
                // Its timer in the heap fires by then at the latest, and is set again.
                let replaced = entry.value.replace(value);
                (Ok((Some(key), replaced)), AfterChange::None)
            }
            CallEffect::Fire => {
                let replaced = entry.value.take();
                let fired = Firing { value, called: now };
                (Ok((None, replaced)), self.fire_or_defer((key, fired), now))
            }
        }
    }

    #[inline(never)]
    fn insert_call(
        &mut self,
        key: K,
        value: T,
        now: Timestamp,
    ) -> ChangeResult<CallResult<K, T>, K, T> {
        let mut evicted = AfterChange::None;
        let is_full = self.index.len() >= self.capacity;
        // A firing that waits for a slow action can't be hurried, and takes memory all the same.
        let is_behind = self.waiting_firings.len() >= self.capacity;
        if is_behind || (is_full && self.when_full == WhenFull::Deny) {
            let capacity = self.capacity;
            let refused = TooManyKeys {
                key,
                value,
                capacity,
            };
            return (Err(refused), AfterChange::None);
        }
        if is_full {
            self.evict_earliest(now);
            evicted = AfterChange::WakeDriver;
        }
        let mut line = CallTimeline::new();
        let called = line.call(&self.times, now);
        let at = line.timer().unwrap_or(now);
        let was_next = self.timers.peek().map(|Reverse((at, ..))| *at);
        if called == CallEffect::Fire {
            self.insert(key.clone(), None, line, at);
            let then = self.fire_or_defer((key, Firing { value, called: now }), now);
            return (Ok((None, None)), then);
        }
        self.insert(key, Some(value), line, at);
        let is_next = was_next.is_none_or(|next| at < next);
        let then = if is_next {
            AfterChange::WakeDriver
        } else {
            evicted
        };
        (Ok((None, None)), then)
    }

    pub(super) fn flush_key(
        &mut self,
        key: &K,
        now: Timestamp,
    ) -> ChangeResult<(bool, Option<T>), K, T> {
        let waiting = self.waiting_firings.remove(key);
        if waiting.is_some() {
            self.firing_order.retain(|other| other != key);
        }
        let flushed = self.find(key).map(|slot| self.flush_slot(slot, now));
        let (was_pending, fired, dropped) = flushed.unwrap_or((false, None, None));
        let was_pending = was_pending || waiting.is_some();
        let fired = fired.or_else(|| waiting.map(|fired| (key.clone(), fired)));
        ((was_pending, dropped), self.spacing.fire_now(fired, now))
    }

    pub(super) fn flush_all(&mut self, now: Timestamp) -> ChangeResult<usize, K, T> {
        let mut flushed = self.waiting_firings.len();
        // In the order in which they were due.
        let mut timers: Vec<TimerEntry> = self.timers.drain().map(|Reverse(timer)| timer).collect();
        timers.sort_unstable();
        self.stale_timers = 0;
        for (at, slot, stamp) in timers {
            if self
                .slots
                .get(slot_index(slot))
                .is_some_and(|s| s.stamp == stamp)
            {
                // Push the timer back before the flush: the flush marks it as stale if its entry is
                // removed.
                self.timers.push(Reverse((at, slot, stamp)));
                let (was_pending, fired, _) = self.flush_slot(slot, now);
                flushed += usize::from(was_pending);
                if let Some((key, fired)) = fired {
                    self.defer_firing(key, fired);
                }
            }
        }
        (flushed, AfterChange::WakeDriver)
    }

    pub(super) fn cancel(&mut self, key: &K) -> ChangeResult<(bool, CancelledKey<K, T>), K, T> {
        let was_pending = self.is_pending(key);
        let ready = self.waiting_firings.remove(key);
        if ready.is_some() {
            self.firing_order.retain(|other| other != key);
        }
        let entry = self.find(key).and_then(|slot| self.remove(slot));
        ((was_pending, (entry, ready)), AfterChange::None)
    }

    /// Fires now, or as soon as the spacing allows.
    fn fire_or_defer(
        &mut self,
        (key, fired): KeyFiring<K, T>,
        now: Timestamp,
    ) -> AfterChange<KeyFiring<K, T>> {
        if now < self.spacing.not_before() || self.waiting_firings.contains_key(&key) {
            self.defer_firing(key, fired);
            return AfterChange::WakeDriver;
        }
        self.spacing.record_firing(now);
        AfterChange::Fire((key, fired))
    }

    /// Defers a firing; the latest value of its key wins.
    fn defer_firing(&mut self, key: K, fired: Firing<T>) {
        if self.waiting_firings.insert(key.clone(), fired).is_none() {
            self.firing_order.push_back(key);
        }
    }

    /// Ends the wait of an entry. Returns whether there was one, the firing and the discarded value.
    fn flush_slot(
        &mut self,
        slot: u32,
        now: Timestamp,
    ) -> (bool, Option<KeyFiring<K, T>>, Option<T>) {
        let entry = self.entry_mut(slot);
        let was_pending = entry.is_some_and(|entry| entry.timeline.flush());
        match self.end_wait(slot, now, was_pending) {
            Some(ended) => (was_pending, ended.fired, ended.dropped),
            None => (was_pending, None, None),
        }
    }

    /// Ends the wait of an entry. Returns the firing if a value was pending, the discarded value, and
    /// how long the entry is needed. It is removed if that has passed. Shortly after a firing by max
    /// wait or flush, it is still needed, because the next call isn't the first of a wait.
    fn end_wait(
        &mut self,
        slot: u32,
        now: Timestamp,
        was_pending: bool,
    ) -> Option<EndedWait<K, T>> {
        let times = self.times;
        let entry = self.entry_mut(slot)?;
        let called = entry.timeline.called().unwrap_or(now);
        let mut value = entry.value.take();
        let fired = match times.trailing {
            Edge::On if was_pending => value.take(),
            Edge::On | Edge::Off => None,
        };
        if fired.is_some() {
            entry.timeline.fire(now);
        }
        let until = entry.timeline.wait_end(&times);
        let key = if until > now {
            fired.is_some().then(|| entry.key.clone())
        } else {
            self.remove(slot).map(|entry| entry.key)
        };
        let fired = key.zip(fired.map(|value| Firing { value, called }));
        Some(EndedWait {
            fired,
            dropped: value,
            until,
        })
    }

    /// Makes room by ending the wait of the key whose timer fires first.
    fn evict_earliest(&mut self, now: Timestamp) {
        while let Some(Reverse((at, slot, stamp))) = self.timers.peek().copied() {
            let place = self
                .slots
                .get(slot_index(slot))
                .filter(|s| s.stamp == stamp);
            let Some(entry) = place.and_then(|place| place.entry.as_ref()) else {
                self.timers.pop();
                self.stale_timers = self.stale_timers.saturating_sub(1);
                continue;
            };
            // It may have been called since its timer was set, and then another key may be due earlier.
            let over = entry.timeline.wait_end(&self.times);
            if over > at {
                self.timers.pop();
                self.push((over, slot, stamp));
                continue;
            }
            let (_, fired, _) = self.flush_slot(slot, now);
            drop(self.remove(slot));
            if let Some((key, fired)) = fired {
                self.defer_firing(key, fired);
            }
            return;
        }
    }

    fn insert(&mut self, key: K, value: Option<T>, line: CallTimeline, at: Timestamp) {
        let hash = self.hasher.hash_one(&key);
        let entry = Some(KeyEntry {
            key,
            value,
            timeline: line,
        });
        let slot = self.free.pop().unwrap_or_else(|| {
            grow_by_quarter(&mut self.slots);
            self.slots.push(KeySlot {
                entry: None,
                stamp: 0,
            });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.slots[slot_index(slot)];
        place.entry = entry;
        let stamp = place.stamp;
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |slot: &u32| {
            let entry = slots[slot_index(*slot)].entry.as_ref();
            entry.map_or(0, |entry| hasher.hash_one(&entry.key))
        };
        self.index.insert_unique(hash, slot, rehash);
        self.push((at, slot, stamp));
    }

    fn remove(&mut self, slot: u32) -> Option<KeyEntry<K, T>> {
        let place = self.slots.get_mut(slot_index(slot))?;
        let entry = place.entry.take()?;
        place.stamp = place.stamp.wrapping_add(1);
        let hash = self.hasher.hash_one(&entry.key);
        if let Ok(found) = self.index.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
        self.free.push(slot);
        self.stale_timers += 1;
        if self.stale_timers > self.timers.len() / 2 + 64 {
            let slots = &self.slots;
            let is_there =
                |slot: u32, stamp| slots.get(slot_index(slot)).map(|s| s.stamp) == Some(stamp);
            self.timers
                .retain(|Reverse((_, slot, stamp))| is_there(*slot, *stamp));
            self.stale_timers = 0;
        }
        if self.index.is_empty() && self.slots.len() > KEPT_CAPACITY {
            // Free the memory after a burst of keys.
            (self.slots, self.free) = (Vec::new(), Vec::new());
            (self.timers, self.stale_timers) = (BinaryHeap::new(), 0);
            self.index = HashTable::new();
        }
        Some(entry)
    }

    fn push(&mut self, timer: TimerEntry) {
        if self.timers.len() == self.timers.capacity() {
            self.timers.reserve_exact(growth(self.timers.len()));
        }
        self.timers.push(Reverse(timer));
    }

    #[inline]
    fn find(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let is_same = |slot: &u32| self.entry(*slot).is_some_and(|entry| entry.key == *key);
        self.index.find(hash, is_same).copied()
    }

    fn entry(&self, slot: u32) -> Option<&KeyEntry<K, T>> {
        self.slots.get(slot_index(slot))?.entry.as_ref()
    }

    fn entry_mut(&mut self, slot: u32) -> Option<&mut KeyEntry<K, T>> {
        self.slots.get_mut(slot_index(slot))?.entry.as_mut()
    }
}

impl<K, T> PendingStore for KeyTable<K, T>
where
    K: Hash + Eq + Clone + Send + 'static,
    T: Send + 'static,
{
    const NAME: &'static str = "keyed debouncer";

    type Job = KeyFiring<K, T>;
    type Outcome = ();
    type Remaining = Box<Self>;

    fn pending(&self) -> usize {
        self.len()
    }

    fn due(&self) -> Option<Timestamp> {
        let not_before = self.spacing.not_before();
        if !self.firing_order.is_empty() {
            return Some(not_before);
        }
        let Reverse((at, ..)) = self.timers.peek()?;
        Some((*at).max(not_before))
    }

    fn take(&mut self, now: Timestamp) -> Option<KeyFiring<K, T>> {
        if now < self.spacing.not_before() {
            return None;
        }
        if let Some(key) = self.firing_order.pop_front() {
            let fired = self.waiting_firings.remove(&key)?;
            if self.firing_order.is_empty() && self.waiting_firings.capacity() > KEPT_CAPACITY {
                // Free the memory after a burst of keys.
                (self.firing_order, self.waiting_firings) = (VecDeque::new(), HashMap::default());
            }
            self.spacing.record_firing(now);
            return Some((key, fired));
        }
        while let Some(Reverse((at, slot, stamp))) = self.timers.peek().copied() {
            if at > now {
                return None;
            }
            self.timers.pop();
            let times = self.times;
            let place = self.slots.get_mut(slot_index(slot));
            let place = place.filter(|place| place.stamp == stamp);
            let Some(entry) = place.and_then(|place| place.entry.as_mut()) else {
                self.stale_timers = self.stale_timers.saturating_sub(1);
                continue;
            };
            let Some(timer) = entry.timeline.timer() else {
                // Such an entry only existed until its last firing doesn't count any more.
                let until = entry.timeline.wait_end(&times);
                self.requeue_or_remove(slot, stamp, until, now);
                continue;
            };
            if timer > now {
                self.push((timer, slot, stamp));
                continue;
            }
            if entry.timeline.on_timer(&times, now) == TimerEffect::Rearmed {
                let again = entry.timeline.timer().unwrap_or(now);
                self.push((again, slot, stamp));
                continue;
            }
            if let Some(fired) = self.end_wait_of_timer(slot, stamp, now) {
                self.spacing.record_firing(now);
                return Some(fired);
            }
        }
        None
    }

    fn defer(&mut self, (key, fired): KeyFiring<K, T>) {
        self.spacing.undo_firing();
        self.defer_firing(key, fired);
    }

    fn ended(&mut self, _now: Timestamp, _outcome: Option<()>) {}

    fn follow_clock_back(&mut self, from: Timestamp, to: Timestamp) {
        self.spacing.set_back(from, to);
        let entries = self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut());
        entries.for_each(|entry| entry.timeline.set_back(from, to));
        // All times move by the same amount, so the heap's order stays valid.
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
        let fresh = Self::new(self.times, self.capacity, self.when_full);
        Box::new(std::mem::replace(self, fresh))
    }
}

impl<K: Hash + Eq + Clone, T> KeyTable<K, T> {
    /// Ends the wait of an entry whose timer was taken out of the heap.
    fn end_wait_of_timer(
        &mut self,
        slot: u32,
        stamp: u32,
        now: Timestamp,
    ) -> Option<KeyFiring<K, T>> {
        let EndedWait { fired, until, .. } = self.end_wait(slot, now, true)?;
        if until > now {
            self.push((until, slot, stamp));
        } else {
            // Its timer isn't in the heap, so removing the entry left no stale one.
            self.stale_timers = self.stale_timers.saturating_sub(1);
        }
        fired
    }

    /// Removes an entry without a timer, or keeps it until its last firing doesn't count any more.
    fn requeue_or_remove(&mut self, slot: u32, stamp: u32, until: Timestamp, now: Timestamp) {
        if until > now {
            self.push((until, slot, stamp));
        } else {
            drop(self.remove(slot));
            self.stale_timers = self.stale_timers.saturating_sub(1);
        }
    }
}

/// The number of slots that an empty table keeps.
const KEPT_CAPACITY: usize = 1024;

/// Grows by a quarter instead of doubling, so that a million keys don't take the memory of two million.
fn grow_by_quarter<T>(slots: &mut Vec<T>) {
    if slots.len() == slots.capacity() {
        slots.reserve_exact(growth(slots.len()));
    }
}

fn growth(len: usize) -> usize {
    (len / 4).max(16)
}

fn slot_index(slot: u32) -> usize {
    slot as usize
}
