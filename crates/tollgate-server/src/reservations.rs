//! What callers hold: slots and estimates of requests that passed, until they are given back or their time is over.
//!
//! A caller of HTTP has a name for what it holds, and how that ended is known for a while: what a request cost may be said
//! late. One of Envoy's or Redis' protocol has none: what the same request gives back later is the oldest that it holds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use derive_more::Display;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tollgate::concurrency::PermitOutcome;
use tollgate::stack::SettlementTiming;
use tollgate_engine::verdict::Permits;

#[cfg(test)]
mod tests;

/// What callers hold.
#[derive(Debug)]
pub(crate) struct Reservations {
    table: Mutex<HoldTable>,
    /// The next to end has changed.
    next_expiry_changed: Notify,
    capacity: usize,
    /// That of the table.
    count: Arc<AtomicUsize>,
    hashers: [RandomState; 2],
    /// How many requests weren't decided because no more may be held.
    rejected_count: AtomicU64,
    /// How many estimates were settled. Written (release) after one is.
    settled_count: AtomicU64,
}

/// What stands for a name, or for what was asked: names are as long as their callers like, and this isn't. Nobody
/// outside can find two of which it is the same.
type NameHash = [u64; 2];

/// While there is more room than this, nobody asks for some before a request is decided: that takes a look at its rules.
const SPARE_CAPACITY: usize = 1_024;

/// Room for what one request holds, until it holds it or this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedCapacity<'a>(&'a Reservations);

impl Drop for ReservedCapacity<'_> {
    fn drop(&mut self) {
        self.0.table().reserved -= 1;
    }
}

/// What there is by a name that a caller has chosen.
#[derive(Debug)]
pub(crate) enum NameLookup {
    /// Nothing: whoever is told this decides, and says when that is [done](Reservations::decided).
    Nothing,
    /// Another call with this name is being decided.
    InProgress,
    /// This was answered, and is held.
    Held(Box<[u8]>),
    /// Something else was asked by this name, and is held.
    HeldByOther,
    /// Nothing, and there is no room for more.
    Full(CapacityExceeded),
}

/// There is no room for more: whoever should have held something must not run.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[display(
    "no more may be held: {most} already are (--max-holds), so nothing was decided or charged"
)]
pub(crate) struct CapacityExceeded {
    most: usize,
}

impl Reservations {
    /// Room for so many.
    pub(crate) fn new(most: usize) -> Self {
        let table = HoldTable::default();
        Self {
            count: Arc::clone(&table.count),
            table: Mutex::new(table),
            next_expiry_changed: Notify::new(),
            capacity: most,
            hashers: [RandomState::new(), RandomState::new()],
            rejected_count: AtomicU64::new(0),
            settled_count: AtomicU64::new(0),
        }
    }

    fn id(&self, name: &[u8]) -> NameHash {
        self.hashers.each_ref().map(|hasher| hasher.hash_one(name))
    }

    fn table(&self) -> MutexGuard<'_, HoldTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are held.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many requests weren't decided because no more may be held.
    pub(crate) fn times_full(&self) -> u64 {
        self.rejected_count.load(Ordering::Relaxed)
    }

    /// One more request isn't decided.
    #[cold]
    fn full(&self) -> CapacityExceeded {
        self.rejected_count.fetch_add(1, Ordering::Relaxed);
        CapacityExceeded {
            most: self.capacity,
        }
    }

    /// Whether there is room for many more.
    pub(crate) fn has_spare_capacity(&self) -> bool {
        self.count() + SPARE_CAPACITY < self.capacity
    }

    /// Changes the table, once all whose time is over have ended. What those held is dropped after that, when the lock is free:
    /// to drop it may ask a store.
    fn with_table<R>(&self, now: Instant, change: impl FnOnce(&mut HoldTable) -> R) -> R {
        let mut table = self.table();
        let ended = table.expire(now);
        let changed = change(&mut table);
        drop(table);
        drop(ended);
        changed
    }

