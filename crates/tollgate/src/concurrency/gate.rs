//! The state of one concurrency limit: a word that decides, and a queue of waiters.
//!
//! # The word
//! The permits in use, the limit, and whether anybody is queued are one atomic word. So a decision is
//! one compare-and-swap on all three: no request passes by a limit that was changed meanwhile, and none
//! overtakes the queue. The queue is behind a lock that only waiting takes.
//!
//! * The flag is set exactly while the queue isn't empty; only the holder of the lock changes it.
//! * While it is set, only the holder of the lock adds to the permits in use. Others may release.
//! * A release reads the flag in the same atomic operation. If the flag was clear, a thread that sets
//!   it later sees the release. If it was set, the releasing thread takes the lock and admits the head
//!   of the queue. So no wake-up is lost.
//!
//! # Memory ordering
//! All of this depends on the order of changes to one word, which every ordering keeps. A release has
//! release ordering and an acquire has acquire ordering, so that the next holder of a permit sees what
//! was done under it. Waiters that enter from the queue get the same guarantee from the lock, which
//! both sides take.

use std::task::Waker;

use tollgate_core::Timestamp;

use super::Occupancy;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, ignore_poison};
use crate::wait_queue::waiter_places::{Fifo, WaiterId, WaiterPlace, WaiterPlaces};
use crate::wait_queue::waiter_wakers::{PendingWakeups, WaiterWakers};

/// The highest limit: 31 bits of the word.
pub(crate) const MAX_LIMIT: u32 = (1 << 31) - 1;

const QUEUED: u64 = 1 << 63;
const LIMIT_SHIFT: u32 = 32;

/// One limit and its waiters.
#[derive(Debug)]
pub struct Gate {
    word: AtomicU64,
    /// The number of waiters, readable without the lock.
    queued: AtomicUsize,
    queue: Mutex<WaitQueue>,
}

/// The unpacked word.
#[derive(Clone, Copy, Debug)]
struct GateWord(u64);

/// Waiters in the order in which they came, and the results of waits that their tasks haven't polled
/// yet.
#[derive(Debug)]
struct WaitQueue {
    places: WaiterPlaces<Grant>,
    fifo: Fifo,
    wakers: WaiterWakers,
}

impl WaitQueue {
    const fn new() -> Self {
        Self {
            places: WaiterPlaces::new(),
            fifo: Fifo::EMPTY,
            wakers: WaiterWakers::new(),
        }
    }

    /// The head of the queue, and its weight.
    fn first(&self) -> Option<(WaiterId, u32)> {
        let first = self.fifo.first()?;
        Some((first, waiter_weight(self.places.get(first)?)))
    }

    fn finish(&mut self, id: WaiterId, told: Grant) {
        self.places.finish(&mut self.fifo, id, told);
    }

    /// The wakers to wake after a change, once the lock is released.
    fn wake_finished(&mut self) -> PendingWakeups {
        let woken = self
            .wakers
            .collect_wakeups(self.places.take_done(), None, None);
        if self.wakers.are_many() && self.places.used() == 0 {
            *self = Self::new();
        }
        woken
    }
}

fn waiter_weight(place: &WaiterPlace<Grant>) -> u32 {
    u32::try_from(place.cost).unwrap_or(u32::MAX)
}

/// How a wait in the queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// The permit was granted; with it, this many permits are in use.
    Granted { in_flight: u32 },
    /// The limit fell below the weight.
    Never,
}

/// The result of joining.
#[derive(Debug)]
pub(super) enum JoinOutcome {
    Entered { in_flight: u32 },
    Queued { place: WaiterId },
    Never,
    QueueFull,
}

impl GateWord {
    fn new(limit: u32) -> Self {
        Self(u64::from(limit.min(MAX_LIMIT)) << LIMIT_SHIFT)
    }

    fn in_use(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }

    fn limit(self) -> u32 {
        u32::try_from((self.0 & !QUEUED) >> LIMIT_SHIFT).unwrap_or(MAX_LIMIT)
    }

    fn is_queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    fn fits(self, weight: u32) -> bool {
        u64::from(self.in_use()) + u64::from(weight) <= u64::from(self.limit())
    }

    /// Adds to the permits in use. The caller has checked that it fits, so nothing carries over into
    /// the limit's bits.
    fn with_added(self, weight: u32) -> Self {
        Self(self.0 + u64::from(weight))
    }

