//! Slots that requests of this node hold, renewed while they do: those of a dead node run out.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::question::{Numbers, Op, Question};
use crate::store::Store;

/// All slots of this node.
#[derive(Debug)]
pub(crate) struct Holders {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    held: Mutex<HashMap<Box<str>, Held>>,
    /// Tells this node from all others.
    node: u64,
    next: AtomicU64,
    /// Slots that ran out although they were held: the node was asleep, or the store away.
    lost: AtomicU64,
    runtime: Handle,
}

#[derive(Clone, Debug)]
struct Held {
    key: Box<str>,
    numbers: Numbers,
}

impl Holders {
    pub(crate) fn new(store: Arc<Store>, runtime: Handle, life: Duration) -> Self {
        let inner = Arc::new(Inner {
            store,
            held: Mutex::default(),
            node: RandomState::new().hash_one(0x686F_6C64_6572_u64),
            next: AtomicU64::new(1),
            lost: AtomicU64::new(0),
            runtime,
        });
        // A renewal may fail twice before a slot is lost.
        inner.runtime.spawn(renew(Arc::downgrade(&inner), life / 3));
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
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(self: Arc<Self>, name: Box<str>) {
        let Some(held) = self.lock().remove(&name) else {
            return;
        };
        let question = held.question(name, Op::Release);
        let inner = Arc::clone(&self);
        // If it can't be said, the slot runs out.
        self.runtime.spawn(async move {
            let _ = inner.store.ask(vec![question], None).await;
        });
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
            let question = held.question(name, Op::Renew);
            inner.store.ask(vec![question], None)
        });
        let lost = join_all(renewals).await.into_iter();
        let lost = lost.filter(|answer| {
            let raw = answer
                .as_ref()
                .ok()
                .and_then(|answers| answers.each.first());
            raw.is_some_and(|raw| raw.outcome == 0)
        });
        let lost = u64::try_from(lost.count()).unwrap_or(u64::MAX);
        inner.lost.fetch_add(lost, Ordering::Relaxed);
    }
}
