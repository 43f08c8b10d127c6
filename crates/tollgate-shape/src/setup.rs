//! What all builders of this crate choose alike: the clock, the executor, and what happens at the end.

use std::fmt;
#[cfg(not(any(loom, shuttle)))]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(not(any(loom, shuttle)))]
use std::task::{Context, Poll};

use tollgate::Clock;
use tollgate::clock::Monotonic;

#[cfg(not(any(loom, shuttle)))]
use crate::place;
use crate::work::{Action, AtEnd, Handle, Store, Work};

/// Keeps the time and runs actions: a future that ends when what it drives was stopped. Dropping it stops that.
///
/// Only builders that were told to `spawn_with` an executor hand one out.
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
/// drop(drivers.recv()); // this would go to an executor: without its driver a debouncer is stopped
/// assert!(debouncer.is_stopped());
/// ```
#[cfg(not(any(loom, shuttle)))]
#[must_use = "nothing runs unless this is spawned or awaited"]
pub struct Driver(Pin<Box<dyn Future<Output = ()> + Send>>);

#[cfg(not(any(loom, shuttle)))]
impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

#[cfg(not(any(loom, shuttle)))]
impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

#[cfg(not(any(loom, shuttle)))]
type Spawner = Box<dyn FnOnce(Driver) + Send>;

/// The choices that all builders have.
pub(crate) struct Setup<C = Monotonic> {
    pub(crate) clock: C,
    pub(crate) at_end: AtEnd,
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) spawner: Option<Spawner>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self {
            clock: Monotonic::new(),
            at_end: AtEnd::Discard,
            #[cfg(not(any(loom, shuttle)))]
            spawner: None,
        }
    }
}

impl<C> Setup<C> {
    pub(crate) fn clock<D: Clock>(self, clock: D) -> Setup<D> {
        Setup {
            clock,
            at_end: self.at_end,
            #[cfg(not(any(loom, shuttle)))]
            spawner: self.spawner,
        }
    }
}

impl<C: Clock + Clone + 'static> Setup<C> {
    /// Starts something, and hands out what callers have of it.
    pub(crate) fn start<S: Store>(
        self,
        store: S,
        action: Action<S>,
        name: &'static str,
    ) -> Handle<S, C> {
        let work = Arc::new(Work::new(store, action, self.clock, name));
        #[cfg(not(any(loom, shuttle)))]
        {
            let driver = crate::work::Driver::new(Arc::clone(&work));
            match self.spawner {
                Some(spawn) => spawn(Driver(Box::pin(driver))),
                None => place::run(work.clock(), driver),
            }
        }
        Handle::new(work, self.at_end)
    }
}

impl<C: fmt::Debug> fmt::Debug for Setup<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("clock", &self.clock)
            .field("at_end", &self.at_end)
            .finish_non_exhaustive()
    }
}
