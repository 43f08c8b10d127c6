//! A client in a simulated world: a test owns its time, its random numbers, its network and whether it runs at
//! all.
//!
//! The seam is as low as possible: everything above the bytes of a command and its reply is the real client.
//! One thread and Tokio's paused time make a world deterministic. The test kit builds worlds.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use derive_more::Debug;
use pin_project_lite::pin_project;
use tollgate::clock::Wakeup;
use tollgate::{Clock, Timestamp};

/// The surroundings that a world gives a node.
///
/// ```
/// use std::task::{Context, Poll, Waker};
/// use tollgate::Timestamp;
/// use tollgate_redis::simulation::{CancelWakeup, Connecting, World};
///
/// /// A world in which nothing ever happens.
/// struct Void;
///
/// impl World for Void {
///     fn now(&self) -> Timestamp { Timestamp::ZERO }
///     fn wall_now(&self) -> Timestamp { Timestamp::ZERO }
///     fn wake_at(&self, _: Timestamp, _: &Waker) -> CancelWakeup { Box::new(|| {}) }
///     fn random(&self) -> u64 { 4 }
///     fn poll_is_running(&self, _: &mut Context<'_>) -> Poll<()> { Poll::Ready(()) }
///     fn is_cluster(&self) -> bool { false }
///     fn connect(&self) -> Connecting { Box::pin(async { Err("there is nothing".to_owned()) }) }
/// }
/// assert_eq!(Void.random(), 4);
/// ```
pub trait World: Send + Sync + 'static {
    /// The time of a monotonic clock.
    fn now(&self) -> Timestamp;

    /// The time of a wall clock.
    fn wall_now(&self) -> Timestamp;

    /// Wakes a task once the monotonic clock reaches this time, unless it is cancelled.
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> CancelWakeup;

    /// The next random number.
    fn random(&self) -> u64;

    /// Whether the node gets to run. A task of a stopped or starved node waits until it does.
    fn poll_is_running(&self, context: &mut Context<'_>) -> Poll<()>;

    /// Whether keys of different hash slots may be on different nodes of the store.
    fn is_cluster(&self) -> bool;

    /// Connects to the store.
    fn connect(&self) -> Connecting;
}

/// Cancels a wake-up.
///
/// ```
/// let nobody_waits: tollgate_redis::simulation::CancelWakeup = Box::new(|| {});
/// nobody_waits();
/// ```
pub type CancelWakeup = Box<dyn FnOnce() + Send + Sync>;

/// A connection being made, or why there is none.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Wire>, String>> + Send>>;

/// A reply in flight.
pub type Replying = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>>;

/// A connection to a store.
///
/// ```
/// use std::io;
/// use tollgate_redis::simulation::{Replying, Wire};
///
/// /// A cable that was cut.
/// struct Cut;
///
/// impl Wire for Cut {
///     fn send(&self, _command: Vec<u8>) -> Replying {
///         Box::pin(async { Err(io::Error::from(io::ErrorKind::ConnectionReset)) })
///     }
/// }
/// # let _ = Cut.send(Vec::new());
/// ```
pub trait Wire: Send + Sync {
    /// Sends a command, as RESP, and waits for its reply, as RESP.
    fn send(&self, command: Vec<u8>) -> Replying;
}

/// The scripts exactly as the client sends them, to replay them elsewhere.
///
/// ```
/// use tollgate_redis::simulation::scripts;
///
/// assert!(scripts::mixed().len() > scripts::plain().len());
/// ```
pub mod scripts {
    use crate::script::{self, ScriptParts};

    /// The script for decisions about levels alone.
    pub fn plain() -> &'static str {
        &ScriptParts::PLAIN.script().text
    }

    /// The script for every operation on every kind of limit.
    pub fn mixed() -> &'static str {
        &ScriptParts::EVERYTHING.script().text
    }

    /// The script that takes, renews and returns leases.
    pub fn lease() -> &'static str {
        &script::lease_script().text
    }
}

pin_project! {
    /// A task that runs only while its node does.
    ///
    /// ```
    /// # use std::{sync::Arc, task::{Context, Poll, Waker}};
    /// # use tollgate::Timestamp;
    /// # use tollgate_redis::simulation::{CancelWakeup, Connecting, World};
    /// use tollgate_redis::simulation::SuspendableTask;
    /// # struct Stopped;
    /// # impl World for Stopped {
    /// #     fn now(&self) -> Timestamp { Timestamp::ZERO }
    /// #     fn wall_now(&self) -> Timestamp { Timestamp::ZERO }
    /// #     fn wake_at(&self, _: Timestamp, _: &Waker) -> CancelWakeup { Box::new(|| {}) }
    /// #     fn random(&self) -> u64 { 4 }
    /// #     fn poll_is_running(&self, _: &mut Context<'_>) -> Poll<()> { Poll::Pending }
    /// #     fn is_cluster(&self) -> bool { false }
    /// #     fn connect(&self) -> Connecting { Box::pin(async { Err("nothing".to_owned()) }) }
    /// # }
    ///
    /// let mut task = Box::pin(SuspendableTask::new(Arc::new(Stopped), async { 42 }));
    /// assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    /// ```
    #[derive(Debug)]
    #[debug("SuspendableTask")]
    pub struct SuspendableTask<F> {
        world: Arc<dyn World>,
        #[pin]
        task: F,
    }
}

impl<F> SuspendableTask<F> {
    /// Runs a task while the world lets it.
    pub fn new(world: Arc<dyn World>, task: F) -> Self {
        Self { world, task }
    }
}

impl<F: Future> Future for SuspendableTask<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let own = self.project();
        ready!(own.world.poll_is_running(context));
        own.task.poll(context)
    }
}

/// A world's monotonic clock, as the client reads it.
pub(crate) struct WorldClock(pub(crate) Arc<dyn World>);

impl Clock for WorldClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        Some(Wakeup::new(self.0.wake_at(at, waker)))
    }
}

/// A world's wall clock, which wakes no tasks.
pub(crate) struct WorldWall(pub(crate) Arc<dyn World>);

impl Clock for WorldWall {
    fn now(&self) -> Timestamp {
        self.0.wall_now()
    }
}
