//! One part of an exact-key table: keys and their states, under one lock that the table holds.
//!
//! Every call does a bounded amount of work: a search, one state, at most a few steps of expiry and
//! of catching up with a changed rate, each with one move in a heap.

use std::borrow::Borrow;
use std::collections::VecDeque;

use tollgate_core::{Algorithm, Book, Booked, Timestamp};

use super::act::Act;
use super::entry::Entry;
use super::heap::Heap;
use super::index::Index;
use super::slab::Slab;

/// How many idle keys a new key drops at most: more than one, so that a table shrinks again.
const DROPS_A_NEW_KEY: usize = 4;
/// How many keys each call carries over to a new rate, besides its own.
const CATCH_UPS_A_CALL: usize = 2;
/// How many rate changes a key may be behind and still be carried over one by one.
const CHANGES_KEPT: usize = 32;
/// The birth of what has no entry: a key that passed uncounted.
pub(super) const NOBODY: u64 = 0;

/// Keys with their states.
#[derive(Debug)]
pub(super) struct Shard<K, A: Algorithm> {
    limit: A,
    index: Index,
    entries: Slab<Entry<K, A>>,
    /// The keys that aren't blocked, by when they are idle.
    open: Heap,
    /// The blocked ones, apart, so that eviction never meets them.
    guarded: Heap,
    /// How many keys it may hold, and how many blocked ones beyond.
    room: usize,
    room_for_blocks: usize,
    /// A key that was dropped was idle by this time, so no key starts anew before it.
    high_water: Timestamp,
    /// Changes of the rate that some keys have yet to follow, the latest last.
    changes: VecDeque<(Timestamp, A)>,
    /// How often the rate was changed so far.
    version: u64,
    /// All slots below this one follow the latest change.
    caught_up: u32,
    births: u64,
    work: Work,
}

/// What a shard has done, for those who watch it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) evicted: u64,
    pub(super) expired: u64,
    pub(super) slots: u64,
}

/// Which key is asked for, and when.
#[derive(Debug)]
pub(super) struct Ask<'a, Q: ?Sized> {
    pub(super) key: &'a Q,
    pub(super) hash: u64,
    pub(super) now: Timestamp,
}

/// What came of an act.
#[derive(Debug)]
pub(super) enum Answer<T> {
    /// The key has an entry, of this birth, or needs none.
    Given(T, u64),
    /// The key is new and there is no slot for it: what a fresh state said at this time.
    Full(T, Timestamp),
}

/// What may be put aside for a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// An active key, the one that is idle next.
    pub(super) evict: bool,
    /// What is kept for blocked keys.
    pub(super) block: bool,
}

impl<K, A: Algorithm> Shard<K, A> {
    /// Room for this many active keys.
    pub(super) fn new(limit: A, room: usize) -> Self {
        let room_for_blocks = room / 64 + 16;
        let slots = room.saturating_add(room_for_blocks);
        Self {
            limit,
            index: Index::new(slots),
            entries: Slab::new(slots),
            open: Heap::with_capacity(slots),
            guarded: Heap::with_capacity(0),
            room,
            room_for_blocks,
            high_water: Timestamp::ZERO,
            changes: VecDeque::new(),
            version: 0,
            caught_up: 0,
            births: NOBODY,
            work: Work::default(),
        }
    }

