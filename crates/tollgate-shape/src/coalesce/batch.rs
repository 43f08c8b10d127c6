//! A batch, and what became of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Items that are flushed by one call, in the order in which they came. Clones share the items.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Coalesce, Flushed};
///
/// let rows = Coalesce::window(Duration::from_secs(1)).clock(Manual::new()).build(|batch| {
///     for (id, row) in batch.items() {
///         println!("insert {id}: {row}");
///     }
///     Flushed::Done
/// });
/// rows.try_add(1, "one")?;
/// assert_eq!(rows.flush(), 1);
/// # Ok::<(), tollgate_shape::AddError<i32, &str>>(())
/// ```
pub struct Batch<K, V> {
    items: Arc<Vec<(K, V)>>,
    attempt: u32,
}

/// What became of a batch: the caller's policy of retries.
///
/// ```
/// use std::time::Duration;
/// use tollgate_shape::{Batch, Flushed};
///
/// # fn send(_: &[(u64, String)]) -> Result<(), ()> { Err(()) }
/// # fn dead_letter(_: &[(u64, String)]) {}
/// fn flush(batch: &Batch<u64, String>) -> Flushed {
///     match send(batch.items()) {
///         Ok(()) => Flushed::Done,
///         // 100, 200, 400 … ms, and then no more.
///         Err(_) if batch.attempt() < 5 => Flushed::RetryIn(Duration::from_millis(100 << batch.attempt())),
///         Err(_) => {
///             dead_letter(batch.items());
///             Flushed::Done
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// It is done with, whether it was delivered or given up.
    Done,
    /// It failed: the same batch is flushed again after this time, and before all later ones.
    RetryIn(Duration),
}

impl<K, V> Batch<K, V> {
    pub(super) fn new(items: Vec<(K, V)>) -> Self {
        Self {
            items: Arc::new(items),
            attempt: 0,
        }
    }

    /// The same, to be tried once more.
    pub(super) fn again(mut self) -> Self {
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

impl<K, V> Clone for Batch<K, V> {
    fn clone(&self) -> Self {
        Self {
            items: Arc::clone(&self.items),
            attempt: self.attempt,
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Batch<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("items", &self.items)
            .field("attempt", &self.attempt)
            .finish()
    }
}
