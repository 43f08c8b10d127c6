//! What can be chosen about a coalescer before it is built.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate::Clock;
use tollgate::clock::Monotonic;

use super::store::{Batches, Limits};
use super::{Batch, Coalescer, Flushed};
#[cfg(not(any(loom, shuttle)))]
use crate::setup::Driver;
use crate::setup::Setup;
use crate::work::{Action, AtEnd};

/// How many items are held at most, unless something else is chosen.
const PENDING: usize = 65_536;

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
/// use tollgate_shape::{Coalesce, Flushed};
///
/// let writes = Coalesce::quiet(Duration::from_millis(20))
///     .max_wait(Duration::from_millis(200))
///     .max_weight(1 << 20, |_id: &u64, row: &String| row.len() as u64)
///     .max_pending(100_000)
///     .build(|batch| {
///         println!("{} rows", batch.len());
///         Flushed::Done
///     });
/// let large = writes.try_add(7, "x".repeat(2 << 20)).unwrap_err();
/// assert_eq!(
///     large.to_string(),
///     "the item 7 weighs 2097152, above the 1048576 that a batch may weigh: split it, or raise max_weight"
/// );
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct Coalesce<K, V, C = Monotonic> {
    limits: Limits<K, V>,
    setup: Setup<C>,
}

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
        Self {
            limits: Limits {
                max_wait: window,
                quiet,
                max_items: usize::MAX,
                max_weight: u64::MAX,
                weigh: None,
                merge: None,
                max_pending: PENDING,
            },
            setup: Setup::new(),
        }
    }
}

impl<K, V, C> Coalesce<K, V, C> {
    /// A batch is flushed this long after its first item at the latest.
    pub fn max_wait(mut self, most: Duration) -> Self {
        let limits = &mut self.limits;
        limits.max_wait = Some(limits.max_wait.map_or(most, |window| window.min(most)));
        self
    }

    /// A batch is flushed when it has this many items; at least one.
    pub fn max_items(mut self, most: usize) -> Self {
        self.limits.max_items = most.max(1);
        self
    }

    /// No batch weighs more than this, by a function such as the number of bytes. An item that alone weighs more is
    /// refused.
    pub fn max_weight(
        mut self,
        most: u64,
        weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.limits.max_weight = most;
        self.limits.weigh = Some(Box::new(weigh));
        self
    }

    /// Items of one key become one item of a batch, at the place of the first: this makes one value of both. It runs
    /// under the coalescer's lock, so it should be quick, and must not call the coalescer.
    ///
    /// Where the weights of both together don't fit into the batch they aren't merged: the later one begins the next batch.
    pub fn merge(mut self, merge: impl Fn(&K, &mut V, V) + Send + Sync + 'static) -> Self {
        self.limits.merge = Some(Box::new(merge));
        self
    }

    /// At most this many items are held, those of a flush that runs with them; 65,536 if nothing is chosen. When there are
    /// that many, what is collected is flushed at once, as nothing more fits.
    pub fn max_pending(mut self, most: usize) -> Self {
        self.limits.max_pending = most.max(1);
        self
    }

    /// When the last handle is dropped, what is held is flushed. Without this it is discarded.
    pub fn flush_on_drop(mut self) -> Self {
        self.setup.at_end = AtEnd::Flush;
        self
    }

    /// Runs on this executor instead of tokio's runtime or threads of this crate.
    #[cfg(not(any(loom, shuttle)))]
    pub fn spawn_with(mut self, spawn: impl FnOnce(Driver) + Send + 'static) -> Self {
        self.setup.spawner = Some(Box::new(spawn));
        self
    }

    /// Reads this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> Coalesce<K, V, D> {
        Coalesce {
            limits: self.limits,
            setup: self.setup.clock(clock),
        }
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
        F: Fn(&Batch<K, V>) -> Flushed + Send + Sync + 'static,
    {
        self.start(Action::Sync(Box::new(move |batch| flush(&batch))))
    }

    /// A coalescer that flushes by an async function.
    pub fn build_async<F, R>(self, flush: F) -> Coalescer<K, V, C>
    where
        F: Fn(Batch<K, V>) -> R + Send + Sync + 'static,
        R: Future<Output = Flushed> + Send + 'static,
    {
        self.start(Action::Async(Box::new(move |batch| Box::pin(flush(batch)))))
    }

    fn start(self, action: Action<Batches<K, V>>) -> Coalescer<K, V, C> {
        let store = Batches::new(self.limits);
        Coalescer {
            handle: Arc::new(self.setup.start(store, action, "coalescer")),
        }
    }
}

impl<K, V, C: fmt::Debug> fmt::Debug for Coalesce<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalesce")
            .field("limits", &self.limits)
            .field("setup", &self.setup)
            .finish()
    }
}
