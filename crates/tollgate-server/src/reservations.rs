//! Reservations: the permits and estimates of allowed requests, until they are released or settled, or expire.
//!
//! HTTP callers choose an id for a reservation. How such a reservation ended is known for a while, so that its actual
//! cost can be settled late. Requests of Envoy's and Redis' protocols have no id: a later refund of the same request
//! takes the oldest reservation of that request.

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

/// The reservations of a service.
#[derive(Debug)]
pub(crate) struct Reservations {
    table: Mutex<HoldTable>,
    /// The next to end has changed.
    next_expiry_changed: Notify,
    capacity: usize,
    /// The table's count of reservations, readable without its lock.
    count: Arc<AtomicUsize>,
    hashers: [RandomState; 2],
    /// How many requests weren't decided for want of capacity.
    rejected_count: AtomicU64,
    /// How many estimates were settled. Raised (release) after each settlement.
    settled_count: AtomicU64,
}

/// The keyed hash of an id, or of a request: ids have any length, and hashes don't. The keys are random, so that nobody
/// outside can construct a collision.
type NameHash = [u64; 2];

/// With more free capacity than this, a request is decided without a reservation of capacity, which would have to match
/// its rules first.
const SPARE_CAPACITY: usize = 1_024;

/// Reserved capacity for one request, until the request uses it or this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedCapacity<'a>(&'a Reservations);

impl Drop for ReservedCapacity<'_> {
    fn drop(&mut self) {
        self.0.table().reserved -= 1;
    }
}

/// The lookup of an id.
#[derive(Debug)]
pub(crate) enum NameLookup {
    /// Unknown: the caller decides the request, and calls [`finish_lookup`](Reservations::finish_lookup) afterwards.
    Nothing,
    /// Another call with this id is being decided.
    InProgress,
    /// The same request was answered with this, and its reservation is held.
    Held(Box<[u8]>),
    /// A different request holds this id.
    HeldByOther,
    /// Unknown, and there is no capacity for more.
    Full(CapacityExceeded),
}

/// No capacity is left: a request that needs a reservation must not run.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[display(
    "no more may be held: {most} already are (--max-holds), so nothing was decided or charged"
)]
pub(crate) struct CapacityExceeded {
    most: usize,
}

impl Reservations {
    /// A table for at most this many reservations.
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

    /// The number of reservations.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many requests weren't decided for want of capacity.
    pub(crate) fn times_full(&self) -> u64 {
        self.rejected_count.load(Ordering::Relaxed)
    }

    /// Counts one more request that isn't decided.
    #[cold]
    fn full(&self) -> CapacityExceeded {
        self.rejected_count.fetch_add(1, Ordering::Relaxed);
        CapacityExceeded {
            most: self.capacity,
        }
    }

    /// Whether there is capacity for many more.
    pub(crate) fn has_spare_capacity(&self) -> bool {
        self.count() + SPARE_CAPACITY < self.capacity
    }

    /// Changes the table, after expiring what is due. Expired permits are dropped after the lock is released, as a drop
    /// may call a store.
    fn with_table<R>(&self, now: Instant, change: impl FnOnce(&mut HoldTable) -> R) -> R {
        let mut table = self.table();
        let ended = table.expire(now);
        let changed = change(&mut table);
        drop(table);
        drop(ended);
        changed
    }

    /// Reserves capacity for a request without an id.
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

    /// Settles a reservation: replaces its estimate by the actual cost, which may be higher, and ends it. A repeated
    /// call gets the first call's result. `None` if the id is unknown, or was released.
    pub(crate) fn settle(
        &self,
        name: &[u8],
        spent: u64,
        ending: PermitOutcome,
    ) -> Option<SettlementTiming> {
        let (name, now) = (self.id(name), Instant::now());
        // Under the lock, so that a concurrent call with the same id finds the result.
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
        // After the settlement: readers of the count (acquire) see the settlement too.
        self.settled_count.fetch_add(1, Ordering::Release);
        said
    }

    /// Releases a reservation. `false` if the id is unknown, unless it was released shortly before.
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

    /// The number of settlements, which only grows.
    pub(crate) fn settled(&self) -> u64 {
        self.settled_count.load(Ordering::Acquire)
    }

