//! The state of one concurrency limit: a word that decides, and a queue for those who wait.
//!
//! # The word
//! In use, the limit, and whether anybody is queued lie in one atomic word, so a decision is one
//! compare-and-swap on all three: nobody passes on a limit that was changed meanwhile, and nobody
//! overtakes the queue. The queue lies behind a lock that only waiting takes.
//!
//! * The flag is set exactly while the queue holds somebody; only the holder of the lock changes it.
//! * While it is set, only the holder of the lock adds to what is in use. Others may give back.
//! * Whoever gives back reads the flag with the same operation. If it was clear, then whoever sets
//!   it later sees what was given back. If it was set, the giver takes the lock and admits the head.
//!   So no wake-up is lost.
//!
//! # Memory ordering
//! All of this is about the order of changes to one word, which every ordering keeps. Giving back
//! releases and entering acquires, so that what was done under a permit is seen by whoever has it
//! next; those who enter from the queue get the same from the lock, which both sides take.

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

/// One limit and those who wait for it.
#[derive(Debug)]
pub struct Gate {
    word: AtomicU64,
    /// How many are queued, to be read without the lock.
    queued: AtomicUsize,
    queue: Mutex<WaitQueue>,
}

/// What the word says.
#[derive(Clone, Copy, Debug)]
struct GateWord(u64);

/// Those who wait, in the order in which they came, and the results of waits whose tasks have not looked yet.
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

    /// Who is first, and what it asks for.
    fn first(&self) -> Option<(WaiterId, u32)> {
        let first = self.fifo.first()?;
        Some((first, waiter_weight(self.places.get(first)?)))
    }

    fn finish(&mut self, id: WaiterId, told: Grant) {
        self.places.finish(&mut self.fifo, id, told);
    }

    /// Whom to wake after a change, once the lock is released.
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
    /// It has its permit; so much is in flight with it.
    Granted { in_flight: u32 },
    /// The limit fell below what it asks for.
    Never,
}

/// What came of asking to enter or to be queued.
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

    /// With so much more in use; the caller has seen that it fits, so nothing carries over.
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

    /// The limit in force.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        GateWord(self.word.load(Ordering::Relaxed)).limit()
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        let word = GateWord(self.word.load(Ordering::Relaxed));
        Occupancy {
            limit: word.limit(),
            in_use: word.in_use(),
            // The flag decides, and the count may be a moment behind it.
            waiting: if word.is_queued() {
                self.queued.load(Ordering::Relaxed).max(1)
            } else {
                0
            },
        }
    }

    /// Whether a newcomer of this weight would enter.
    #[inline]
    pub(crate) fn fits(&self, weight: u32) -> bool {
        let word = GateWord(self.word.load(Ordering::Relaxed));
        !word.is_queued() && word.fits(weight)
    }

    /// Enters if it fits and nobody waits; what is in flight then.
    #[inline]
    pub(super) fn try_enter(&self, weight: u32) -> Option<u32> {
        self.update_word(Ordering::Acquire, |word| {
            (!word.is_queued() && word.fits(weight)).then(|| word.with_added(weight))
        })
        .map(GateWord::in_use)
    }

    /// As [`try_enter`](Self::try_enter) while no more than this part of the limit is in use then, but one at least.
    #[inline]
    pub(super) fn try_enter_within(&self, weight: u32, percent: u8) -> Option<u32> {
        self.update_word(Ordering::Acquire, |word| {
            let within = percent_of_limit(word.limit(), percent);
            let fits = u64::from(word.in_use()) + u64::from(weight) <= u64::from(within);
            (!word.is_queued() && fits && word.fits(weight)).then(|| word.with_added(weight))
        })
        .map(GateWord::in_use)
    }

    /// Enters whether it fits or not: somebody was promised that.
    pub(super) fn enter_over_limit(&self, weight: u32) -> u32 {
        let before = self.word.fetch_add(u64::from(weight), Ordering::Acquire);
        GateWord(before).in_use().saturating_add(weight)
    }

    /// Gives back what was entered with, and admits whoever that makes room for.
    #[inline]
    pub(super) fn release(&self, weight: u32) {
        let before = self.word.fetch_sub(u64::from(weight), Ordering::Release);
        if GateWord(before).is_queued() {
            self.admit_waiters();
        }
    }

    /// Enters, or takes a place at the end of the queue if fewer than `most` are there.
    /// A place has no waker until it is [asked](Self::ask) for its result.
    pub(super) fn enqueue(&self, weight: u32, most: usize) -> JoinOutcome {
        let mut queue = ignore_poison(self.queue.lock());
        if queue.fifo.len() == 0 {
            // What is given back up to the moment that sets the flag is seen here.
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
        // Whoever waits here keeps its own time.
        let waiter = WaiterPlace::new(Timestamp::ZERO, u64::from(weight), None, ());
        let WaitQueue {
            places, fifo: line, ..
        } = &mut *queue;
        let place = places.insert(waiter);
        places.push(line, place);
        self.store_queue_length(&queue);
        JoinOutcome::Queued { place }
    }

    /// How a wait ended. Nothing if it hasn't yet: then this waker is woken when it does.
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

    /// Leaves the queue; or, if the wait ended meanwhile, returns how.
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

    /// Changes the limit: admits waiters that it makes room for, and refuses those that ask for more than it. They are
    /// woken by what this returns, under no lock.
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
        // Acquire: the lock orders this after whoever took it to make room, but another may have
        // given back since and be on its way to the lock.
        let entered = self.update_word(Ordering::Acquire, |word| {
            let entered = word.fits(weight).then(|| word.with_added(weight))?;
            // The flag falls with the last one's entry, so that no newcomer is refused in between.
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

    /// Keeps the flag and the count in step with the queue, under its lock.
    fn store_queue_length(&self, queue: &WaitQueue) {
        let length = queue.fifo.len();
        self.queued.store(length, Ordering::Relaxed);
        if length == 0 {
            self.update_word(Ordering::Relaxed, |word| {
                word.is_queued().then(|| word.without_queued())
            });
        }
    }

    /// Changes the word by compare-and-swap unless `to` declines; what it became.
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

    /// Changes the queue, and wakes the waiters that are affected.
    fn with_queue<T>(&self, change: impl FnOnce(&mut WaitQueue) -> T) -> T {
        let mut queue = ignore_poison(self.queue.lock());
        let result = change(&mut queue);
        let woken = queue.wake_finished();
        drop(queue);
        woken.wake();
        result
    }
}

/// So many percent of a limit, rounded down, and one at least if there is any.
#[inline]
pub fn percent_of_limit(limit: u32, percent: u8) -> u32 {
    let part = u64::from(limit) * u64::from(percent.min(100)) / 100;
    // No part is more than the whole, so it fits.
    u32::try_from(part)
        .unwrap_or(limit)
        .clamp(limit.min(1), limit)
}
