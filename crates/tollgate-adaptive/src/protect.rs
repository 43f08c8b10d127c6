//! A protected call: breaker, rate and bulkhead around it, and careful retries.
//!
//! ```text
//! breaker ─► rate ─► bulkhead ─► the call ─► its outcome is reported to all three
//! ```
//!
//! An open breaker charges nothing. A full bulkhead refunds the token of the rate. A call that is
//! dropped on the way, by a timeout or because its caller gave up, releases everything it holds.

mod budget;
mod call;
mod retry;
mod throttle;

pub use budget::RetryBudget;
pub use call::{ActiveCall, CallDenied, CallError, CallGuard};
pub use retry::{Backoff, RetriesExhausted, Retry, RetryAdvice, StopReason};
pub use throttle::{Attempt, ClientThrottle, Throttled};
