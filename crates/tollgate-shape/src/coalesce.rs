//! Coalescing: collects items into batches, and flushes each batch by one call.

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

/// The default maximum of held items.
const DEFAULT_MAX_PENDING: usize = 65_536;

/// The settings of a coalescer; [`build`](Self::build) makes a [`Coalescer`].
///
/// | a batch is flushed | by |
/// |---|---|
/// | this long after its first item | [`Coalesce::window`] |
/// | once no item came for this long | [`Coalesce::quiet`], with [`max_wait`](Self::max_wait) from its first item |
/// | when it has this many items | [`max_items`](Self::max_items) |
/// | when it has this weight | [`max_weight`](Self::max_weight) |
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

    /// Bounds the weight of a batch, by a function such as the number of bytes. A single item that
    /// weighs more is rejected.
    pub fn max_weight(
        mut self,
        most: u64,
        weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.settings.max_weight = most;
        self.settings.weigh = Some(Box::new(weigh));
        self
    }

    /// Merges items of one key into one item of a batch, at the position of the first: this function
    /// merges the later value into the earlier one. It runs under the coalescer's lock, so it should be
    /// fast, and must not call the coalescer.
    ///
    /// If their combined weight doesn't fit into the batch, they aren't merged: the later item begins
    /// the next batch.
    pub fn merge(mut self, merge: impl Fn(&K, &mut V, V) + Send + Sync + 'static) -> Self {
        self.settings.merge = Some(Box::new(merge));
        self
    }

    /// The most items that are held, including those of a running flush; 65,536 by default. When it is
    /// reached, the collected items are flushed immediately, because nothing more fits.
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
    /// Builds a coalescer with this flush function. It runs where the driver does.
    pub fn build<F>(self, flush: F) -> Coalescer<K, V, C>
    where
        F: Fn(&Batch<K, V>) -> FlushOutcome + Send + Sync + 'static,
    {
        let action = Action::Sync(Box::new(move |batch| flush(&batch)));
        self.start(BatchStore::new, action)
    }

    /// Builds a coalescer with an async flush function.
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
/// * A batch is flushed when it is due or full. Batches are flushed one after another, in the order in
///   which their items came.
/// * No item is lost, and none is flushed twice: a batch is kept until its flush returns
///   [`FlushOutcome::Done`]. A flush that fails returns when to try again; one that panics is tried
///   again. Until then later batches wait, so that the order is preserved.
/// * At most [`max_pending`](Coalesce::max_pending) items are held, including those of a running flush.
///   Beyond that, [`add`](Self::add) waits and [`try_add`](Self::try_add) is denied.
/// * After a stop, [`take_unflushed`](Self::take_unflushed) returns what wasn't flushed.
///
/// Clones share it. When the last one is dropped it is stopped, and its items are discarded unless
/// [`flush_on_drop`](Coalesce::flush_on_drop) was set.
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
    /// [`AddError`] with the item: there is no room, it is too large for a batch, or the coalescer was
    /// stopped.
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

    /// Flushes everything now instead of later, including a batch that waits for its retry. Returns the
    /// number of items.
    ///
    /// A sync flush has flushed the first batch when this returns, unless another flush was running.
    pub fn flush(&self) -> usize {
        self.0.change(BatchStore::flush_now).unwrap_or(0)
    }

    /// The number of held items: those that wait, and those of a running flush.
    pub fn pending(&self) -> usize {
        self.0.read(BatchStore::pending)
    }

    /// The items that weren't flushed before the stop, in order; they are returned once. A flush that
    /// runs during the stop and then fails adds its batch.
    pub fn take_unflushed(&self) -> Vec<Batch<K, V>> {
        self.0.with(BatchStore::take_leftover)
    }

    /// Accepts no more items, flushes the held ones, and blocks until that has ended, for at most this
    /// duration. Then it is stopped. Inside of a flush it returns immediately; after that flush the
    /// rest is flushed, and then it is stopped.
    ///
    /// # Errors
    /// [`DrainTimeout`] if that took longer. [`take_unflushed`](Self::take_unflushed) returns what
    /// wasn't flushed.
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
    /// Adds an item, and waits for room if there is none. Waiters get room in order; dropping the
    /// future gives up.
    ///
    /// # Errors
    /// [`AddError`] with the item if it is too large for a batch, or the coalescer was stopped.
    pub fn add(&self, key: K, value: V) -> AddFuture<K, V, C> {
        AddFuture {
            coalescer: self.clone(),
            item: Some((key, value)),
            waiter: None,
        }
    }

    /// Accepts no more items, flushes the held ones, and waits until that has ended, for at most this
    /// duration. Then it is stopped. Awaited inside of a flush it is ready immediately; after that
    /// flush the rest is flushed, and then it is stopped.
    ///
    /// # Errors
    /// [`DrainTimeout`] if that took longer. [`take_unflushed`](Self::take_unflushed) returns what
    /// wasn't flushed.
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

/// What to do after a change of the store.
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

/// The result of a flush, by which the caller controls retries.
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
    /// The batch is finished, whether it was delivered or given up.
    Done,
    /// It failed: the same batch is flushed again after this duration, and before all later ones.
    RetryIn(Duration),
}

impl<K, V> Batch<K, V> {
    fn new(items: Vec<(K, V)>) -> Self {
        Self {
            items: Arc::new(items),
            attempt: 0,
        }
    }

    /// The same batch, for its next attempt.
    fn with_next_attempt(mut self) -> Self {
        self.attempt = self.attempt.saturating_add(1);
        self
    }

    /// The items.
    pub fn items(&self) -> &[(K, V)] {
        &self.items
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it is empty; no flush ever gets an empty batch.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The number of earlier attempts: 0 the first time.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The items by value.
    ///
    /// # Errors
    /// The batch, if a clone of it still exists.
    pub fn into_items(self) -> Result<Vec<(K, V)>, Self> {
        let attempt = self.attempt;
        Arc::try_unwrap(self.items).map_err(|items| Self { items, attempt })
    }
}

/// Why an item wasn't added.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddDenied {
    /// The maximum of held items is reached.
    #[display("isn't added: {most} are held already; wait by `add`, or raise max_pending")]
    Full {
        /// The maximum.
        most: usize,
    },
    /// A single item that weighs more than a batch may.
    #[display(
        "weighs {weight}, above the {most} that a batch may weigh: split it, or raise max_weight"
    )]
    TooLarge {
        /// The item's weight.
        weight: u64,
        /// The most that a batch may weigh.
        most: u64,
    },
    /// The coalescer was stopped, or is being closed.
    #[display("isn't added: the coalescer was stopped")]
    Stopped,
}

/// An item that wasn't added, and why.
#[derive(Clone, Debug, Display, Error, PartialEq, Eq)]
#[display("the item {}{why}", item.as_ref().map_or(String::new(), |(key, _)| format!("{key:?} ")))]
#[display(bound(K: std::fmt::Debug))]
pub struct AddError<K, V> {
    /// The reason.
    pub why: AddDenied,
    /// The item.
    pub item: Option<(K, V)>,
}

impl<K, V> AddError<K, V> {
    const fn new(why: AddDenied, item: Option<(K, V)>) -> Self {
        Self { why, item }
    }
}
