//! What callers hold: slots and estimates of requests that passed, until they are given back or their time is over.
//!
//! A caller of HTTP has a name for what it holds, and how that ended is known for a while: what a request cost may be said
//! late. One of Envoy's or Redis' protocol has none: what the same request gives back later is the oldest that it holds.

use std::cmp::Reverse;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tollgate::concurrency::Ending;
use tollgate::stack::Settlement;
use tollgate_engine::verdict::Permits;

mod table;
#[cfg(test)]
mod tests;

use table::{Ended, Held, Table};

/// What callers hold.
#[derive(Debug)]
pub(crate) struct Holds {
    table: Mutex<Table>,
    /// The next to end has changed.
    sooner: Notify,
    most: usize,
    /// That of the table.
    count: Arc<AtomicUsize>,
    hashers: [RandomState; 2],
    /// How many requests weren't decided because no more may be held.
    times_full: AtomicU64,
    /// How many estimates were settled. Written (release) after one is.
    settled: AtomicU64,
}

/// What stands for a name, or for what was asked: names are as long as their callers like, and this isn't. Nobody
/// outside can find two of which it is the same.
type Id = [u64; 2];

/// How a caller has ended what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowEnded {
    Released,
    Settled(Settlement),
}

/// While there is more room than this, nobody asks for some before a request is decided: that takes a look at its rules.
const PLENTY: usize = 1_024;

/// Room for what one request holds, until it holds it or this is dropped.
#[derive(Debug)]
pub(crate) struct Room<'a>(&'a Holds);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.table().reserved -= 1;
    }
}

/// Whether a request may come to hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Room,
    /// It only remembers an answer.
    Nothing,
}

/// What there is by a name that a caller has chosen.
#[derive(Debug)]
pub(crate) enum Known {
    /// Nothing: whoever is told this decides, and says when that is [done](Holds::decided).
    Nothing,
    /// Another call with this name is being decided.
    Undecided,
    /// This was answered, and is held.
    Held(Box<[u8]>),
    /// Something else was asked by this name, and is held.
    Other,
    /// Nothing, and there is no room for more.
    Full(Full),
}

/// There is no room for more: whoever should have held something must not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    most: usize,
}

