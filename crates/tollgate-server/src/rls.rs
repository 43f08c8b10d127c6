//! Envoy's rate-limit service, version 3, on HTTP/2 as it is: one method, health and reflection, with their messages by hand.

mod answer;
mod call;
mod closed;
mod connection;
mod decide;
mod descriptors;
mod health;
mod reflect;
mod request;
mod wire;

pub use closed::{RlsClosed, UnknownAnswer};
pub(crate) use connection::serve;
pub(crate) use decide::{Decided, Limit, Question, Undecided, decide};