    /// Looks up the id of a request, and whether there is capacity if it needs any. A caller that gets `Nothing` owns
    /// the id until [`finish_lookup`](Self::finish_lookup).
    pub(crate) fn look_up(&self, name: &[u8], asked: &[u8], needs_room: bool) -> NameLookup {
        let (name, asked) = (self.id(name), self.id(asked));
        self.with_table(Instant::now(), |table| {
            // A caller that gets `Nothing` must have capacity for the permits of the decision.
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

    /// Lets other calls use the id again.
    pub(crate) fn finish_lookup(&self, name: &[u8]) {
        self.table().in_progress.remove(&self.id(name));
    }

    /// Holds the permits of a request for `life`, under a key that may have others already. Without free or reserved
    /// capacity the permits are cancelled, as the request never ran.
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
                // The reserved unit becomes a held one under one lock, so no other request can take it in between.
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

    /// The same for a caller that [has capacity](Self::look_up). The request and the answer are kept, to answer a
    /// repeated call.
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

    /// Wakes the expiry task if this reservation expires next.
    fn notify_if_next(&self, put: Insertion) {
        if put.is_next {
            self.next_expiry_changed.notify_one();
        }
    }

    /// Takes the oldest reservation of a key, to end it.
    pub(crate) fn take_oldest(&self, name: &[u8]) -> Option<Permits> {
        let name = self.id(name);
        self.with_table(Instant::now(), |table| table.take_first(&name))
    }

    /// Renews a reservation: it expires `life` from now, and so do its estimates. `false` if the id is unknown.
    pub(crate) fn renew(&self, name: &[u8], life: Duration) -> bool {
        self.extend_until(name, |now, _| now + life).is_some()
    }

    /// Extends a reservation: it expires at least `life` from now, and no earlier than before. Returns the time to its
    /// expiry; `None` if the id is unknown.
    pub(crate) fn extend(&self, name: &[u8], life: Duration) -> Option<Duration> {
        self.extend_until(name, |now, until| until.max(now + life))
    }

    /// Sets the expiry of a key's reservations from the current time and their old expiry. Returns the time to the
    /// first one's expiry.
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

    /// Expires reservations that are due, forever.
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

/// How long, and for how many ids, the end of a reservation is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
const MAX_REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
struct HoldTable {
    held: HashMap<NameHash, VecDeque<HoldEntry>>,
    /// The times of expiry: of each reservation, or of its estimates. Times from before a renewal stay until they are
    /// due or dropped.
    expiries: BinaryHeap<Reverse<(Instant, NameHash, u64)>>,
    /// The number of reservations with permits. Changed under the table's lock, and read without it.
    count: Arc<AtomicUsize>,
    /// Requests without an id that are being decided and have reserved capacity.
    reserved: usize,
    /// Keys of reservations without permits, which only remember an answer; the oldest first.
    answer_only: VecDeque<(NameHash, u64)>,
    /// Ids that are being decided. Each of them has capacity.
    in_progress: HashSet<NameHash>,
    /// How reservations with an id ended, and the queue by which those are forgotten, the oldest first.
    ended: HashMap<NameHash, (EndState, Instant)>,
    forget_queue: VecDeque<(Instant, NameHash)>,
    /// The number of the latest reservation.
    last_number: u64,
}

/// How a reservation with an id ended.
#[derive(Debug)]
enum EndState {
    Released,
    Settled(SettlementTiming),
    /// It expired. Its actual cost can still be settled.
    Unsettled(Permits),
}

#[derive(Debug)]
struct HoldEntry {
    /// Distinguishes it from others of its key: later ones have higher numbers.
    number: u64,
    permits: Permits,
    until: Instant,
    /// The request and its answer, if the reservation has an id.
    request: Option<(NameHash, Box<[u8]>)>,
}

impl HoldEntry {
    /// Its next expiry: its own, or that of an estimate.
    fn next(&self, now: Instant) -> Instant {
        let due = self.permits.time_left().map(|left| now + left);
        due.map_or(self.until, |due| due.min(self.until))
    }
}

/// The outcome of an insertion.
struct Insertion {
    /// It has the earliest expiry of all.
    is_next: bool,
    /// The former end of its key, to be dropped after the lock is released.
    _before: Option<(EndState, Instant)>,
}

impl HoldTable {
    /// Inserts a reservation. A former end of its key is returned, to be dropped after the lock is released.
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
        // A key that is used again has not ended.
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

    /// The number of reservations with permits.
    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The capacity in use: held, being decided, or reserved.
    fn occupied(&self) -> usize {
        self.count() + self.in_progress.len() + self.reserved
    }

    /// Expires all reservations and estimates that are due. Returns the permits without an id, to be dropped after the
    /// lock is released, as a drop may call a store.
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
                // A reservation without an id can't be settled late, so once its estimates have expired it needs no
                // capacity any more.
                let is_over = held.request.is_none() && held.permits.is_expired();
                if !is_over {
                    // A millisecond at least, as an expiry that stays due would loop forever.
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
                // Under the lock, so that a concurrent settlement finds it either held or ended.
                let rest = permits.end_unsettled();
                self.drop_old_ends(now);
                self.remember_end(name, EndState::Unsettled(rest), until);
            } else {
                ended.push(permits);
            }
        }
        ended
    }

    /// Remembers how a reservation ended.
    fn remember_end(&mut self, name: NameHash, how: EndState, at: Instant) {
        self.drop_old_ends(at);
        self.ended.insert(name, (how, at + REMEMBERED_FOR));
        self.forget_queue.push_back((at + REMEMBERED_FOR, name));
    }

    /// How a reservation with this id ended, if that is remembered.
    fn end_state(&self, name: &NameHash, now: Instant) -> Option<&EndState> {
        let (how, until) = self.ended.get(name)?;
        (*until > now).then_some(how)
    }

    /// Takes an expired reservation that may still be settled.
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

    /// Forgets the ends that are too old, or too many.
    fn drop_old_ends(&mut self, now: Instant) {
        let is_over = |forgotten: &VecDeque<(Instant, NameHash)>| {
            let first = forgotten.front();
            first.is_some_and(|(until, _)| *until <= now || forgotten.len() >= MAX_REMEMBERED)
        };
        while is_over(&self.forget_queue)
            && let Some((until, name)) = self.forget_queue.pop_front()
        {
            // An id that was used again and ended anew has a later entry in the queue.
            if self.ended.get(&name).is_some_and(|(_, own)| *own == until) {
                self.ended.remove(&name);
            }
        }
    }

    /// Remembers a reservation without permits for its answer; beyond a bound the oldest is forgotten.
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

    /// Rebuilds the heap once most of its times are stale: each renewal and release leaves one behind.
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
