//! The engine's behaviour for each word of a policy, and its equality with a slow oracle.

#[path = "../common/mod.rs"]
mod common;
mod counted;
mod dropped;
mod ip_keys;
mod keys_shown;
mod missing_key;
mod never_applied;
mod observed;
mod oracle;
mod orders;
mod orders_model;
mod refusals;
mod rules;
mod several_values;
mod shadow_seen;
mod tallies;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate_engine::Facts;

pub(crate) fn user(name: &str) -> Facts<'_> {
    Facts::new().with("user", name)
}

/// The output of a future that is ready immediately.
pub(crate) fn awaited<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("memory never waits"),
    }
}