impl Holds {
    /// Room for so many.
    pub(crate) fn new(most: usize) -> Self {
        let table = Table::default();
        Self {
            count: Arc::clone(&table.count),
            table: Mutex::new(table),
            sooner: Notify::new(),
            most,
            hashers: [RandomState::new(), RandomState::new()],
            times_full: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    fn id(&self, name: &[u8]) -> Id {
        self.hashers.each_ref().map(|hasher| hasher.hash_one(name))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are held.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many requests weren't decided because no more may be held.
    pub(crate) fn times_full(&self) -> u64 {
        self.times_full.load(Ordering::Relaxed)
    }

    /// One more request isn't decided.
    #[cold]
    fn full(&self) -> Full {
        self.times_full.fetch_add(1, Ordering::Relaxed);
        Full { most: self.most }
    }

    /// Whether there is room for many more.
    pub(crate) fn has_plenty(&self) -> bool {
        self.count() + PLENTY < self.most
    }

    /// Room for what a request comes to hold that has no name.
    pub(crate) fn reserve(&self) -> Result<Room<'_>, Full> {
        let mut table = self.table();
        let ended = table.end(Instant::now());
        let has_room = table.occupied() < self.most;
        table.reserved += usize::from(has_room);
        drop(table);
        drop(ended);
        if has_room {
            Ok(Room(self))
        } else {
            Err(self.full())
        }
    }

    /// Tells what a request did cost that was held by a name, which may be more than was thought, and ends it; again what
    /// was said first, if it is said again. None if the name isn't known, or was released.
    pub(crate) fn settle(&self, name: &[u8], spent: u64, ending: Ending) -> Option<Settlement> {
        let (name, now) = (self.id(name), Instant::now());
        let mut table = self.table();
        let ended = table.end(now);
        // Under the lock: whoever says the same at the same time finds what became of it.
        let permits = match table.take_first(&name) {
            Some(permits) => Some(permits),
            None => table.take_unsettled(&name, now),
        };
        let said = match permits {
            Some(mut permits) => {
                let said = permits.settle(spent);
                permits.end(ending);
                table.note_ended(name, Ended::ByCaller(HowEnded::Settled(said)), now);
                Some(said)
            }
            None => match table.how_ended(&name, now) {
                Some(HowEnded::Settled(said)) => Some(said),
                Some(HowEnded::Released) | None => None,
            },
        };
        drop(table);
        drop(ended);
        // Afterwards: whoever sees the number sees what it stands for.
        self.settled.fetch_add(1, Ordering::Release);
        said
    }

    /// Ends what was held by a name. No if nothing is, unless it was just released.
    pub(crate) fn release(&self, name: &[u8], ending: Ending) -> bool {
        let (name, now) = (self.id(name), Instant::now());
        let mut table = self.table();
        let ended = table.end(now);
        let permits = table.take_first(&name);
        let is_released = match &permits {
            Some(_) => {
                table.note_ended(name, Ended::ByCaller(HowEnded::Released), now);
                true
            }
            None => table.how_ended(&name, now) == Some(HowEnded::Released),
        };
        drop(table);
        drop(ended);
        if let Some(permits) = permits {
            permits.end(ending);
        }
        is_released
    }

    /// A number that grows whenever something is settled.
    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// What there is by a name, for one that asks this. A call that finds nothing has the name to itself until it is
    /// [decided](Self::decided).
    pub(crate) fn ask_for(&self, name: &[u8], asked: &[u8], needs: Needs) -> Known {
        let (name, asked) = (self.id(name), self.id(asked));
        let mut table = self.table();
        let ended = table.end(Instant::now());
        let held = table.first(&name).map(|held| {
            if held.asked == Some(asked) {
                Known::Held(held.answer.clone())
            } else {
                Known::Other
            }
        });
        // Whoever is told to decide has room for what that comes to.
        let has_room = needs == Needs::Nothing || table.occupied() < self.most;
        let known = match held {
            Some(known) => known,
            None if table.undecided.contains(&name) => Known::Undecided,
            None if !has_room => Known::Full(self.full()),
            None => {
                table.undecided.insert(name);
                Known::Nothing
            }
        };
        drop(table);
        drop(ended);
        known
    }

    /// Others may ask for a name again.
    pub(crate) fn decided(&self, name: &[u8]) {
        self.table().undecided.remove(&self.id(name));
    }

    /// Keeps what a request holds, by a name that may have others already.
    /// If there is no room for them, and none was reserved, they are cancelled: it never ran.
    pub(crate) fn keep(
        &self,
        name: &[u8],
        (permits, life): (Permits, Duration),
        room: Option<Room<'_>>,
    ) -> Result<(), Full> {
        let name = self.id(name);
        let mut table = self.table();
        let ended = table.end(Instant::now());
        let is_reserved = room.is_some();
        if let Some(room) = room {
            // Under the lock: nobody else has it in between.
            std::mem::forget(room);
            table.reserved -= 1;
        }
        if !permits.is_empty() && !is_reserved && table.occupied() >= self.most {
            drop(table);
            drop(ended);
            permits.cancel();
            return Err(self.full());
        }
        self.put(table, name, (permits, life), None);
        Ok(())
    }

    /// The same for one that [has room](Self::ask_for), with what the caller has asked and is told, to tell it again.
    pub(crate) fn keep_answered(
        &self,
        name: &[u8],
        held: (Permits, Duration),
        (asked, answer): (&[u8], &[u8]),
    ) {
        let (name, asked) = (self.id(name), self.id(asked));
        self.put(self.table(), name, held, Some((asked, answer.into())));
    }

    fn put(
        &self,
        mut table: MutexGuard<'_, Table>,
        name: Id,
        (permits, life): (Permits, Duration),
        answered: Option<(Id, Box<[u8]>)>,
    ) {
        let now = Instant::now();
        let (asked, answer) = answered.unzip();
        let number = table.next;
        table.next += 1;
        if permits.is_empty() {
            table.remember_empty(name, number);
        } else {
            table.count.fetch_add(1, Ordering::Relaxed);
        }
        let held = Held {
            number,
            permits,
            until: now + life,
            asked,
            answer: answer.unwrap_or_default(),
        };
        // A name that begins anew hasn't ended.
        let before = table.ended.remove(&name);
        let first = held.next(now);
        let is_next = table
            .ends
            .peek()
            .is_none_or(|Reverse((next, ..))| first < *next);
        table.ends.push(Reverse((first, name, number)));
        table.held.entry(name).or_default().push_back(held);
        table.forget_old_ends(now);
        drop(table);
        drop(before);
        if is_next {
            self.sooner.notify_one();
        }
    }

    /// Takes the oldest of a name, to end it.
    pub(crate) fn take(&self, name: &[u8]) -> Option<Permits> {
        let name = self.id(name);
        let mut table = self.table();
        let ended = table.end(Instant::now());
        let taken = table.take_first(&name);
        drop(table);
        drop(ended);
        taken
    }

    /// Whether a name has something, which then lives so long from now; the time of its estimates begins anew.
    pub(crate) fn renew(&self, name: &[u8], life: Duration) -> bool {
        self.prolong(name, |now, _| now + life).is_some()
    }

    /// How long something of this name lives on: at least so long from now, and no shorter than before. None if nothing is held.
    pub(crate) fn lengthen(&self, name: &[u8], life: Duration) -> Option<Duration> {
        self.prolong(name, |now, until| until.max(now + life))
    }

    /// Has what is held by a name live until then, as of now and of when it would have ended. How long the first of it lives.
    fn prolong(
        &self,
        name: &[u8],
        until: impl Fn(Instant, Instant) -> Instant,
    ) -> Option<Duration> {
        let (name, now) = (self.id(name), Instant::now());
        let mut table = self.table();
        let ended = table.end(now);
        let mut left = None;
        let mut ends = Vec::new();
        for held in table.held.get_mut(&name).into_iter().flatten() {
            held.until = until(now, held.until);
            held.permits.renew();
            left = left.or(Some(held.until - now));
            ends.push(Reverse((held.next(now), name, held.number)));
        }
        table.ends.extend(ends);
        table.forget_old_ends(now);
        drop(table);
        drop(ended);
        self.sooner.notify_one();
        left
    }

    /// Ends what isn't given back in time. It never returns.
    pub(crate) async fn watch(&self) {
        loop {
            let (ended, next) = {
                let mut table = self.table();
                let ended = table.end(Instant::now());
                let next = table.ends.peek().map(|Reverse((at, ..))| *at);
                (ended, next)
            };
            drop(ended);
            match next {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.sooner.notified() => {}
                },
                None => self.sooner.notified().await,
            }
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most;
        write!(
            f,
            "no more may be held: {most} already are (--max-holds), so nothing was decided or charged"
        )
    }
}
