//! The common settings of all builders of this crate (the clock, the executor, the end), and the common
//! methods of all handles.

use std::fmt;
#[cfg(not(any(loom, shuttle)))]
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;
use tollgate::Clock;
use tollgate::clock::Monotonic;

#[cfg(not(any(loom, shuttle)))]
use crate::executor;
use crate::runner::{Action, DrainTimeout, OnDrop, PendingStore, Runner, RunnerOwner, Stats};

/// A future that keeps the time and runs actions. It ends when its debouncer or coalescer is stopped;
/// dropping it stops that.
///
/// Only builders with `spawn_with` return one.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tollgate_shape::{Debounce, Driver};
///
/// let (sender, drivers) = mpsc::channel::<Driver>();
/// let debouncer = Debounce::new(Duration::from_millis(5))
///     .spawn_with(move |driver| drop(sender.send(driver)))
///     .build(|name: &str| println!("saved {name}"));
/// debouncer.call("notes.txt");
/// drop(drivers.recv()); // an executor should run this: without its driver a debouncer is stopped
/// assert!(debouncer.is_stopped());
/// ```
#[cfg(not(any(loom, shuttle)))]
pub type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

#[cfg(not(any(loom, shuttle)))]
type SpawnFn = Box<dyn FnOnce(Driver) + Send>;

/// The settings `S` of something that waits, merges or fires, with its clock.
/// [`Debounce`](crate::Debounce) and [`Coalesce`](crate::Coalesce) are such builders.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::Debounce;
///
/// let clock = Manual::new();
/// let save = Debounce::new(Duration::from_secs(1)).clock(clock).flush_on_drop();
/// let save = save.build(|text: &str| println!("saved {text:?}"));
/// save.call("toll");
/// drop(save); // saved "toll"
/// ```
#[must_use = "a builder does nothing until it is built"]
#[derive(derive_more::Debug)]
pub struct ShaperBuilder<S, C = Monotonic> {
    pub(crate) settings: S,
    clock: C,
    on_drop: OnDrop,
    #[cfg(not(any(loom, shuttle)))]
    #[debug(skip)]
    spawner: Option<SpawnFn>,
}

impl<S> ShaperBuilder<S> {
    pub(crate) fn with_settings(settings: S) -> Self {
        Self {
            settings,
            clock: Monotonic::new(),
            on_drop: OnDrop::Discard,
            #[cfg(not(any(loom, shuttle)))]
            spawner: None,
        }
    }
}

impl<S, C> ShaperBuilder<S, C> {
    /// Fires or flushes what is pending when the last handle is dropped. By default it is discarded.
    pub fn flush_on_drop(mut self) -> Self {
        self.on_drop = OnDrop::Flush;
        self
    }

    /// Runs on this executor instead of tokio's runtime or this crate's threads.
    #[cfg(not(any(loom, shuttle)))]
    pub fn spawn_with(mut self, spawn: impl FnOnce(Driver) + Send + 'static) -> Self {
        self.spawner = Some(Box::new(spawn));
        self
    }

    /// Uses this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> ShaperBuilder<S, D> {
        ShaperBuilder {
            settings: self.settings,
            clock,
            on_drop: self.on_drop,
            #[cfg(not(any(loom, shuttle)))]
            spawner: self.spawner,
        }
    }
}

impl<S, C: Clock + Clone + 'static> ShaperBuilder<S, C> {
    /// Starts the runner, and returns the callers' handle.
    pub(crate) fn start<W: PendingStore>(
        self,
        store: impl FnOnce(S) -> W,
        action: Action<W>,
    ) -> ShaperHandle<W, C> {
        let work = Arc::new(Runner::new(store(self.settings), action, self.clock));
        #[cfg(not(any(loom, shuttle)))]
        {
            let driver = crate::runner::RunnerDriver::new(Arc::clone(&work));
            match self.spawner {
                Some(spawn) => spawn(Box::pin(driver)),
                None => executor::spawn(&work.clock, driver),
            }
        }
        let at_end = self.on_drop;
        ShaperHandle(Arc::new(RunnerOwner { work, at_end }))
    }
}

/// A handle of something that waits, merges or fires: [`Debouncer`](crate::Debouncer),
/// [`KeyedDebouncer`](crate::KeyedDebouncer) and [`Coalescer`](crate::Coalescer). Clones share it.
///
/// ```
/// use std::time::Duration;
/// use tollgate_shape::Debounce;
///
/// let save = Debounce::new(Duration::from_secs(1)).build(|text: &str| println!("saved {text:?}"));
/// let other = save.clone();
/// other.stop();
/// assert!(save.is_stopped());
/// ```
#[derive_where(Clone)]
pub struct ShaperHandle<S: PendingStore, C: Clock = Monotonic>(pub(crate) Arc<RunnerOwner<S, C>>);

impl<S: PendingStore, C: Clock> ShaperHandle<S, C> {
    /// Stops it for good: after this has returned, no action starts. The action is dropped with its
    /// captures (if it runs, when it has ended). A second stop has no effect.
    ///
    /// A debouncer discards what is pending; a coalescer keeps its unflushed items for
    /// [`take_unflushed`](crate::Coalescer::take_unflushed).
    pub fn stop(&self) {
        drop(self.0.stop());
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }

    /// How often it fired or flushed.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Runs what is due, as a driver does when it wakes up, for models of races. Returns whether
    /// anything was due.
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    pub fn tick(&self) -> bool {
        self.0.tick()
    }
}

/// The common methods of debouncers.
impl<S: PendingStore<Outcome = ()>, C: Clock> ShaperHandle<S, C> {
    /// Stops it, and blocks until the running action has ended, for at most this duration. Returns
    /// immediately if called inside of the action.
    ///
    /// # Errors
    /// [`DrainTimeout`] if that took longer: the action continues, but no other one starts.
    pub fn stop_and_wait_blocking(&self, most: Duration) -> Result<(), DrainTimeout> {
        self.stop();
        self.0.drain_blocking(most)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<S: PendingStore<Outcome = ()>, C: Clock + Clone + 'static> ShaperHandle<S, C> {
    /// Stops it immediately, and then waits until the running action has ended, for at most this
    /// duration. It is ready immediately if awaited inside of the action.
    ///
    /// # Errors
    /// [`DrainTimeout`] if that took longer: the action continues, but no other one starts.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use std::time::Duration;
    /// use tollgate_shape::Debounce;
    ///
    /// let index = Debounce::new(Duration::from_secs(1)).build(|path: &str| println!("indexed {path}"));
    /// index.call("src");
    /// let mut closed = pin!(index.stop_and_wait(Duration::from_secs(5)));
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert_eq!(closed.as_mut().poll(&mut context), Poll::Ready(Ok(())), "nothing runs");
    /// ```
    pub fn stop_and_wait(
        &self,
        most: Duration,
    ) -> impl Future<Output = Result<(), DrainTimeout>> + Send + use<S, C> {
        self.stop();
        Arc::clone(&self.0.work).drain(most)
    }
}

impl<S: PendingStore, C: Clock> fmt::Debug for ShaperHandle<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("of", &S::NAME)
            .field("pending", &self.0.read(S::pending))
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
