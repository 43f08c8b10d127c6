//! One debounce for each key: a million pending keys on one timer structure, with one driver for all.

use std::hash::Hash;

use derive_more::{Display, Error};
use tollgate::clock::Monotonic;
use tollgate::{Clock, Timestamp};

mod table;

use crate::builder::ShaperHandle;
use crate::debounce::Debounce;
use crate::runner::Action;
use crate::timeline::DebounceTiming;
use table::{KeyFiring, KeyTable};

/// What happens to a new key when the number of pending keys has reached the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// The call is denied, and its key and value are returned.
    #[default]
    Deny,
    /// The key that is due first ends its wait now, as if it had been flushed, and makes room.
    ///
    /// Keys that have fired and wait for a slow action to end are bounded, too: when their number has
    /// reached the capacity, new keys are denied.
    FireEarliest,
}

/// A call was denied, because the number of pending keys has reached the capacity. Returns the key and
/// the value.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Debounce, TooManyKeys};
///
/// let debouncer = Debounce::new(Duration::from_secs(1))
///     .clock(Manual::new())
///     .keyed(1)
///     .build(|path: &str, size: u64| println!("{path}: {size}"));
/// assert_eq!(debouncer.call("a", 1), Ok(()));
/// let denied = debouncer.call("b", 2).unwrap_err();
/// assert_eq!(denied, TooManyKeys { key: "b", value: 2, capacity: 1 });
/// assert_eq!(
///     denied.to_string(),
///     "1 keys are pending already, which is the capacity: try again later, raise it, or choose \
///      WhenFull::FireEarliest"
/// );
/// ```
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display(
    "{capacity} keys are pending already, which is the capacity: try again later, raise it, or choose \
     WhenFull::FireEarliest"
)]
pub struct TooManyKeys<K, T> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: T,
    /// The most pending keys.
    pub capacity: usize,
}

/// The settings of a debounce for each key; made by [`Debounce::keyed`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct KeyedDebounce<C = Monotonic> {
    debounce: Debounce<C>,
    capacity: usize,
    when_full: WhenFull,
}

/// A debounce for each key. Clones share it.
///
/// A pending key takes less than 100 bytes besides the key and its value, and no task; a key without a
/// wait in progress takes no memory. Actions run one after another, whatever their keys: an action that
/// takes long should spawn its work. Otherwise it behaves as a [`Debouncer`](crate::Debouncer).
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::Debounce;
///
/// let (clock, (sender, built)) = (Manual::new(), mpsc::channel());
/// let builds = Debounce::new(Duration::from_millis(100))
///     .clock(clock.clone())
///     .keyed(10_000)
///     .build(move |folder: &str, change: u32| drop(sender.send((folder, change))));
/// builds.call("web", 1)?;
/// builds.call("api", 2)?;
/// builds.call("web", 3)?;
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(built.try_iter().collect::<Vec<_>>(), [("web", 3), ("api", 2)]);
/// # Ok::<(), tollgate_shape::TooManyKeys<&str, u32>>(())
/// ```
pub type KeyedDebouncer<K, T, C = Monotonic> = ShaperHandle<KeyTable<K, T>, C>;

impl<C: Clock + Clone + 'static> Debounce<C> {
    /// A debounce for each key, with at most `capacity` keys.
    pub fn keyed(self, capacity: usize) -> KeyedDebounce<C> {
        KeyedDebounce {
            debounce: self,
            capacity,
            when_full: WhenFull::default(),
        }
    }
}

impl<C: Clock + Clone + 'static> KeyedDebounce<C> {
    /// What happens to a new key when the table is full.
    pub const fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Builds a debouncer with this action.
    pub fn build<K, T, F>(self, action: F) -> KeyedDebouncer<K, T, C>
    where
        K: Hash + Eq + Clone + Send + 'static,
        T: Send + 'static,
        F: Fn(K, T) + Send + Sync + 'static,
    {
        self.build_timed(move |key, value, _| action(key, value))
    }

    /// Builds a debouncer whose action also gets the time of the key's latest call.
    pub fn build_timed<K, T, F>(self, action: F) -> KeyedDebouncer<K, T, C>
    where
        K: Hash + Eq + Clone + Send + 'static,
        T: Send + 'static,
        F: Fn(K, T, Timestamp) + Send + Sync + 'static,
    {
        let action = move |(key, fired): KeyFiring<K, T>| action(key, fired.value, fired.called);
        self.start(Action::Sync(Box::new(action)))
    }

    /// Builds a debouncer with an async action.
    pub fn build_async<K, T, F, R>(self, action: F) -> KeyedDebouncer<K, T, C>
    where
        K: Hash + Eq + Clone + Send + 'static,
        T: Send + 'static,
        F: Fn(K, T) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let action = move |(key, fired): KeyFiring<K, T>| Box::pin(action(key, fired.value)) as _;
        self.start(Action::Async(Box::new(action)))
    }

    fn start<K, T>(self, action: Action<KeyTable<K, T>>) -> KeyedDebouncer<K, T, C>
    where
        K: Hash + Eq + Clone + Send + 'static,
        T: Send + 'static,
    {
        let (capacity, when_full) = (self.capacity, self.when_full);
        let table = |times: DebounceTiming| KeyTable::new(times.normalized(), capacity, when_full);
        self.debounce.start(table, action)
    }
}

impl<K, T, C> KeyedDebouncer<K, T, C>
where
    K: Hash + Eq + Clone + Send + 'static,
    T: Send + 'static,
    C: Clock,
{
    /// Calls the debounce of this key with a value, which replaces the pending one. A stopped debouncer
    /// drops the value.
    ///
    /// # Errors
    /// [`TooManyKeys`] if the key is new and the capacity is reached, unless [`WhenFull`] makes room.
    #[inline]
    pub fn call(&self, key: K, value: T) -> Result<(), TooManyKeys<K, T>> {
        let called = self.0.change(|table, now| table.call(key, value, now));
        match called {
            // The replaced value is dropped after the lock is released.
            None | Some(Ok(_)) => Ok(()),
            Some(Err(refused)) => Err(refused),
        }
    }

    /// Fires what is pending for a key now instead of later. Returns whether a wait was in progress.
    pub fn flush(&self, key: &K) -> bool {
        let flushed = self.0.change(|table, now| table.flush_key(key, now));
        flushed.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Fires everything that is pending, where the driver runs. Returns the number of keys.
    pub fn flush_all(&self) -> usize {
        self.0.change(KeyTable::flush_all).unwrap_or(0)
    }

    /// Discards what is pending for a key. Returns whether a wait was in progress.
    pub fn cancel(&self, key: &K) -> bool {
        let cancelled = self.0.change(|table, _| table.cancel(key));
        cancelled.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Whether a wait is in progress for this key.
    pub fn pending(&self, key: &K) -> bool {
        self.0.read(|table| table.is_pending(key))
    }

    /// The number of keys in the table: pending ones, and a few whose last firing still counts.
    pub fn len(&self) -> usize {
        self.0.read(KeyTable::len)
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
