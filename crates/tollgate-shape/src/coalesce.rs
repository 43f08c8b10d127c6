//! Coalescing: items are collected into batches, and each batch is flushed by one call.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate::Clock;
use tollgate::clock::Monotonic;

mod add;
mod batch;
mod builder;
mod open;
mod store;

use crate::work::{Handle, Stats, StillRunning, Then};
#[cfg(not(any(loom, shuttle)))]
pub use add::Adding;
pub use add::{AddError, NotAdded};
pub use batch::{Batch, Flushed};
pub use builder::Coalesce;
use store::Batches;

/// Collects items into batches, in order, and flushes each by one call. Made by [`Coalesce`].
///
/// * A batch is flushed when its time has come, or it is full. Batches are flushed one after another, in the order in
///   which their items came.
/// * No item is lost, and none is flushed twice: a batch is kept until its flush says [`Flushed::Done`]. A flush that
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
/// use tollgate_shape::{Coalesce, Flushed};
///
/// let clock = Manual::new();
/// let invalidations = Coalesce::window(Duration::from_millis(50))
///     .max_items(1_000)
///     .merge(|_key: &String, count: &mut u32, more| *count += more)
///     .clock(clock.clone())
///     .build(|batch| {
///         println!("DEL {:?}", batch.items());
///         Flushed::Done
///     });
/// for key in ["user:1", "user:2", "user:1"] {
///     invalidations.try_add(key.to_string(), 1)?;
/// }
/// assert_eq!(invalidations.pending(), 2);
/// clock.advance(Duration::from_millis(50)); // DEL [("user:1", 2), ("user:2", 1)]
/// assert_eq!(invalidations.pending(), 0);
/// # Ok::<(), tollgate_shape::AddError<String, u32>>(())
/// ```
pub struct Coalescer<K, V, C = Monotonic>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock,
{
    handle: Arc<Handle<Batches<K, V>, C>>,
}

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
        let added = self
            .handle
            .change(|store, now| store.add(&mut item, None, now));
        match added {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => Err(AddError::new(why, item)),
            None => Err(AddError::new(NotAdded::Stopped, item)),
        }
    }

    /// Flushes everything now instead of later, also what waits to be tried again. How many items there were.
    ///
    /// The first batch of a sync flush has been flushed when this returns, unless another one was running.
    pub fn flush(&self) -> usize {
        self.handle.change(Batches::flush_now).unwrap_or(0)
    }

    /// How many items are held: those that wait, and those of a flush that runs.
    pub fn pending(&self) -> usize {
        self.handle.read(Batches::pending)
    }

    /// Stops it for good: no flush starts any more. What was not flushed is kept for [`take_leftover`](Self::take_leftover).
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.handle.is_stopped()
    }

    /// What was not flushed before it was stopped, in order, and once. A flush that runs while it is stopped and
    /// fails then adds its batch.
    pub fn take_leftover(&self) -> Vec<Batch<K, V>> {
        self.handle.with(Batches::take_leftover)
    }

    /// Takes no more items, flushes what there is, and blocks until that has ended, or for at most so long. Then it is stopped.
    /// From inside of a flush it returns at once; when that has ended the rest is flushed, and then it is stopped.
    ///
    /// # Errors
    /// [`StillRunning`] if that took longer. What was not flushed is in [`take_leftover`](Self::take_leftover).
    pub fn close_blocking(&self, most: Duration) -> Result<(), StillRunning> {
        self.handle.close();
        if self.handle.is_inside() {
            return Ok(());
        }
        let drained = self.handle.drain_blocking(most);
        self.stop();
        drained
    }

    /// How often it flushed.
    pub fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// What a driver does when it wakes up, for models of races. Whether anything was due.
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    pub fn tick(&self) -> bool {
        self.handle.tick()
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
    pub fn add(&self, key: K, value: V) -> Adding<K, V, C> {
        Adding::new(self.clone(), key, value)
    }

    /// Takes no more items, flushes what there is, and waits until that has ended, or for at most so long. Then it is stopped.
    /// Awaited inside of a flush it is ready at once; when that has ended the rest is flushed, and then it is stopped.
    ///
    /// # Errors
    /// [`StillRunning`] if that took longer. What was not flushed is in [`take_leftover`](Self::take_leftover).
    pub async fn close(&self, most: Duration) -> Result<(), StillRunning> {
        self.handle.close();
        if self.handle.is_inside() {
            return Ok(());
        }
        let work = Arc::clone(self.handle.work());
        let drained = crate::work::Draining::new(work, most).await;
        self.stop();
        drained
    }
}

impl<K, V, C> Clone for Coalescer<K, V, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock,
{
    fn clone(&self) -> Self {
        Self {
            handle: Arc::clone(&self.handle),
        }
    }
}

impl<K, V, C> fmt::Debug for Coalescer<K, V, C>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Clock,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer")
            .field("pending", &self.pending())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What follows from a change of a store of batches.
type Next<K, V> = Then<Batch<K, V>>;
