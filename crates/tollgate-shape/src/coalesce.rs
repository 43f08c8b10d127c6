//! Coalescing: items are collected into batches, and each batch is flushed by one call.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use derive_more::{Display, Error};
use derive_where::derive_where;
use tollgate::Clock;
use tollgate::clock::Monotonic;

#[cfg(not(any(loom, shuttle)))]
mod add_future;
mod store;

use crate::builder::{ShaperBuilder, ShaperHandle};
use crate::runner::{Action, AfterChange, DrainTimeout, PendingStore as _};
#[cfg(not(any(loom, shuttle)))]
pub use add_future::AddFuture;
use store::{BatchLimits, BatchStore};

/// How many items are held at most, unless something else is chosen.
const DEFAULT_MAX_PENDING: usize = 65_536;

/// How items are collected; [`build`](Self::build) makes a [`Coalescer`] of it.
///
/// | flushed | by |
/// |---|---|
/// | so long after its first item | [`Coalesce::window`] |
/// | once no item came for so long | [`Coalesce::quiet`], with [`max_wait`](Self::max_wait) from its first item |
/// | when it has so many items | [`max_items`](Self::max_items) |
/// | when it weighs so much | [`max_weight`](Self::max_weight) |
///
/// ```
/// use std::time::Duration;
/// use tollgate_shape::{Coalesce, FlushOutcome};
///
/// let writes = Coalesce::quiet(Duration::from_millis(20))
///     .max_wait(Duration::from_millis(200))
///     .max_weight(1 << 20, |_id: &u64, row: &String| row.len() as u64)
///     .max_pending(100_000)
///     .build(|batch| {
///         println!("{} rows", batch.len());
///         FlushOutcome::Done
///     });
/// let large = writes.try_add(7, "x".repeat(2 << 20)).unwrap_err();
/// assert_eq!(
///     large.to_string(),
///     "the item 7 weighs 2097152, above the 1048576 that a batch may weigh: split it, or raise max_weight"
/// );
/// ```
pub type Coalesce<K, V, C = Monotonic> = ShaperBuilder<BatchLimits<K, V>, C>;

impl<K, V> Coalesce<K, V> {
    /// A batch is flushed this long after its first item.
    pub fn window(window: Duration) -> Self {
        Self::new(Some(window), None)
    }

    /// A batch is flushed once no item came for this long.
    pub fn quiet(quiet: Duration) -> Self {
        Self::new(None, Some(quiet))
    }

    fn new(window: Option<Duration>, quiet: Option<Duration>) -> Self {
        Self::with_settings(BatchLimits {
            max_wait: window,
            quiet,
            max_items: usize::MAX,
            max_weight: u64::MAX,
            weigh: None,
            merge: None,
            max_pending: DEFAULT_MAX_PENDING,
        })
    }
}

impl<K, V, C> Coalesce<K, V, C> {
    /// A batch is flushed this long after its first item at the latest.
    pub fn max_wait(mut self, most: Duration) -> Self {
        let limits = &mut self.settings;
        limits.max_wait = Some(limits.max_wait.map_or(most, |window| window.min(most)));
        self
    }

    /// A batch is flushed when it has this many items; at least one.
    pub fn max_items(mut self, most: usize) -> Self {
        self.settings.max_items = most.max(1);
        self
    }

    /// No batch weighs more than this, by a function such as the number of bytes. An item that alone weighs more is
    /// refused.
    pub fn max_weight(
        mut self,
        most: u64,
        weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.settings.max_weight = most;
        self.settings.weigh = Some(Box::new(weigh));
        self
    }

    /// Items of one key become one item of a batch, at the place of the first: this makes one value of both. It runs
    /// under the coalescer's lock, so it should be quick, and must not call the coalescer.
    ///
    /// Where the weights of both together don't fit into the batch they aren't merged: the later one begins the next batch.
    pub fn merge(mut self, merge: impl Fn(&K, &mut V, V) + Send + Sync + 'static) -> Self {
        self.settings.merge = Some(Box::new(merge));
        self
    }

    /// At most this many items are held, those of a flush that runs with them; 65,536 if nothing is chosen. When there are
    /// that many, what is collected is flushed at once, as nothing more fits.
    pub fn max_pending(mut self, most: usize) -> Self {
        self.settings.max_pending = most.max(1);
        self
    }
}

impl<K, V, C> Coalesce<K, V, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock + Clone + 'static,
{
    /// A coalescer that flushes by this function. It runs where the driver does.
    pub fn build<F>(self, flush: F) -> Coalescer<K, V, C>
    where
        F: Fn(&Batch<K, V>) -> FlushOutcome + Send + Sync + 'static,
    {
        let action = Action::Sync(Box::new(move |batch| flush(&batch)));
        self.start(BatchStore::new, action)
    }

