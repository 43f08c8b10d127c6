//! Slots that requests of this node hold, renewed while they do: those of a dead node run out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::time::Instant;

use crate::direct::Time;
use crate::error::StoreError;
use crate::host::Host;
use crate::question::{Answers, Numbers, Op, Question};
use crate::store::Store;

/// So many are renewed or given back at once: more would wait for each other for too long, and let
/// decisions wait.
const AT_ONCE: usize = 128;
/// Slots that wait to be given back. Others run out.
const MOST_ENDED: usize = 65_536;
/// Between attempts to give slots back: so long at first, twice as long each time, and no longer than this.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// All slots of this node.
#[derive(Debug)]
pub(crate) struct Holders {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<Store>,
    held: Mutex<BTreeMap<Box<str>, Held>>,
    ended: Mutex<Ended>,
    life: Duration,
    /// Instead of the store's clock.
    time: Option<Time>,
    /// Tells this node from all others.
    node: u64,
    next: AtomicU64,
    /// Slots that ran out although they were held: the node was asleep, or the store away.
    lost: AtomicU64,
    host: Host,
}

/// Slots to give back.
#[derive(Debug, Default)]
struct Ended {
    /// And since when that is due.
    slots: Vec<(Box<str>, Held, Instant)>,
    /// Whether someone does.
    is_said: bool,
}

#[derive(Clone, Debug)]
struct Held {
    key: Box<str>,
    numbers: Numbers,
}

impl Holders {
    pub(crate) fn new(
        (store, time): (Arc<Store>, Option<Time>),
        host: Host,
        life: Duration,
    ) -> Self {
        let inner = Arc::new(Inner {
            store,
            held: Mutex::default(),
            ended: Mutex::default(),
            life,
            time,
            node: host.random(),
            next: AtomicU64::new(1),
            lost: AtomicU64::new(0),
            host,
        });
        // A renewal may fail twice before a slot is lost.
        inner.host.spawn(renew(Arc::downgrade(&inner), life / 3));
        Self { inner }
    }

    /// A name for who takes a slot.
    pub(crate) fn name(&self) -> Box<str> {
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}-{number:x}", self.inner.node).into()
    }

    /// A slot was taken: it is renewed until the returned closure is called.
    pub(crate) fn hold(
        &self,
        question: &Question,
    ) -> Option<impl FnOnce() + Send + Sync + 'static + use<>> {
        let name = question.holder.clone()?;
        let held = Held {
            key: question.key.clone(),
            numbers: question.numbers,
        };
        self.inner.lock().insert(name.clone(), held);
        let inner = Arc::clone(&self.inner);
        Some(move || inner.release(name))
    }

    /// Gives back a slot that may or may not have been taken.
    pub(crate) fn forget(&self, question: &Question) {
        if let Some(end) = self.hold(question) {
            end();
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.inner.lock().len()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.inner.lost.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, question: Question) -> Result<Answers, StoreError> {
        let at = self.time.as_ref().map(|time| time().as_nanos() / 1000);
        self.store.ask(vec![question], at).await
    }

    fn release(self: Arc<Self>, name: Box<str>) {
        let Some(held) = self.lock().remove(&name) else {
            return;
        };
        let mut ended = self.ended();
        if ended.slots.len() < MOST_ENDED {
            ended.slots.push((name, held, Instant::now()));
        }
        let is_said = std::mem::replace(&mut ended.is_said, true);
        drop(ended);
        if !is_said {
            self.host.spawn(say_ended(Arc::clone(&self)));
        }
    }

    /// What has ended and is to be said next; nothing once all is said.
    fn next_ended(&self) -> Option<Vec<(Box<str>, Held, Instant)>> {
        let mut ended = self.ended();
        if ended.slots.is_empty() {
            ended.is_said = false;
            return None;
        }
        let rest = ended.slots.len().saturating_sub(AT_ONCE);
        Some(ended.slots.split_off(rest))
    }
}

/// Gives back what has ended, until all of it is said or has run out.
async fn say_ended(inner: Arc<Inner>) {
    let mut pause = FIRST_PAUSE;
    while let Some(some) = inner.next_ended() {
        let said = some.into_iter().map(async |(name, held, since)| {
            let question = held.clone().question(name.clone(), Op::Release);
            let said = inner.ask(question).await;
            said.is_err().then_some((name, held, since))
        });
        let unsaid = join_all(said).await.into_iter().flatten();
        let is_due = |(_, _, since): &(_, _, Instant)| since.elapsed() < inner.life;
        let due: Vec<_> = unsaid.filter(is_due).collect();
        if due.is_empty() {
            pause = FIRST_PAUSE;
            continue;
        }
        inner.ended().slots.extend(due);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

impl Held {
    fn question(self, name: Box<str>, op: Op) -> Question {
        Question {
            key: self.key,
            op,
            numbers: self.numbers,
            cost: 1,
            holder: Some(name),
        }
    }
}

async fn renew(holders: Weak<Inner>, every: Duration) {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick comes at once.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(inner) = holders.upgrade() else {
            return;
        };
        let held = inner.lock().clone();
        let renewals = held.into_iter().map(|(name, held)| {
            let question = held.question(name.clone(), Op::Renew);
            let renewal = inner.ask(question);
            async move { (name, renewal.await) }
        });
        let mut renewals = stream::iter(renewals).buffer_unordered(AT_ONCE);
        while let Some((name, answer)) = renewals.next().await {
            let raw = answer
                .ok()
                .and_then(|answers| answers.each.first().copied());
            // What has run out can't be renewed, nor given back.
            if raw.is_some_and(|raw| raw.outcome == 0) && inner.lock().remove(&name).is_some() {
                inner.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
