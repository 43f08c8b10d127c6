//! Real servers that tests start and stop: one Redis or Valkey, sentinels, a cluster, and a server behind a
//! network that can be cut.
//!
//! Everything listens on this machine only, on ports that no other test of this machine gets, with its files in
//! a [`TempFolder`](crate::temp_folder::TempFolder). A server ends when its value is dropped, by the process id
//! that was started.
//!
//! ```
//! use tollgate_testkit::redis::Server;
//!
//! let server = Server::start();
//! server.command(&["SET", "limit", "10/s"]);
//! assert_eq!(server.command(&["GET", "limit"]), "10/s");
//!
//! server.restart_empty();
//! assert!(server.command(&["GET", "limit"]).is_nil());
//! ```

mod builder;
mod certificates;
mod client;
mod cluster;
mod isolated;
mod migration;
mod port;
mod process;
mod sentinels;
mod server;
mod wait;

pub use builder::Builder;
pub use certificates::Certificates;
pub use client::{Client, Reply};
pub use cluster::{Cluster, hash_slot};
pub use isolated::Isolated;
pub use migration::Migration;
pub use port::Port;
pub(crate) use process::Process;
pub use sentinels::Sentinels;
pub use server::Server;
pub(crate) use wait::wait_for;
pub use wait::wait_until;
