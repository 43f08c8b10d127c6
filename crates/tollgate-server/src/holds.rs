//! What callers hold: slots and estimates of requests that passed, until they are given back or their time is over.
//!
//! A caller of HTTP has a name for what it holds. One of Envoy's or Redis' protocol has none: what the same request gives
//! back later is the oldest that it holds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tollgate::concurrency::Ending;
use tollgate_engine::verdict::Permits;

/// What callers hold.
#[derive(Debug)]
pub(crate) struct Holds {
    table: Mutex<Table>,
    /// The next to end has changed.
    sooner: Notify,
    most: usize,
    hashers: [RandomState; 2],
    /// How many estimates were settled. Written (release) after one is.
    settled: AtomicU64,
}

/// What stands for a name, or for what was asked: names are as long as their callers like, and this isn't. Nobody
/// outside can find two of which it is the same.
type Id = [u64; 2];

#[derive(Debug, Default)]
struct Table {
    held: HashMap<Id, VecDeque<Held>>,
    /// When each ends, or ended before it was renewed.
    ends: BinaryHeap<Reverse<(Instant, Id)>>,
    count: usize,
    /// Names that are being decided about.
    undecided: HashSet<Id>,
}

#[derive(Debug)]
struct Held {
    permits: Permits,
    until: Instant,
    /// What its caller has asked, if it has a name, and was told.
    asked: Id,
    answer: Box<[u8]>,
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
}

/// There is no room for more: whoever should have held something must not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    most: usize,
}

impl Holds {
    /// Room for so many.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            table: Mutex::default(),
            sooner: Notify::new(),
            most,
            hashers: [RandomState::new(), RandomState::new()],
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
        self.table().count
    }

    /// Tells what a request did cost that held this, which may be more than was thought.
    pub(crate) fn settle(&self, mut permits: Permits, spent: u64, ending: Ending) {
        permits.settle(spent);
        permits.end(ending);
        // Afterwards: whoever sees the number sees what it stands for.
        self.settled.fetch_add(1, Ordering::Release);
    }

    /// A number that grows whenever something is settled.
    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// What there is by a name, for one that asks this. A call that finds nothing has the name to itself until it is
    /// [decided](Self::decided).
    pub(crate) fn ask_for(&self, name: &[u8], asked: &[u8]) -> Known {
        let (name, asked) = (self.id(name), self.id(asked));
        let mut table = self.table();
        let ended = table.end(Instant::now());
        let held = table.first(&name).map(|held| {
            if held.asked == asked {
                Known::Held(held.answer.clone())
            } else {
                Known::Other
            }
        });
        let known = match held {
            Some(known) => known,
            None if table.undecided.insert(name) => Known::Nothing,
            None => Known::Undecided,
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
    /// If there is no room they are cancelled: it never ran.
    pub(crate) fn keep(&self, name: &[u8], permits: Permits, life: Duration) -> Result<(), Full> {
        self.keep_answered(name, permits, life, (&[], &[]))
    }

    /// The same, with what the caller has asked and is told, to tell it again.
    pub(crate) fn keep_answered(
        &self,
        name: &[u8],
        permits: Permits,
        life: Duration,
        (asked, answer): (&[u8], &[u8]),
    ) -> Result<(), Full> {
        let (name, asked) = (self.id(name), self.id(asked));
        let until = Instant::now() + life;
        let mut table = self.table();
        let ended = table.end(Instant::now());
        if table.count >= self.most {
            drop(table);
            drop(ended);
            permits.cancel();
            return Err(Full { most: self.most });
        }
        let held = Held {
            permits,
            until,
            asked,
            answer: answer.into(),
        };
        table.held.entry(name).or_default().push_back(held);
        table.count += 1;
        let is_next = table
            .ends
            .peek()
            .is_none_or(|Reverse((next, _))| until < *next);
        table.ends.push(Reverse((until, name)));
        table.forget_old_ends();
        drop(table);
        if is_next {
            self.sooner.notify_one();
        }
        Ok(())
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

    /// Whether a name has something, which then lives so long from now.
    pub(crate) fn renew(&self, name: &[u8], life: Duration) -> bool {
        let (name, now) = (self.id(name), Instant::now());
        let until = now + life;
        let mut table = self.table();
        let ended = table.end(now);
        let mut found = false;
        for held in table.held.get_mut(&name).into_iter().flatten() {
            (held.until, found) = (until, true);
        }
        if found {
            table.ends.push(Reverse((until, name)));
            table.forget_old_ends();
        }
        drop(table);
        drop(ended);
        self.sooner.notify_one();
        found
    }

    /// Ends what isn't given back in time. It never returns.
    pub(crate) async fn watch(&self) {
        loop {
            let (ended, next) = {
                let mut table = self.table();
                let ended = table.end(Instant::now());
                let next = table.ends.peek().map(|Reverse((at, _))| *at);
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

impl Table {
    /// Takes out all whose time is over. They are dropped once the lock is free: that may ask a store.
    fn end(&mut self, now: Instant) -> Vec<Permits> {
        let mut ended = Vec::new();
        while self.ends.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, name))) = self.ends.pop() else {
                break;
            };
            while self.first(&name).is_some_and(|held| held.until <= now) {
                ended.extend(self.take_first(&name));
            }
        }
        ended
    }

    /// Whoever renews or gives back leaves a time behind: all of them are thrown out once they are many.
    fn forget_old_ends(&mut self) {
        if self.ends.len() <= self.count * 4 + 64 {
            return;
        }
        let all = self
            .held
            .iter()
            .flat_map(|(name, own)| own.iter().map(|held| Reverse((held.until, *name))));
        self.ends = all.collect();
    }

    fn first(&self, name: &Id) -> Option<&Held> {
        self.held.get(name)?.front()
    }

    fn take_first(&mut self, name: &Id) -> Option<Permits> {
        let own = self.held.get_mut(name)?;
        let held = own.pop_front()?;
        self.count -= 1;
        if own.is_empty() {
            self.held.remove(name);
        }
        Some(held.permits)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_or_renewed_leaves_no_end_behind() {
        let (holds, hour) = (Holds::new(10), Duration::from_secs(3_600));
        assert!(holds.keep(b"kept", Permits::default(), hour).is_ok());
        let check = || {
            let ends = holds.table().ends.len();
            assert!(ends <= 100, "{ends} ends of one that is held");
        };
        for _ in 0..1_000 {
            assert!(holds.keep(b"short", Permits::default(), hour).is_ok());
            assert!(holds.take(b"short").is_some());
        }
        check();
        for _ in 0..1_000 {
            assert!(holds.renew(b"kept", hour));
        }
        check();
    }
}
