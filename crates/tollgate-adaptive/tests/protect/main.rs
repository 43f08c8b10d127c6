//! Protected calls, retries and throttling, on a clock that the test moves.

#![expect(
    clippy::unwrap_used,
    reason = "these are tests: what can't be had fails them"
)]

mod call;
mod retry;
mod shed;
mod waiting;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Looks once at a future.
fn look<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
