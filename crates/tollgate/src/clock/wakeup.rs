//! The handle of a wake-up, for clocks that wake tasks themselves.

use std::fmt;

/// A wake-up of a task at a time. Dropping it cancels the wake-up.
///
/// [`Clock::schedule_wakeup`](super::Clock::schedule_wakeup) returns it, for clocks whose time isn't the system's.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
/// use std::task::Waker;
/// use tollgate::clock::Wakeup;
/// use tollgate::{Clock, Timestamp};
///
/// /// A simulation's time: whoever moves it wakes those whose time has come.
/// #[derive(Default)]
/// struct Simulated {
///     now: Mutex<Timestamp>,
///     waiting: Arc<Mutex<BTreeMap<Timestamp, Waker>>>,
/// }
///
/// impl Clock for Simulated {
///     fn now(&self) -> Timestamp {
///         *self.now.lock().unwrap()
///     }
///
///     fn schedule_wakeup(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
///         self.waiting.lock().unwrap().insert(at, waker.clone());
///         let waiting = Arc::clone(&self.waiting);
///         Some(Wakeup::new(move || drop(waiting.lock().unwrap().remove(&at))))
///     }
/// }
///
/// let clock = Simulated::default();
/// let wakeup = clock.schedule_wakeup(Timestamp::from_secs(1), Waker::noop());
/// assert_eq!(clock.waiting.lock().unwrap().len(), 1);
/// drop(wakeup);
/// assert!(clock.waiting.lock().unwrap().is_empty());
/// ```
pub struct Wakeup(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Wakeup {
    /// Makes a wake-up; `call_off` is called when it is dropped, before or after it has happened.
    pub fn new(call_off: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(call_off)))
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        if let Some(call_off) = self.0.take() {
            call_off();
        }
    }
}

impl fmt::Debug for Wakeup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeup").finish_non_exhaustive()
    }
}
