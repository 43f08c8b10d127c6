//! Redis' protocol: any of its clients can ask.

mod frame;
mod reply;
mod session;
mod throttle;

pub(crate) use session::Session;
