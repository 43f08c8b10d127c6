//! Commands on a policy file: is it right, what does it do to one request, what would another change, and what is
//! theirs in our words.

mod check;
mod convert;
mod diff;
mod explain;
mod facts;
mod notes;
mod policy_input;
mod request;
mod simulated_engine;
mod time;

pub use check::{Check, check};
pub(crate) use convert::write_converted;
pub use convert::{Conversion, Convert, convert};
pub use diff::{Diff, diff};
pub use explain::{Explain, Only, explain};
pub(crate) use facts::one_value_each;
pub use facts::{Asked, Entries, Fact, Hits, OfDescriptor};
pub use simulated_engine::Store;
pub use time::Date;

pub(crate) use notes::{leases, quotas, untold};
pub(crate) use policy_input::{checked, policy};
pub(crate) use request::{DescriptorOptions, Request, RunningRequests};
pub(crate) use simulated_engine::SimulatedEngine;
pub(crate) use time::{duration, readable};
