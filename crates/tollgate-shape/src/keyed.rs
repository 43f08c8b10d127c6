//! One debounce for each key: a million pending keys on one timer structure, and one driver for all.

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

/// What happens to a new key when as many keys as the capacity says are pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// The call is refused, and its key and value are handed back.
    #[default]
    Deny,
    /// The key whose time would come first is over now, as if it had been flushed, and makes room.
    ///
    /// Keys that have fired and wait for a slow action to end are bounded, too: when there are as many of those as the capacity says,
    /// new keys are refused.
    FireEarliest,
}

/// A call was refused: as many keys as may be are pending. Key and value are handed back.
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
/// let refused = debouncer.call("b", 2).unwrap_err();
/// assert_eq!(refused, TooManyKeys { key: "b", value: 2, capacity: 1 });
/// assert_eq!(
///     refused.to_string(),
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
    /// How many keys may be pending.
    pub capacity: usize,
}

/// How a debounce for each key behaves; made by [`Debounce::keyed`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct KeyedDebounce<C = Monotonic> {
    debounce: Debounce<C>,
    capacity: usize,
    when_full: WhenFull,
}

/// A debounce for each key. Clones share it.
///
/// A pending key takes less than 100 bytes beside the key and its value, and no task; a key that has become quiet
/// takes none. Actions run one after another, whatever their keys: one that takes long should be spawned by the
/// action. All else is as for a [`Debouncer`](crate::Debouncer).
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
    /// One debounce for each key, of which at most `capacity` are kept.
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

    /// A debouncer with this action.
    pub fn build<K, T, F>(self, action: F) -> KeyedDebouncer<K, T, C>
    where
        K: Hash + Eq + Clone + Send + 'static,
        T: Send + 'static,
        F: Fn(K, T) + Send + Sync + 'static,
    {
        self.build_timed(move |key, value, _| action(key, value))
    }

    /// A debouncer whose action is also told when the key was called last.
    pub fn build_timed<K, T, F>(self, action: F) -> KeyedDebouncer<K, T, C>
    where
        K: Hash + Eq + Clone + Send + 'static,
        T: Send + 'static,
        F: Fn(K, T, Timestamp) + Send + Sync + 'static,
    {
        let action = move |(key, fired): KeyFiring<K, T>| action(key, fired.value, fired.called);
        self.start(Action::Sync(Box::new(action)))
    }

    /// A debouncer with an async action.
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
    /// Calls the debounce of this key with a value, which replaces the one that is pending. One that was stopped drops
    /// the value.
    ///
    /// # Errors
    /// [`TooManyKeys`] if the key is new and as many as may be are pending, unless [`WhenFull`] says otherwise.
    #[inline]
    pub fn call(&self, key: K, value: T) -> Result<(), TooManyKeys<K, T>> {
        let called = self.0.change(|table, now| table.call(key, value, now));
        match called {
            // What was replaced is dropped under no lock.
            None | Some(Ok(_)) => Ok(()),
            Some(Err(refused)) => Err(refused),
        }
    }

    /// Fires what is pending for a key now instead of later. Whether a wait was under way.
    pub fn flush(&self, key: &K) -> bool {
        let flushed = self.0.change(|table, now| table.flush_key(key, now));
        flushed.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Fires everything that is pending. How many keys were: what fires runs where the driver does.
    pub fn flush_all(&self) -> usize {
        self.0.change(KeyTable::flush_all).unwrap_or(0)
    }

    /// Forgets what is pending for a key. Whether a wait was under way.
    pub fn cancel(&self, key: &K) -> bool {
        let cancelled = self.0.change(|table, _| table.cancel(key));
        cancelled.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Whether a wait is under way for this key.
    pub fn pending(&self, key: &K) -> bool {
        self.0.read(|table| table.is_pending(key))
    }

    /// How many keys are kept: those that are pending, and a few whose last firing still counts.
    pub fn len(&self) -> usize {
        self.0.read(KeyTable::len)
    }

    /// Whether no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
