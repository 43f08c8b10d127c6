//! Who may operate a service on its admin listener: whoever tells its token, by a name that is the listener's own.

mod admin_hosts;
mod admin_token;

pub use admin_hosts::AdminHost;
pub(crate) use admin_hosts::{AdminHosts, Scheme};
pub use admin_token::{AdminToken, admin_token_files};
pub(crate) use admin_token::{TokenFile, keep};
