//! Shaping in time, on a clock that is moved by hand or on tokio's paused time.

#![expect(
    clippy::unwrap_used,
    reason = "these are tests: what can't be had fails them"
)]

mod coalesce;
mod coalesce_model;
mod corners;
mod debounce;
mod dropping;
mod ending;
mod keyed;
#[cfg(feature = "log")]
mod log;
mod pacer;
mod stepped_back;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::{Clock, Manual};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What happened, and in which millisecond.
#[derive(Clone, Debug)]
struct Record<T> {
    clock: Manual,
    events: Arc<Mutex<Vec<(u64, T)>>>,
}

impl<T> Record<T> {
    fn new(clock: &Manual) -> Self {
        Self {
            clock: clock.clone(),
            events: Arc::default(),
        }
    }

    fn note(&self, what: T) {
        let at = self.clock.now() - Timestamp::ZERO;
        let at = u64::try_from(at.as_millis()).unwrap();
        self.events.lock().unwrap().push((at, what));
    }

    fn take(&self) -> Vec<(u64, T)> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

/// Time goes on to this millisecond, one at a time.
fn go_to(clock: &Manual, millis: u64) {
    while clock.now() < Timestamp::from_millis(millis) {
        clock.advance(ms(1));
    }
}
