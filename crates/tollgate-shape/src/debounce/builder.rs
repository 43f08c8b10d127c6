//! What can be chosen about a debouncer before it is built.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate::{Clock, Timestamp};

use super::store::{Single, Spacing};
use super::{Debouncer, Fired};
#[cfg(not(any(loom, shuttle)))]
use crate::setup::Driver;
use crate::setup::Setup;
use crate::timeline::{Edge, Times};
use crate::work::{Action, AtEnd};

/// How a debounce behaves; [`build`](Self::build) makes a [`Debouncer`] of it, and [`keyed`](Self::keyed) one debounce for each key.
///
/// By default it fires at the trailing edge: once it was quiet for `wait`, with the latest value. The rules are
/// those of lodash, whose recorded answers are replayed against them.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::{Debounce, Edge};
///
/// let clock = Manual::new();
/// let debouncer = Debounce::new(Duration::from_millis(100))
///     .leading(Edge::On)
///     .clock(clock.clone())
///     .build(|query: String| println!("searching {query}"));
/// debouncer.call("t".into()); // fires at once
/// debouncer.call("to".into()); // fires when it has been quiet
/// assert_eq!(debouncer.stats().fired, 1);
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(debouncer.stats().fired, 2);
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Debounce<C = Monotonic> {
    pub(crate) times: Times,
    pub(crate) spacing: Duration,
    pub(crate) setup: Setup<C>,
}

/// A debounce that fires at once, and then at most once an interval while calls go on.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::Manual;
/// use tollgate_shape::Throttle;
///
/// let clock = Manual::new();
/// let progress = Throttle::every(Duration::from_millis(100))
///     .clock(clock.clone())
///     .build(|percent: u32| println!("{percent} %"));
/// for percent in 0..=100 {
///     progress.call(percent); // shows 0, 9, 19 … 99 and 100
///     clock.advance(Duration::from_millis(10));
/// }
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(progress.stats().fired, 12);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Throttle(());

impl Throttle {
    /// At most one firing an interval, the first one at once and the last value at the end: a [`Debounce`] whose
    /// leading edge is on and whose max wait is its wait.
    pub fn every(interval: Duration) -> Debounce {
        let mut throttle = Debounce::new(interval);
        throttle.times.leading = Edge::On;
        throttle.times.max_wait = Some(interval);
        throttle
    }
}

impl Debounce {
    /// Fires once it was quiet for `wait`. A wait of nothing merges only what comes at the same instant.
    pub fn new(wait: Duration) -> Self {
        Self {
            times: Times {
                wait,
                max_wait: None,
                leading: Edge::Off,
                trailing: Edge::On,
            },
            spacing: Duration::ZERO,
            setup: Setup::new(),
        }
    }
}

impl<C> Debounce<C> {
    /// Whether the first call after a quiet time fires at once. Off unless this says otherwise.
    pub fn leading(mut self, edge: Edge) -> Self {
        self.times.leading = edge;
        self
    }

    /// Whether it fires when it has become quiet, if there was a call that hasn't fired. On unless this says otherwise.
    pub fn trailing(mut self, edge: Edge) -> Self {
        self.times.trailing = edge;
        self
    }

    /// Fires at the latest this long after the last firing, or after the first call if there was none, however many calls come. One
    /// below the wait is the wait.
    pub fn max_wait(mut self, most: Duration) -> Self {
        self.times.max_wait = Some(most);
        self
    }

    /// Firings start at least this far apart: debounce, then throttle. What fires sooner waits, and the latest value wins. Keyed, it
    /// is the distance of all firings, whatever their keys.
    pub fn then_throttle(mut self, interval: Duration) -> Self {
        self.spacing = interval;
        self
    }

    /// When the last handle is dropped, what is pending fires. Without this it is discarded.
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
    pub fn clock<D: Clock>(self, clock: D) -> Debounce<D> {
        Debounce {
            times: self.times,
            spacing: self.spacing,
            setup: self.setup.clock(clock),
        }
    }
}

impl<C: Clock + Clone + 'static> Debounce<C> {
    /// A debouncer with this action.
    pub fn build<T, F>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T) + Send + Sync + 'static,
    {
        self.build_timed(move |value, _| action(value))
    }

    /// A debouncer whose action is also told when it was called last, on its clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Timestamp;
    /// use tollgate::clock::Manual;
    /// use tollgate_shape::Debounce;
    ///
    /// let clock = Manual::starting_at(Timestamp::from_secs(7));
    /// let debouncer = Debounce::new(Duration::from_secs(1))
    ///     .clock(clock.clone())
    ///     .build_timed(|_: &str, called| assert_eq!(called, Timestamp::from_secs(7)));
    /// debouncer.call("now");
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!((debouncer.stats().fired, debouncer.stats().panicked), (1, 0));
    /// ```
    pub fn build_timed<T, F>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T, Timestamp) + Send + Sync + 'static,
    {
        self.start(Action::Sync(Box::new(move |fired: Fired<T>| {
            action(fired.value, fired.called);
        })))
    }

    /// A debouncer with an async action, which runs where the driver does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::clock::Manual;
    /// use tollgate_shape::Debounce;
    ///
    /// let clock = Manual::new();
    /// let debouncer = Debounce::new(Duration::from_millis(100))
    ///     .clock(clock.clone())
    ///     .build_async(|path: &'static str| async move { println!("built {path}") });
    /// debouncer.call("src");
    /// clock.advance(Duration::from_millis(100));
    /// assert_eq!(debouncer.stats().fired, 1);
    /// ```
    pub fn build_async<T, F, R>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.build_async_timed(move |value, _| action(value))
    }

    /// A debouncer with an async action that is also told when it was called last.
    pub fn build_async_timed<T, F, R>(self, action: F) -> Debouncer<T, C>
    where
        T: Send + 'static,
        F: Fn(T, Timestamp) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.start(Action::Async(Box::new(move |fired: Fired<T>| {
            Box::pin(action(fired.value, fired.called))
        })))
    }

    fn start<T: Send + 'static>(self, action: Action<Single<T>>) -> Debouncer<T, C> {
        let store = Single::new(self.times.normal(), Spacing::new(self.spacing));
        Debouncer {
            handle: Arc::new(self.setup.start(store, action, "debouncer")),
        }
    }
}
