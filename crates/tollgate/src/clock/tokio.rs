//! tokio's own time, so that `tokio::time::pause` and `advance` drive limits and waits together.

use tokio::time::Instant;
use tollgate_core::Timestamp;

use super::Clock;

/// Reads tokio's clock: real time in production, virtual time in a test that paused it.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, Limiter, Rate, clock::Tokio};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tollgate::RateDenied> {
/// // One every 100 ms, burst 3: six waits take exactly 300 ms of paused time.
/// let limiter = Limiter::with_clock(Rate::every(Duration::from_millis(100)).burst(3), Tokio::new());
/// let start = limiter.clock().now();
/// for _ in 0..6 {
///     limiter.acquire().await?;
/// }
/// assert_eq!(limiter.clock().now() - start, Duration::from_millis(300));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tokio {
    anchor: Instant,
}

impl Tokio {
    /// A clock whose origin is now.
    pub fn new() -> Self {
        Self {
            anchor: Instant::now(),
        }
    }
}

impl Default for Tokio {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Tokio {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO + Instant::now().saturating_duration_since(self.anchor)
    }
}
