//! Authentication on the admin listener: a token, and the host names by which the listener may be addressed.

mod admin_hosts;
mod admin_token;

pub use admin_hosts::AdminHost;
pub(crate) use admin_hosts::{AdminHosts, Scheme};
pub use admin_token::{AdminToken, admin_token_files};
pub(crate) use admin_token::{TokenFile, keep};
