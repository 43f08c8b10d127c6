//! A call that is protected: breaker, rate and bulkhead around it, tried again with care.
//!
//! ```text
//! breaker ─► rate ─► bulkhead ─► the call ─► what came of it is told to all three
//! ```
//!
//! An open breaker charges nothing. A full bulkhead gives the token of the rate back. Whatever is
//! dropped on the way, by a timeout or because nobody waits any more, gives back what it has.

mod budget;
mod call;
mod retry;
mod throttle;

pub use budget::RetryBudget;
pub use call::{ActiveCall, CallDenied, CallError, CallGuard};
pub use retry::{Backoff, RetriesExhausted, Retry, RetryAdvice, StopReason};
pub use throttle::{Attempt, ClientThrottle, Throttled};