    fn with_limit(self, limit: u32) -> Self {
        Self(self.0 & (QUEUED | u64::from(u32::MAX)) | Self::new(limit).0)
    }

    fn queued(self) -> Self {
        Self(self.0 | QUEUED)
    }

    fn without_queued(self) -> Self {
        Self(self.0 & !QUEUED)
    }
}

impl Gate {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            word: AtomicU64::new(GateWord::new(limit).0),
            queued: AtomicUsize::new(0),
            queue: Mutex::new(WaitQueue::new()),
        }
    }

    /// The current limit.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        GateWord(self.word.load(Ordering::Relaxed)).limit()
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        let word = GateWord(self.word.load(Ordering::Relaxed));
        Occupancy {
            limit: word.limit(),
            in_use: word.in_use(),
            // The flag decides, because the count may lag behind it.
            waiting: if word.is_queued() {
                self.queued.load(Ordering::Relaxed).max(1)
            } else {
                0
            },
        }
    }

    /// Whether a new request of this weight would enter now.
    #[inline]
    pub(crate) fn fits(&self, weight: u32) -> bool {
        let word = GateWord(self.word.load(Ordering::Relaxed));
        !word.is_queued() && word.fits(weight)
    }

    /// Enters if it fits and nobody waits. Returns the permits in use afterwards.
    #[inline]
    pub(super) fn try_enter(&self, weight: u32) -> Option<u32> {
        self.update_word(Ordering::Acquire, |word| {
            (!word.is_queued() && word.fits(weight)).then(|| word.with_added(weight))
        })
        .map(GateWord::in_use)
    }

    /// As [`try_enter`](Self::try_enter), but only up to this percentage of the limit, and at least 1.
    #[inline]
    pub(super) fn try_enter_within(&self, weight: u32, percent: u8) -> Option<u32> {
        self.update_word(Ordering::Acquire, |word| {
            let within = percent_of_limit(word.limit(), percent);
            let fits = u64::from(word.in_use()) + u64::from(weight) <= u64::from(within);
            (!word.is_queued() && fits && word.fits(weight)).then(|| word.with_added(weight))
        })
        .map(GateWord::in_use)
    }

    /// Enters even above the limit, for a caller to which this was promised.
    pub(super) fn enter_over_limit(&self, weight: u32) -> u32 {
        let before = self.word.fetch_add(u64::from(weight), Ordering::Acquire);
        GateWord(before).in_use().saturating_add(weight)
    }

    /// Releases this weight, and admits waiters that fit now.
    #[inline]
    pub(super) fn release(&self, weight: u32) {
        let before = self.word.fetch_sub(u64::from(weight), Ordering::Release);
        if GateWord(before).is_queued() {
            self.admit_waiters();
        }
    }

    /// Enters, or joins the queue if fewer than `most` wait. The position has no waker until
    /// [`poll_grant`](Self::poll_grant).
    pub(super) fn enqueue(&self, weight: u32, most: usize) -> JoinOutcome {
        let mut queue = ignore_poison(self.queue.lock());
        if queue.fifo.len() == 0 {
            // Releases up to the moment that sets the flag are seen here; later ones see the flag.
            let mut never = false;
            let stepped = self.update_word(Ordering::Acquire, |word| {
                never = weight > word.limit();
                if word.fits(weight) {
                    Some(word.with_added(weight))
                } else {
                    (most > 0 && !never).then(|| word.queued())
                }
            });
            match stepped {
                Some(word) if word.is_queued() => {}
                Some(word) => {
                    return JoinOutcome::Entered {
                        in_flight: word.in_use(),
                    };
                }
                None if never => return JoinOutcome::Never,
                None => return JoinOutcome::QueueFull,
            }
        } else if weight > GateWord(self.word.load(Ordering::Relaxed)).limit() {
            return JoinOutcome::Never;
        } else if queue.fifo.len() >= most {
            return JoinOutcome::QueueFull;
        }
        // A waiter here keeps its own timeout.
        let waiter = WaiterPlace::new(Timestamp::ZERO, u64::from(weight), None, ());
        let WaitQueue {
            places, fifo: line, ..
        } = &mut *queue;
        let place = places.insert(waiter);
        places.push(line, place);
        self.store_queue_length(&queue);
        JoinOutcome::Queued { place }
    }

    /// How a wait ended; none while it lasts, and then this waker is woken when it ends.
    pub(super) fn poll_grant(&self, place: WaiterId, waker: &Waker) -> Option<Grant> {
        self.with_queue(|queue| {
            let told = queue.places.collect(place);
            match told {
                Some(_) => queue.wakers.remove_waker(place),
                None => queue.wakers.store_waker(place, waker, None),
            }
            told
        })
    }

    /// Leaves the queue; if the wait ended meanwhile, returns how.
    pub(super) fn abandon(&self, place: WaiterId) -> Option<Grant> {
        self.with_queue(|queue| {
            let told = queue.places.collect(place);
            queue.wakers.remove_waker(place);
            if told.is_none() {
                let WaitQueue {
                    places, fifo: line, ..
                } = &mut *queue;
                places.unlink(line, place);
                places.remove(place);
                self.store_queue_length(queue);
                // Waiters behind this one may fit where it didn't.
                self.admit_fitting(queue);
            }
            told
        })
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.change_limit(limit).wake();
    }

    /// Changes the limit: admits waiters that fit now, and denies those whose weight is above it. The
    /// returned wakers must be woken without holding a lock.
    pub(super) fn change_limit(&self, limit: u32) -> PendingWakeups {
        let mut queue = ignore_poison(self.queue.lock());
        self.update_word(Ordering::Relaxed, |word| Some(word.with_limit(limit)));
        let limit = limit.min(MAX_LIMIT);
        let mut next = queue.fifo.first();
        while let Some((id, place)) = next.and_then(|id| Some((id, queue.places.get(id)?))) {
            next = place.next();
            if waiter_weight(place) > limit {
                queue.finish(id, Grant::Never);
            }
        }
        self.store_queue_length(&queue);
        self.admit_fitting(&mut queue);
        queue.wake_finished()
    }

    /// Admits the head of the queue for as long as it fits.
    #[cold]
    fn admit_waiters(&self) {
        self.with_queue(|queue| self.admit_fitting(queue));
    }

    fn admit_fitting(&self, queue: &mut WaitQueue) {
        while self.admit_first(queue).is_some() {}
    }

    fn admit_first(&self, queue: &mut WaitQueue) -> Option<()> {
        let (first, weight) = queue.first()?;
        let last = queue.fifo.len() == 1;
        // Acquire: the lock orders this after the thread that took it to make room, but another thread
        // may have released since and be on its way to the lock.
        let entered = self.update_word(Ordering::Acquire, |word| {
            let entered = word.fits(weight).then(|| word.with_added(weight))?;
            // The flag is cleared together with the last entry, so that no new request is denied in
            // between.
            Some(if last {
                entered.without_queued()
            } else {
                entered
            })
        })?;
        let in_flight = entered.in_use();
        queue.finish(first, Grant::Granted { in_flight });
        self.store_queue_length(queue);
        Some(())
    }

    /// Updates the flag and the count to match the queue, under its lock.
    fn store_queue_length(&self, queue: &WaitQueue) {
        let length = queue.fifo.len();
        self.queued.store(length, Ordering::Relaxed);
        if length == 0 {
            self.update_word(Ordering::Relaxed, |word| {
                word.is_queued().then(|| word.without_queued())
            });
        }
    }

    /// Changes the word by compare-and-swap unless `to` declines. Returns the new word.
    #[inline]
    fn update_word(
        &self,
        success: Ordering,
        mut to: impl FnMut(GateWord) -> Option<GateWord>,
    ) -> Option<GateWord> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = to(GateWord(word))?;
            match self
                .word
                .compare_exchange_weak(word, next.0, success, Ordering::Relaxed)
            {
                Ok(_) => return Some(next),
                Err(seen) => word = seen,
            }
        }
    }

    /// Changes the queue, and wakes the affected waiters.
    fn with_queue<T>(&self, change: impl FnOnce(&mut WaitQueue) -> T) -> T {
        let mut queue = ignore_poison(self.queue.lock());
        let result = change(&mut queue);
        let woken = queue.wake_finished();
        drop(queue);
        woken.wake();
        result
    }
}

/// This percentage of a limit, rounded down; at least 1 unless the limit is 0.
#[inline]
pub fn percent_of_limit(limit: u32, percent: u8) -> u32 {
    let part = u64::from(limit) * u64::from(percent.min(100)) / 100;
    // A part is at most the whole, so it fits.
    u32::try_from(part)
        .unwrap_or(limit)
        .clamp(limit.min(1), limit)
}