    /// Room for what a request comes to hold that has no name.
    pub(crate) fn reserve_capacity(&self) -> Result<ReservedCapacity<'_>, CapacityExceeded> {
        let has_room = self.with_table(Instant::now(), |table| {
            let has_room = table.occupied() < self.capacity;
            table.reserved += usize::from(has_room);
            has_room
        });
        if has_room {
            Ok(ReservedCapacity(self))
        } else {
            Err(self.full())
        }
    }

    /// Tells what a request did cost that was held by a name, which may be more than was thought, and ends it; again what
    /// was said first, if it is said again. None if the name isn't known, or was released.
    pub(crate) fn settle(
        &self,
        name: &[u8],
        spent: u64,
        ending: PermitOutcome,
    ) -> Option<SettlementTiming> {
        let (name, now) = (self.id(name), Instant::now());
        // Under the lock: whoever says the same at the same time finds what became of it.
        let said = self.with_table(now, |table| {
            let permits = table.take_first(&name);
            match permits.or_else(|| table.take_unsettled(&name, now)) {
                Some(mut permits) => {
                    let said = permits.settle(spent);
                    permits.end(ending);
                    table.remember_end(name, EndState::Settled(said), now);
                    Some(said)
                }
                None => match table.end_state(&name, now) {
                    Some(EndState::Settled(said)) => Some(*said),
                    _ => None,
                },
            }
        });
        // Afterwards: whoever sees the number sees what it stands for.
        self.settled_count.fetch_add(1, Ordering::Release);
        said
    }

    /// Ends what was held by a name. No if nothing is, unless it was just released.
    pub(crate) fn release(&self, name: &[u8], ending: PermitOutcome) -> bool {
        let (name, now) = (self.id(name), Instant::now());
        let (permits, is_released) = self.with_table(now, |table| {
            let permits = table.take_first(&name);
            if permits.is_some() {
                table.remember_end(name, EndState::Released, now);
            }
            let ended = table.end_state(&name, now);
            let is_released = matches!(ended, Some(EndState::Released));
            (permits, is_released)
        });
        if let Some(permits) = permits {
            permits.end(ending);
        }
        is_released
    }

    /// A number that grows whenever something is settled.
    pub(crate) fn settled(&self) -> u64 {
        self.settled_count.load(Ordering::Acquire)
    }

    /// What there is by a name, for one that asks this and needs room or none. A call that finds nothing has the name to itself until it is
    /// [decided](Self::decided).
    pub(crate) fn look_up(&self, name: &[u8], asked: &[u8], needs_room: bool) -> NameLookup {
        let (name, asked) = (self.id(name), self.id(asked));
        self.with_table(Instant::now(), |table| {
            // Whoever is told to decide has room for what that comes to.
            let has_room = !needs_room || table.occupied() < self.capacity;
            match table.first(&name) {
                Some(held) => match &held.request {
                    Some((own, answer)) if *own == asked => NameLookup::Held(answer.clone()),
                    _ => NameLookup::HeldByOther,
                },
                None if table.in_progress.contains(&name) => NameLookup::InProgress,
                None if !has_room => NameLookup::Full(self.full()),
                None => {
                    table.in_progress.insert(name);
                    NameLookup::Nothing
                }
            }
        })
    }

    /// Others may ask for a name again.
    pub(crate) fn finish_lookup(&self, name: &[u8]) {
        self.table().in_progress.remove(&self.id(name));
    }

    /// Keeps what a request holds for so long, by a name that may have others already.
    /// If there is no room for it, and none was reserved, it is cancelled: it never ran.
    pub(crate) fn hold(
        &self,
        name: &[u8],
        permits: Permits,
        life: Duration,
        room: Option<ReservedCapacity<'_>>,
    ) -> Result<(), CapacityExceeded> {
        let (name, now) = (self.id(name), Instant::now());
        let kept = self.with_table(now, |table| {
            let is_reserved = room.is_some();
            if let Some(room) = room {
                // Under the lock: nobody else has it in between.
                std::mem::forget(room);
                table.reserved -= 1;
            }
            if !permits.is_empty() && !is_reserved && table.occupied() >= self.capacity {
                return Err(permits);
            }
            Ok(table.insert(name, permits, now + life, None, now))
        });
        kept.map(|put| self.notify_if_next(put)).map_err(|permits| {
            permits.cancel();
            self.full()
        })
    }

    /// The same for a caller that [has room](Self::look_up), with what it has asked and is told, to tell it again.
    pub(crate) fn hold_with_answer(
        &self,
        name: &[u8],
        permits: Permits,
        life: Duration,
        asked: &[u8],
        answer: &[u8],
    ) {
        let (now, mut table) = (Instant::now(), self.table());
        let asked = (self.id(asked), answer.into());
        let put = table.insert(self.id(name), permits, now + life, Some(asked), now);
        drop(table);
        self.notify_if_next(put);
    }

    /// The next end may be another now.
    fn notify_if_next(&self, put: Insertion) {
        if put.is_next {
            self.next_expiry_changed.notify_one();
        }
    }

    /// Takes the oldest of a name, to end it.
    pub(crate) fn take_oldest(&self, name: &[u8]) -> Option<Permits> {
        let name = self.id(name);
        self.with_table(Instant::now(), |table| table.take_first(&name))
    }

    /// Whether a name has something, which then lives so long from now; the time of its estimates begins anew.
    pub(crate) fn renew(&self, name: &[u8], life: Duration) -> bool {
        self.extend_until(name, |now, _| now + life).is_some()
    }

    /// How long something of this name lives on: at least so long from now, and no shorter than before. None if nothing is held.
    pub(crate) fn extend(&self, name: &[u8], life: Duration) -> Option<Duration> {
        self.extend_until(name, |now, until| until.max(now + life))
    }

    /// Has what is held by a name live until then, as of now and of when it would have ended. How long the first of it lives.
    fn extend_until(
        &self,
        name: &[u8],
        until: impl Fn(Instant, Instant) -> Instant,
    ) -> Option<Duration> {
        let (name, now) = (self.id(name), Instant::now());
        let left = self.with_table(now, |table| {
            let mut left = None;
            for held in table.held.get_mut(&name).into_iter().flatten() {
                held.until = until(now, held.until);
                held.permits.renew();
                left = left.or(Some(held.until - now));
                let end = Reverse((held.next(now), name, held.number));
                table.expiries.push(end);
            }
            table.drop_stale_expiries(now);
            left
        });
        self.next_expiry_changed.notify_one();
        left
    }

    /// Ends what isn't given back in time. It never returns.
    pub(crate) async fn expire_forever(&self) {
        loop {
            let (ended, next) = {
                let mut table = self.table();
                let ended = table.expire(Instant::now());
                let next = table.expiries.peek().map(|Reverse((at, ..))| *at);
                (ended, next)
            };
            drop(ended);
            match next {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.next_expiry_changed.notified() => {}
                },
                None => self.next_expiry_changed.notified().await,
            }
        }
    }
}

