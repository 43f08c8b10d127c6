//! How long an answer is waited for: so long as this process could run.
//!
//! A process that was stopped, throttled or crowded out finds its timers over before it has looked at what came.
//! That time isn't held against the store, and whatever is there when time is up is taken.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use crate::host::Host;

/// The wait is looked at so many times.
const LOOKS: u32 = 4;
/// A timer that is late by no more was on time: it ticks once a millisecond, and its thread has other work.
const ON_TIME: Duration = Duration::from_millis(2);
/// How often other tasks get a turn before time is up: the socket is read, the reply taken from the
/// connection, told to the driver, and by it to who waits.
const TURNS: usize = 4;

/// How long one decision waits, whatever it asks and how many.
#[derive(Debug)]
pub(crate) struct Patience {
    host: Host,
    timeout: Duration,
    until: Instant,
}

impl Patience {
    pub(crate) fn new(host: &Host, timeout: Duration) -> Self {
        Self {
            host: host.clone(),
            timeout,
            until: Instant::now() + timeout,
        }
    }

    /// Waits for something; nothing if time is up before.
    pub(crate) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        loop {
            let look = (Instant::now() + self.timeout / LOOKS).min(self.until);
            if let Ok(done) = timeout_at(look, &mut what).await {
                return Some(done);
            }
            let now = Instant::now();
            let late = now.saturating_duration_since(look);
            if late > ON_TIME {
                self.until += late;
            }
            if now >= self.until {
                break;
            }
        }
        // What is there already wins, though nobody has come to look at it. The runtime that looks may be
        // another than this one, and be starved alone.
        let turns = self.host.spawn(async {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        });
        let _ = timeout(self.timeout, turns).await;
        timeout(Duration::ZERO, what).await.ok()
    }
}
