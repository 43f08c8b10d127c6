//! Waiting for something that a real process does in its own time.
#![expect(
    clippy::disallowed_methods,
    reason = "another process keeps no clock of ours: it is asked again until a deadline"
)]

use std::thread;
use std::time::{Duration, Instant};

/// The pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls a condition until it is true.
///
/// ```
/// use std::time::Duration;
/// use tollgate_testkit::redis::wait_until;
///
/// let mut asked = 0;
/// wait_until(Duration::from_secs(5), "the third time", || {
///     asked += 1;
///     asked == 3
/// });
/// ```
///
/// # Panics
/// With `what` it waited for, if that doesn't happen within `deadline`.
pub fn wait_until(deadline: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(
        wait_for(deadline, condition),
        "waited {deadline:?} in vain for {what}"
    );
}

/// Polls a condition, and returns whether it became true before the deadline.
pub(crate) fn wait_for(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() >= deadline {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "waited 0ns in vain for a pig to fly")]
    fn what_never_happens_is_named() {
        wait_until(Duration::ZERO, "a pig to fly", || false);
    }
}
