//! The surroundings of a client: its clocks, its random numbers and its tasks. They are the system's or those
//! of a simulated world, and no other code knows which.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use derive_more::Debug;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::clock::{Monotonic, Wakeup, Wall};
use tollgate::{Clock, Timestamp};

use crate::lock::lock;
#[cfg(feature = "simulation")]
use crate::simulation::{SuspendableTask, World, WorldClock, WorldWall};

/// A clock that the caller provides.
pub(crate) type CallerClock = Arc<dyn Clock>;

/// The surroundings of a client.
#[derive(Clone, Debug)]
#[debug("Host")]
pub(crate) struct Host {
    runtime: Handle,
    #[cfg(feature = "simulation")]
    world: Option<Arc<dyn World>>,
}

impl Host {
    /// The system, with tasks on the current runtime.
    pub(crate) fn system() -> Result<Self, tokio::runtime::TryCurrentError> {
        Ok(Self {
            runtime: Handle::try_current()?,
            #[cfg(feature = "simulation")]
            world: None,
        })
    }

    /// The same in a simulated world.
    #[cfg(feature = "simulation")]
    pub(crate) fn simulated(self, world: Arc<dyn World>) -> Self {
        Self {
            world: Some(world),
            ..self
        }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn world(&self) -> Option<&Arc<dyn World>> {
        self.world.as_ref()
    }

    /// The monotonic clock, for durations and timeouts.
    pub(crate) fn clock(&self) -> HostClock {
        #[cfg(feature = "simulation")]
        if let Some(world) = &self.world {
            return HostClock::Other(Arc::new(WorldClock(Arc::clone(world))));
        }
        HostClock::System(Monotonic::new())
    }

    /// The wall clock.
    pub(crate) fn wall(&self) -> HostWall {
        #[cfg(feature = "simulation")]
        if let Some(world) = &self.world {
            return HostWall::Other(Arc::new(WorldWall(Arc::clone(world))));
        }
        HostWall::System(Wall)
    }

    /// A random number that can't be guessed, and that no other process draws, not even a forked one.
    pub(crate) fn random(&self) -> u64 {
        #[cfg(feature = "simulation")]
        if let Some(world) = &self.world {
            return world.random();
        }
        getrandom::u64().unwrap_or_else(|_| {
            // Early in a boot there may be no entropy; addresses and the time are the next best.
            use std::hash::BuildHasher;
            let seed = std::hash::RandomState::new();
            seed.hash_one((std::process::id(), Wall.now().as_nanos()))
        })
    }

    /// Runs a background task.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "simulation")]
        if let Some(world) = &self.world {
            return self
                .runtime
                .spawn(SuspendableTask::new(Arc::clone(world), task));
        }
        self.runtime.spawn(task)
    }

    /// Runs a background task periodically, as long as its subject exists and it returns true.
    pub(crate) fn spawn_every<T, F>(
        &self,
        pause: Duration,
        subject: &Arc<T>,
        task: impl Fn(Arc<T>) -> F + Send + 'static,
    ) where
        T: Send + Sync + 'static,
        F: Future<Output = bool> + Send,
    {
        let subject = Arc::downgrade(subject);
        self.spawn(async move {
            let mut ticks = interval(pause.max(Duration::from_millis(1)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(subject) = subject.upgrade() else {
                    return;
                };
                if !task(subject).await {
                    return;
                }
            }
        });
    }
}

/// A number that distinguishes a client from all others, also from those in forked processes.
#[derive(Debug)]
pub(crate) struct ProcessIdentity(Mutex<ProcessNumber>);

/// The number that was drawn, and the process that drew it.
#[derive(Clone, Copy, Debug)]
struct ProcessNumber {
    process: u32,
    number: u64,
}

impl ProcessIdentity {
    pub(crate) fn new(host: &Host) -> Self {
        Self(Mutex::new(ProcessNumber {
            process: std::process::id(),
            number: host.random(),
        }))
    }

    pub(crate) fn number(&self, host: &Host) -> u64 {
        self.number_in_process(std::process::id(), host)
    }

    fn number_in_process(&self, process: u32, host: &Host) -> u64 {
        let mut drawn = lock(&self.0);
        if drawn.process != process {
            let number = host.random();
            *drawn = ProcessNumber { process, number };
        }
        drawn.number
    }
}

/// A monotonic clock.
pub(crate) type HostClock = ClockSource<Monotonic>;
/// A wall clock.
pub(crate) type HostWall = ClockSource<Wall>;

/// A clock of the system, read for each decision; or one that a test or a simulated world sets.
#[derive(Clone)]
pub(crate) enum ClockSource<C> {
    System(C),
    Other(Arc<dyn Clock>),
}

impl<C: Clock> Clock for ClockSource<C> {
    #[inline]
    fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Other(clock) => clock.now(),
        }
    }

    fn source_id(&self) -> Option<usize> {
        match self {
            Self::System(clock) => clock.source_id(),
            Self::Other(clock) => clock.source_id(),
        }
    }

    fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        match self {
            Self::System(clock) => clock.schedule_wakeup(at, waker),
            Self::Other(clock) => clock.schedule_wakeup(at, waker),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_forked_process_draws_its_own_number() {
        let host = Host::system().unwrap();
        let (own, others) = (ProcessIdentity::new(&host), ProcessIdentity::new(&host));
        let (process, first) = (std::process::id(), own.number(&host));
        assert_ne!(first, others.number(&host));
        assert_eq!(own.number(&host), first);
        // The state that a forked child inherits from its parent.
        let child = own.number_in_process(process + 1, &host);
        assert_ne!(child, first);
        assert_eq!(own.number_in_process(process + 1, &host), child);
        assert_ne!(own.number_in_process(process + 2, &host), child);
    }
}