    /// Puts a question to the key's state, which is stored if it is new and was charged.
    pub(super) fn act<Q, T>(&mut self, ask: &Ask<'_, Q>, act: &T, need: Need) -> Answer<T::Answer>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
        T: Act<A>,
    {
        self.catch_up_some();
        if let Some(slot) = self.find(ask)
            && let Some(entry) = self.entries.get_mut(slot)
        {
            let birth = entry.birth;
            if ask.now < entry.blocked_until {
                return Answer::Given(act.refused(entry.blocked(ask.now)), birth);
            }
            let answer = act.on(&mut entry.book, ask.now);
            self.settle(slot, ask.now);
            return Answer::Given(answer, birth);
        }
        let now = ask.now.max(self.high_water);
        let mut book = Book::new(self.limit);
        let answer = act.on(&mut book, now);
        if self.limit.rate().is_unlimited() || *book.state() == A::State::default() {
            return Answer::Given(answer, NOBODY);
        }
        match self.insert(ask, book, Timestamp::ZERO, need) {
            Some(birth) => Answer::Given(answer, birth),
            None => Answer::Full(answer, now),
        }
    }

    /// Blocks the key; no if it is new and there is no slot for it.
    pub(super) fn block<Q>(&mut self, ask: &Ask<'_, Q>, until: Timestamp, need: Need) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let change = |entry: &mut Entry<K, A>| {
            entry.blocked_until = entry.blocked_until.max(until);
        };
        self.update(ask, change).is_some()
            || self
                .insert(ask, Book::new(self.limit), until, need)
                .is_some()
    }

    /// Gives the key tokens, if it has spent any.
    pub(super) fn gift<Q>(&mut self, ask: &Ask<'_, Q>, tokens: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.update(ask, |entry| entry.book.gift(ask.now, tokens));
    }