/// So long, and of so many, it is known how they ended.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
const MAX_REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
struct HoldTable {
    held: HashMap<NameHash, VecDeque<HoldEntry>>,
    /// When something happens to each by itself, or would have before it was renewed.
    expiries: BinaryHeap<Reverse<(Instant, NameHash, u64)>>,
    /// How many hold something. Changed under the lock of the table, and read without it.
    count: Arc<AtomicUsize>,
    /// How many are being decided about that have room and no name.
    reserved: usize,
    /// Names of those that hold nothing and only remember an answer, from the oldest.
    answer_only: VecDeque<(NameHash, u64)>,
    /// Names that are being decided about. Each of them has room.
    in_progress: HashSet<NameHash>,
    /// How what callers held by a name has ended; and from the first that ended, when that is forgotten.
    ended: HashMap<NameHash, (EndState, Instant)>,
    forget_queue: VecDeque<(Instant, NameHash)>,
    /// The number of the last that was held.
    last_number: u64,
}

/// How something ended that was held by a name.
#[derive(Debug)]
enum EndState {
    Released,
    Settled(SettlementTiming),
    /// Its time was over. What it cost may still be said.
    Unsettled(Permits),
}

#[derive(Debug)]
struct HoldEntry {
    /// Tells it from others of its name: later ones have higher numbers.
    number: u64,
    permits: Permits,
    until: Instant,
    /// What its caller has asked and was told, if it has a name.
    request: Option<(NameHash, Box<[u8]>)>,
}

impl HoldEntry {
    /// When something happens to it by itself: its time ends, or that of an estimate.
    fn next(&self, now: Instant) -> Instant {
        let due = self.permits.time_left().map(|left| now + left);
        due.map_or(self.until, |due| due.min(self.until))
    }
}

/// What came of putting something into the table.
struct Insertion {
    /// Nothing else happens before it does something by itself.
    is_next: bool,
    /// What its name stood for before, to be dropped once the lock is free.
    _before: Option<(EndState, Instant)>,
}

