//! Who may operate a service on its admin listener: whoever tells its token, by a name that is the listener's own.

mod hosts;
mod token;

pub use hosts::AdminHost;
pub(crate) use hosts::{AdminHosts, Scheme};
pub use token::{AdminToken, admin_token_files};
pub(crate) use token::{Made, keep};
