//! HTTP and JSON: for everything that speaks neither Envoy's protocol nor Redis'.

mod answer;
mod body;
mod check;
mod descriptors;
mod envoy;
mod hold;
mod request;
mod session;
mod usage;

pub(crate) use session::{Door, Session};