impl HoldTable {
    /// Puts something by a name, which nothing has ended yet; what it is told by before is dropped with what comes back.
    fn insert(
        &mut self,
        name: NameHash,
        permits: Permits,
        until: Instant,
        asked: Option<(NameHash, Box<[u8]>)>,
        now: Instant,
    ) -> Insertion {
        self.last_number += 1;
        let number = self.last_number;
        if permits.is_empty() {
            self.remember_answer_only(name, number);
        } else {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        let held = HoldEntry {
            number,
            permits,
            until,
            request: asked,
        };
        // A name that begins anew hasn't ended.
        let before = self.ended.remove(&name);
        let first = held.next(now);
        let next = self.expiries.peek();
        let is_next = next.is_none_or(|Reverse((next, ..))| first < *next);
        self.expiries.push(Reverse((first, name, number)));
        self.held.entry(name).or_default().push_back(held);
        self.drop_stale_expiries(now);
        Insertion {
            is_next,
            _before: before,
        }
    }

    /// How many hold something.
    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many hold something, or have room to.
    fn occupied(&self) -> usize {
        self.count() + self.in_progress.len() + self.reserved
    }

    /// Ends all whose time is over, and estimates whose time is. What is held without a name is returned, to be dropped once
    /// the lock is free: that may ask a store.
    fn expire(&mut self, now: Instant) -> Vec<Permits> {
        let mut ended = Vec::new();
        while self
            .expiries
            .peek()
            .is_some_and(|Reverse((at, ..))| *at <= now)
        {
            let Some(Reverse((_, name, number))) = self.expiries.pop() else {
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
                let is_over = held.request.is_none() && held.permits.is_expired();
                if !is_over {
                    let next = held.next(now).max(now + Duration::from_millis(1));
                    self.expiries.push(Reverse((next, name, number)));
                    continue;
                }
            }
            let (is_named, until) = (held.request.is_some(), held.until);
            let Some(permits) = self.take_at(&name, place) else {
                continue;
            };
            if is_named && !permits.is_empty() {
                // Under the lock: whoever settles it at this moment finds it here or there.
                let rest = permits.end_unsettled();
                self.drop_old_ends(now);
                self.remember_end(name, EndState::Unsettled(rest), until);
            } else {
                ended.push(permits);
            }
        }
        ended
    }

    /// It is known for a while that something ended so at this time.
    fn remember_end(&mut self, name: NameHash, how: EndState, at: Instant) {
        self.drop_old_ends(at);
        self.ended.insert(name, (how, at + REMEMBERED_FOR));
        self.forget_queue.push_back((at + REMEMBERED_FOR, name));
    }

    /// How a caller ended what it held by a name, if that isn't long ago.
    fn end_state(&self, name: &NameHash, now: Instant) -> Option<&EndState> {
        let (how, until) = self.ended.get(name)?;
        (*until > now).then_some(how)
    }

    /// What ended by itself and may still be settled.
    fn take_unsettled(&mut self, name: &NameHash, now: Instant) -> Option<Permits> {
        match self.end_state(name, now)? {
            EndState::Unsettled(permits) if !permits.is_empty() => {}
            _ => return None,
        }
        match self.ended.remove(name)? {
            (EndState::Unsettled(permits), _) => Some(permits),
            _ => None,
        }
    }

    /// Forgets how the oldest ended.
    fn drop_old_ends(&mut self, now: Instant) {
        let is_over = |forgotten: &VecDeque<(Instant, NameHash)>| {
            let first = forgotten.front();
            first.is_some_and(|(until, _)| *until <= now || forgotten.len() >= MAX_REMEMBERED)
        };
        while is_over(&self.forget_queue)
            && let Some((until, name)) = self.forget_queue.pop_front()
        {
            // One that began and ended anew is known for longer.
            if self.ended.get(&name).is_some_and(|(_, own)| *own == until) {
                self.ended.remove(&name);
            }
        }
    }

    /// One that holds nothing is remembered for its answer; of too many of those the oldest is forgotten.
    fn remember_answer_only(&mut self, name: NameHash, number: u64) {
        if self.answer_only.len() >= MAX_REMEMBERED
            && let Some((oldest, number)) = self.answer_only.pop_front()
            && let Some(own) = self.held.get_mut(&oldest)
        {
            own.retain(|held| held.number != number);
            if own.is_empty() {
                self.held.remove(&oldest);
            }
        }
        self.answer_only.push_back((name, number));
    }

    /// Whoever renews or gives back leaves a time behind: all of them are thrown out once they are many.
    fn drop_stale_expiries(&mut self, now: Instant) {
        if self.expiries.len() <= (self.count() + self.answer_only.len()) * 4 + 64 {
            return;
        }
        let all = self.held.iter().flat_map(|(name, own)| {
            let next = |held: &HoldEntry| Reverse((held.next(now), *name, held.number));
            own.iter().map(next)
        });
        self.expiries = all.collect();
    }

    fn first(&self, name: &NameHash) -> Option<&HoldEntry> {
        self.held.get(name)?.front()
    }

    fn take_first(&mut self, name: &NameHash) -> Option<Permits> {
        self.take_at(name, 0)
    }

    fn take_at(&mut self, name: &NameHash, place: usize) -> Option<Permits> {
        let own = self.held.get_mut(name)?;
        let held = own.remove(place)?;
        if held.permits.is_empty() {
            self.answer_only
                .retain(|(_, number)| *number != held.number);
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        if own.is_empty() {
            self.held.remove(name);
        }
        Some(held.permits)
    }
}
