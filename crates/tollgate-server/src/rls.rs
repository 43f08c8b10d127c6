//! Envoy's rate-limit service, version 3, on HTTP/2 as it is: one method, and its messages by hand.

mod answer;
mod call;
mod connection;
mod decide;
mod request;
mod wire;

pub(crate) use connection::serve;
pub(crate) use decide::{Decided, Question, Undecided, decide};