    /// A coalescer that flushes by an async function.
    pub fn build_async<F, R>(self, flush: F) -> Coalescer<K, V, C>
    where
        F: Fn(Batch<K, V>) -> R + Send + Sync + 'static,
        R: Future<Output = FlushOutcome> + Send + 'static,
    {
        let action = Action::Async(Box::new(move |batch| Box::pin(flush(batch))));
        self.start(BatchStore::new, action)
    }
}

/// Collects items into batches, in order, and flushes each by one call. Made by [`Coalesce`].
///
/// * A batch is flushed when its time has come, or it is full. Batches are flushed one after another, in the order in
///   which their items came.
/// * No item is lost, and none is flushed twice: a batch is kept until its flush says [`FlushOutcome::Done`]. A flush that
///   fails says when to try again; one that panics is tried again. Until then later batches wait, so that the order stays.
/// * At most [`max_pending`](Coalesce::max_pending) items are held, those of a flush that runs with them. Beyond that
///   [`add`](Self::add) waits and [`try_add`](Self::try_add) refuses.
/// * When it is stopped, what was not flushed can be had by [`take_leftover`](Self::take_leftover).
///
/// Clones share it. When the last one is dropped it is stopped, and what it holds is discarded unless
/// [`flush_on_drop`](Coalesce::flush_on_drop) was chosen.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Coalesce, FlushOutcome};
///
/// let clock = Manual::new();
/// let invalidations = Coalesce::window(Duration::from_millis(50))
///     .max_items(1_000)
///     .merge(|_key: &String, count: &mut u32, more| *count += more)
///     .clock(clock.clone())
///     .build(|batch| {
///         println!("DEL {:?}", batch.items());
///         FlushOutcome::Done
///     });
/// for key in ["user:1", "user:2", "user:1"] {
///     invalidations.try_add(key.to_string(), 1)?;
/// }
/// assert_eq!(invalidations.pending(), 2);
/// clock.advance(Duration::from_millis(50)); // DEL [("user:1", 2), ("user:2", 1)]
/// assert_eq!(invalidations.pending(), 0);
/// # Ok::<(), tollgate_shape::AddError<String, u32>>(())
/// ```
pub type Coalescer<K, V, C = Monotonic> = ShaperHandle<BatchStore<K, V>, C>;

impl<K, V, C> Coalescer<K, V, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock,
{
    /// Adds an item if there is room for it.
    ///
    /// # Errors
    /// [`AddError`] with the item: there is no room, it is too large for a batch, or it was stopped.
    #[inline]
    pub fn try_add(&self, key: K, value: V) -> Result<(), AddError<K, V>> {
        let mut item = Some((key, value));
        let added = self.0.change(|store, now| store.add(&mut item, None, now));
        match added {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => Err(AddError::new(why, item)),
            None => Err(AddError::new(AddDenied::Stopped, item)),
        }
    }

    /// Flushes everything now instead of later, also what waits to be tried again. How many items there were.
    ///
    /// The first batch of a sync flush has been flushed when this returns, unless another one was running.
    pub fn flush(&self) -> usize {
        self.0.change(BatchStore::flush_now).unwrap_or(0)
    }

    /// How many items are held: those that wait, and those of a flush that runs.
    pub fn pending(&self) -> usize {
        self.0.read(BatchStore::pending)
    }

    /// What was not flushed before it was stopped, in order, and once. A flush that runs while it is stopped and
    /// fails then adds its batch.
    pub fn take_unflushed(&self) -> Vec<Batch<K, V>> {
        self.0.with(BatchStore::take_leftover)
    }

