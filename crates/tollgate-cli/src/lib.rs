//! The `tollgate` command as a library: each command is a function from its options to a report,
//! and the binary only parses, prints and chooses the exit code.
//!
//! * [`policy`] checks, explains, compares and converts policy files.
//! * [`serve`] runs the service.
//! * [`ask`] sends one request to a running service, and [`admin`] queries and changes the service.
//! * [`load`] load tests one limit, in memory or in a store.
//! * [`mod@pipe`] rate-limits the lines of standard input.
//! * [`manual`] writes completions and manual pages.
//! * [`simulate`] runs a traffic pattern through every algorithm on virtual time. Its runner, [`simulate::runner`],
//!   takes any list of arrivals, so a caller can bring its own traffic.
//!
//! ```
//! use tollgate_cli::simulate::{SimulateOptions, simulate_algorithms};
//!
//! let report = simulate_algorithms(&SimulateOptions::default())?;
//! let token_bucket = &report.algorithms[0];
//! assert_eq!((token_bucket.name, token_bucket.admitted), ("token bucket", Some(399)));
//! # Ok::<(), tollgate_cli::simulate::PatternError>(())
//! ```

#![forbid(unsafe_code)]

pub mod admin;
pub mod ask;
mod cli;
mod color;
pub mod load;
pub mod manual;
mod outcome;
mod output;
pub mod pipe;
pub mod policy;
pub mod serve;
mod service_client;
pub mod simulate;

pub use cli::{Cli, Command};
pub use color::Color;
pub use outcome::{CliError, CommandOutcome};
