//! The time of day, for limits that follow the calendar.

use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::Timestamp;

use super::Clock;

/// Nanoseconds since the Unix epoch by the system's clock.
///
/// An administrator or a time service may set it back. A quota that was charged at a later time keeps that time until
/// the clock has caught up, so a step back grants nothing extra.
///
/// ```
/// use tollgate::{Clock, Timestamp, clock::Wall};
///
/// let in_2020 = Timestamp::from_secs(1_577_836_800);
/// assert!(Wall.now() > in_2020);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Wall;

impl Clock for Wall {
    #[expect(
        clippy::disallowed_methods,
        reason = "a calendar follows wall time; nothing else tells days and months"
    )]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Timestamp::from_nanos(since.map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        }))
    }
}