    /// Takes no more items, flushes what there is, and blocks until that has ended, or for at most so long. Then it is stopped.
    /// From inside of a flush it returns at once; when that has ended the rest is flushed, and then it is stopped.
    ///
    /// # Errors
    /// [`DrainTimeout`] if that took longer. What was not flushed is in [`take_leftover`](Self::take_leftover).
    pub fn close_blocking(&self, most: Duration) -> Result<(), DrainTimeout> {
        self.0.close();
        if self.0.is_inside_action() {
            return Ok(());
        }
        let drained = self.0.drain_blocking(most);
        self.stop();
        drained
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<K, V, C> Coalescer<K, V, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock + Clone + 'static,
{
    /// Adds an item, and waits for room if there is none: in order, and dropping the future gives up.
    ///
    /// # Errors
    /// [`AddError`] with the item if it is too large for a batch, or it was stopped.
    pub fn add(&self, key: K, value: V) -> AddFuture<K, V, C> {
        AddFuture {
            coalescer: self.clone(),
            item: Some((key, value)),
            waiter: None,
        }
    }

    /// Takes no more items, flushes what there is, and waits until that has ended, or for at most so long. Then it is stopped.
    /// Awaited inside of a flush it is ready at once; when that has ended the rest is flushed, and then it is stopped.
    ///
    /// # Errors
    /// [`DrainTimeout`] if that took longer. What was not flushed is in [`take_leftover`](Self::take_leftover).
    pub async fn close(&self, most: Duration) -> Result<(), DrainTimeout> {
        self.0.close();
        if self.0.is_inside_action() {
            return Ok(());
        }
        let drained = Arc::clone(&self.0.work).drain(most).await;
        self.stop();
        drained
    }
}

/// What follows from a change of a store of batches.
type NextBatch<K, V> = AfterChange<Batch<K, V>>;

/// Items that are flushed by one call, in the order in which they came. Clones share the items.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Coalesce, FlushOutcome};
///
/// let rows = Coalesce::window(Duration::from_secs(1)).clock(Manual::new()).build(|batch| {
///     for (id, row) in batch.items() {
///         println!("insert {id}: {row}");
///     }
///     FlushOutcome::Done
/// });
/// rows.try_add(1, "one")?;
/// assert_eq!(rows.flush(), 1);
/// # Ok::<(), tollgate_shape::AddError<i32, &str>>(())
/// ```
#[derive(Debug)]
#[derive_where(Clone)]
pub struct Batch<K, V> {
    items: Arc<Vec<(K, V)>>,
    attempt: u32,
}

/// What became of a batch: the caller's policy of retries.
///
/// ```
/// use std::time::Duration;
/// use tollgate_shape::{Batch, FlushOutcome};
///
/// # fn send(_: &[(u64, String)]) -> Result<(), ()> { Err(()) }
/// # fn dead_letter(_: &[(u64, String)]) {}
/// fn flush(batch: &Batch<u64, String>) -> FlushOutcome {
///     match send(batch.items()) {
///         Ok(()) => FlushOutcome::Done,
///         // 100, 200, 400 … ms, and then no more.
///         Err(_) if batch.attempt() < 5 => FlushOutcome::RetryIn(Duration::from_millis(100 << batch.attempt())),
///         Err(_) => {
///             dead_letter(batch.items());
///             FlushOutcome::Done
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// It is done with, whether it was delivered or given up.
    Done,
    /// It failed: the same batch is flushed again after this time, and before all later ones.
    RetryIn(Duration),
}

impl<K, V> Batch<K, V> {
    fn new(items: Vec<(K, V)>) -> Self {
        Self {
            items: Arc::new(items),
            attempt: 0,
        }
    }

    /// The same, to be tried once more.
    fn with_next_attempt(mut self) -> Self {
        self.attempt = self.attempt.saturating_add(1);
        self
    }

    /// The items.
    pub fn items(&self) -> &[(K, V)] {
        &self.items
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none, which no flush gets to see.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How often it was tried before: 0 the first time.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The items by value.
    ///
    /// # Errors
    /// The batch, if a clone of it is still somewhere.
    pub fn into_items(self) -> Result<Vec<(K, V)>, Self> {
        let attempt = self.attempt;
        Arc::try_unwrap(self.items).map_err(|items| Self { items, attempt })
    }
}

/// Why an item was not added.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddDenied {
    /// As many items as may be are held.
    #[display("isn't added: {most} are held already; wait by `add`, or raise max_pending")]
    Full {
        /// How many that are.
        most: usize,
    },
    /// It alone weighs more than a batch may.
    #[display(
        "weighs {weight}, above the {most} that a batch may weigh: split it, or raise max_weight"
    )]
    TooLarge {
        /// What it weighs.
        weight: u64,
        /// What a batch may weigh.
        most: u64,
    },
    /// It was stopped, or is being closed.
    #[display("isn't added: the coalescer was stopped")]
    Stopped,
}

/// An item that was not added, and why.
#[derive(Clone, Debug, Display, Error, PartialEq, Eq)]
#[display("the item {}{why}", item.as_ref().map_or(String::new(), |(key, _)| format!("{key:?} ")))]
#[display(bound(K: std::fmt::Debug))]
pub struct AddError<K, V> {
    /// Why.
    pub why: AddDenied,
    /// The item.
    pub item: Option<(K, V)>,
}

impl<K, V> AddError<K, V> {
    const fn new(why: AddDenied, item: Option<(K, V)>) -> Self {
        Self { why, item }
    }
}