    /// Gives a booking back, if it was made in the entry that is there now.
    pub(super) fn give_back<Q>(&mut self, ask: &Ask<'_, Q>, booked: &Booked, birth: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.update(ask, |entry| {
            if entry.birth == birth {
                entry.book.give_back(ask.now, booked);
            }
        });
    }

    /// Forgets the key.
    pub(super) fn reset<Q>(&mut self, ask: &Ask<'_, Q>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if let Some(slot) = self.find(ask) {
            self.remove(slot);
        }
    }

    /// Changes the limit. Keys follow as they are met, and a few more with every call.
    pub(super) fn change(&mut self, at: Timestamp, limit: A) {
        self.limit = limit;
        self.version += 1;
        self.caught_up = 0;
        self.changes.push_back((at, limit));
        if self.changes.len() > CHANGES_KEPT {
            self.changes.pop_front();
        }
    }

    /// Visits every key that is active at `now`: its hash is not needed, its key is.
    pub(super) fn for_each(&self, now: Timestamp, mut each: impl FnMut(&K, Timestamp, bool)) {
        for entry in self.entries.iter() {
            let due = entry.due();
            if due > now {
                each(&entry.key, due, entry.blocked_until > now);
            }
        }
    }

    pub(super) fn work(&self) -> Work {
        Work {
            slots: u64::from(self.entries.slots()),
            ..self.work
        }
    }

    /// The key's slot, with its state carried over to the limit in force.
    fn find<Q>(&mut self, ask: &Ask<'_, Q>) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let entries = &self.entries;
        let is = |slot| {
            entries
                .get(slot)
                .is_some_and(|entry| entry.key.borrow() == ask.key)
        };
        let slot = self.index.find(ask.hash, is)?;
        self.catch_up(slot);
        Some(slot)
    }

    fn update<Q>(&mut self, ask: &Ask<'_, Q>, change: impl FnOnce(&mut Entry<K, A>)) -> Option<()>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find(ask)?;
        change(self.entries.get_mut(slot)?);
        self.settle(slot, ask.now);
        Some(())
    }

    /// Stores a new key; its birth, unless there is no slot for it.
    fn insert<Q>(
        &mut self,
        ask: &Ask<'_, Q>,
        book: Book<A>,
        blocked_until: Timestamp,
        need: Need,
    ) -> Option<u64>
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        if !self.make_room(ask.now, need) {
            return None;
        }
        // The only call into the caller's code that allocates, before anything is half done.
        let key = ask.key.to_owned();
        self.births += 1;
        let entry = Entry {
            key,
            hash: ask.hash,
            book,
            blocked_until,
            birth: self.births,
            version: self.version,
            place: 0,
            guarded: blocked_until > ask.now,
        };
        let (due, guarded) = (entry.due(), entry.guarded);
        let slot = self.entries.insert(entry);
        self.index.insert(ask.hash, slot);
        self.enter_heap(slot, due, guarded);
        Some(self.births)
    }

    /// Drops a few idle keys and sees whether a slot is free, or can be made so.
    fn make_room(&mut self, now: Timestamp, need: Need) -> bool {
        for guarded in [false, true] {
            for _ in 0..DROPS_A_NEW_KEY {
                let heap = if guarded { &self.guarded } else { &self.open };
                let Some((due, slot)) = heap.first().filter(|(due, _)| *due < now) else {
                    break;
                };
                if self.catch_up(slot) {
                    // It was idle by a rate that is no longer in force: look at it again.
                    continue;
                }
                self.high_water = self.high_water.max(due);
                self.work.expired += 1;
                self.remove(slot);
            }
        }
        let blocks = if need.block { self.room_for_blocks } else { 0 };
        let room = self.room.saturating_add(blocks);
        if self.entries.used() < room {
            return true;
        }
        // With more blocked keys than there is room for others, one key less is still too many.
        if !need.evict || self.entries.used() > room {
            return false;
        }
        let Some((_, slot)) = self.open.first() else {
            return false;
        };
        self.work.evicted += 1;
        self.remove(slot);
        true
    }

    fn remove(&mut self, slot: u32) {
        let Some((place, guarded)) = self.entries.get(slot).map(|e| (e.place, e.guarded)) else {
            return;
        };
        self.leave_heap(place, guarded);
        if let Some(entry) = self.entries.remove(slot) {
            self.index.remove(entry.hash, slot);
        }
    }

    /// Carries a few keys over to the limit in force, so that none stays behind for ever.
    fn catch_up_some(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        for _ in 0..CATCH_UPS_A_CALL {
            if self.caught_up >= self.entries.slots() {
                self.changes.clear();
                return;
            }
            self.catch_up(self.caught_up);
            self.caught_up += 1;
        }
    }

    /// Carries one key over to the limit in force, as of the times of the changes; whether it had
    /// been behind.
    fn catch_up(&mut self, slot: u32) -> bool {
        let Some(entry) = self.entries.get_mut(slot) else {
            return false;
        };
        if entry.version == self.version {
            return false;
        }
        let behind = usize::try_from(self.version - entry.version).unwrap_or(usize::MAX);
        let known = self.changes.len().saturating_sub(behind);
        for (at, limit) in self.changes.iter().skip(known) {
            entry.book.replace(*at, *limit);
        }
        entry.version = self.version;
        let (due, place, guarded) = (entry.due(), entry.place, entry.guarded);
        self.move_in_heap(place, due, guarded);
        true
    }

    /// Puts an entry that may have changed where it belongs.
    fn settle(&mut self, slot: u32, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(slot) else {
            return;
        };
        let (due, place, was) = (entry.due(), entry.place, entry.guarded);
        let guarded = entry.blocked_until > now;
        entry.guarded = guarded;
        if guarded == was {
            self.move_in_heap(place, due, guarded);
        } else {
            self.leave_heap(place, was);
            self.enter_heap(slot, due, guarded);
        }
    }

    fn enter_heap(&mut self, slot: u32, due: Timestamp, guarded: bool) {
        let (heap, entries) = self.heap(guarded);
        heap.push(due, slot, |slot, place| entries.note(slot, place));
    }

    fn leave_heap(&mut self, place: u32, guarded: bool) {
        let (heap, entries) = self.heap(guarded);
        heap.remove(place, |slot, place| entries.note(slot, place));
    }

    fn move_in_heap(&mut self, place: u32, due: Timestamp, guarded: bool) {
        let (heap, entries) = self.heap(guarded);
        if heap.due(place) != due {
            heap.set(place, due, |slot, place| entries.note(slot, place));
        }
    }

    fn heap(&mut self, guarded: bool) -> (&mut Heap, &mut Slab<Entry<K, A>>) {
        let heap = if guarded {
            &mut self.guarded
        } else {
            &mut self.open
        };
        (heap, &mut self.entries)
    }
}
