//! Debounce and throttle: many calls, of which one fires with the latest value.

use std::fmt;
#[cfg(not(any(loom, shuttle)))]
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate::{Clock, Timestamp};

mod builder;
mod store;

use crate::work::{Handle, Stats, StillRunning, Then};
pub use builder::{Debounce, Throttle};
use store::Single;
pub(crate) use store::Spacing;

/// Merges calls until it has been quiet for a while, and then fires once with the latest value. Made by [`Debounce`].
///
/// Clones share it. When the last one is dropped it is stopped, and what is pending is discarded unless
/// [`flush_on_drop`](Debounce::flush_on_drop) was chosen.
///
/// * Actions of one debouncer never run at the same time: one that becomes due while another runs starts when that
///   has ended, with the latest value.
/// * A sync action of a leading edge, or of [`flush`](Self::flush), runs on the thread that calls. All others run
///   where the driver does: as a task of the tokio runtime in which it was built (feature `tokio`), or on a few threads of this
///   crate. With [`clock::Manual`](tollgate::clock::Manual) they run inside of `advance`.
/// * An action may call its debouncer, flush, cancel or stop it. It needs a handle for that, and with a
///   clone it would keep it alive for ever: give it a [`WeakDebouncer`].
/// * An action that panics is caught, logged and counted.
/// * Values that never fire may be dropped under its lock, so the `Drop` of a value must not call it.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::Debounce;
///
/// let (clock, (saved, saves)) = (Manual::new(), mpsc::channel());
/// let save = Debounce::new(Duration::from_millis(100))
///     .max_wait(Duration::from_millis(200))
///     .clock(clock.clone())
///     .build(move |text: &str| drop(saved.send(text)));
/// for text in ["t", "to", "tol", "toll"] {
///     save.call(text);
///     clock.advance(Duration::from_millis(80));
/// }
/// clock.advance(Duration::from_secs(1));
/// // After 200 ms at the latest, and once it is quiet.
/// assert_eq!(saves.try_iter().collect::<Vec<_>>(), ["tol", "toll"]);
/// ```
pub struct Debouncer<T: Send + 'static, C: Clock = Monotonic> {
    handle: Arc<Handle<Single<T>, C>>,
}

/// A handle that doesn't keep its [`Debouncer`] alive, for the action itself.
///
/// ```
/// use std::sync::OnceLock;
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Debounce, WeakDebouncer};
///
/// static AGAIN: OnceLock<WeakDebouncer<u32, Manual>> = OnceLock::new();
///
/// let clock = Manual::new();
/// let countdown = Debounce::new(Duration::from_secs(1)).clock(clock.clone()).build(|left: u32| {
///     if let (Some(left), Some(again)) = (left.checked_sub(1), AGAIN.get().and_then(WeakDebouncer::upgrade)) {
///         again.call(left);
///     }
/// });
/// AGAIN.get_or_init(|| countdown.downgrade());
/// countdown.call(2);
/// for _ in 0..5 {
///     clock.advance(Duration::from_secs(1));
/// }
/// assert_eq!(countdown.stats().fired, 3);
/// ```
pub struct WeakDebouncer<T: Send + 'static, C: Clock = Monotonic> {
    handle: Weak<Handle<Single<T>, C>>,
}

impl<T: Send + 'static, C: Clock> Debouncer<T, C> {
    /// Calls it with a value, which replaces the one that is pending. One that was stopped drops the value.
    #[inline]
    pub fn call(&self, value: T) {
        // The value that was pending is dropped under no lock.
        let replaced = self.handle.change(|store, now| store.call(value, now));
        drop(replaced);
    }

    /// Fires what is pending now instead of later. Whether a wait was under way.
    ///
    /// A sync action has ended when this returns, unless another one was running. An async one has been started at most.
    pub fn flush(&self) -> bool {
        let flushed = self.handle.change(Single::flush_now);
        flushed.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Forgets what is pending, and when it was called: the next call begins anew. Whether a wait was under way.
    pub fn cancel(&self) -> bool {
        let cancelled = self
            .handle
            .change(|store, _| (store.cancel(), Then::Nothing));
        cancelled.is_some_and(|(was_pending, _dropped)| was_pending)
    }

    /// Whether a wait is under way: the next call is merged with those before it. What was called last fires at the end of the
    /// wait, if the trailing edge is on and it hasn't fired already.
    pub fn pending(&self) -> bool {
        self.handle.read(Single::is_pending)
    }

    /// Stops it for good. What is pending is discarded, and the action is dropped with all that it has captured (when
    /// it has ended, if it runs). After this has returned no action starts. Stopping twice is as good as once.
    pub fn stop(&self) {
        drop(self.handle.stop());
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.handle.is_stopped()
    }

    /// Stops it, and blocks until the action that runs has ended, or for at most so long. From inside of the
    /// action it returns at once.
    ///
    /// # Errors
    /// [`StillRunning`] if that took longer: it goes on, but no other one starts.
    pub fn stop_and_wait_blocking(&self, most: Duration) -> Result<(), StillRunning> {
        self.stop();
        self.handle.drain_blocking(most)
    }

    /// How often it fired.
    pub fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// A handle that doesn't keep it alive.
    pub fn downgrade(&self) -> WeakDebouncer<T, C> {
        WeakDebouncer {
            handle: Arc::downgrade(&self.handle),
        }
    }

    /// What a driver does when it wakes up, for models of races. Whether anything was due.
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    pub fn tick(&self) -> bool {
        self.handle.tick()
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<T: Send + 'static, C: Clock + Clone + 'static> Debouncer<T, C> {
    /// Stops it at once, and then waits until the action that runs has ended, or for at most so long. Awaited
    /// inside of the action it is ready at once.
    ///
    /// # Errors
    /// [`StillRunning`] if that took longer: it goes on, but no other one starts.
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
    ) -> impl Future<Output = Result<(), StillRunning>> + Send + use<T, C> {
        self.stop();
        crate::work::Draining::new(Arc::clone(self.handle.work()), most)
    }
}

impl<T: Send + 'static, C: Clock> Clone for Debouncer<T, C> {
    fn clone(&self) -> Self {
        Self {
            handle: Arc::clone(&self.handle),
        }
    }
}

impl<T: Send + 'static, C: Clock> fmt::Debug for Debouncer<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debouncer")
            .field("pending", &self.pending())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static, C: Clock> WeakDebouncer<T, C> {
    /// The debouncer, unless all handles of it are gone.
    pub fn upgrade(&self) -> Option<Debouncer<T, C>> {
        let handle = self.handle.upgrade()?;
        Some(Debouncer { handle })
    }
}

impl<T: Send + 'static, C: Clock> Clone for WeakDebouncer<T, C> {
    fn clone(&self) -> Self {
        Self {
            handle: Weak::clone(&self.handle),
        }
    }
}

impl<T: Send + 'static, C: Clock> fmt::Debug for WeakDebouncer<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakDebouncer").finish_non_exhaustive()
    }
}

/// A value that fires, and when it was called last.
#[derive(Debug)]
pub(crate) struct Fired<T> {
    pub(crate) value: T,
    pub(crate) called: Timestamp,
}
