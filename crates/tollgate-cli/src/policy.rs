//! Commands on a policy file: is it right, what does it do to one request, what would another change, and what is
//! theirs in our words.

mod check;
mod convert;
mod diff;
mod explain;
mod facts;
mod input;
mod leases;
mod request;
mod stage;
mod time;

pub use check::{Check, check};
pub(crate) use convert::write_converted;
pub use convert::{Conversion, Convert, convert};
pub use diff::{Diff, diff};
pub use explain::{Explain, Only, explain};
pub(crate) use facts::one_value_each;
pub use facts::{Asked, Entries, Fact, Hits, OfDescriptor};
pub use stage::Store;
pub use time::Date;

pub(crate) use input::{checked, policy};
pub(crate) use leases::{leases, quotas, untold};
pub(crate) use request::{DescriptorOptions, Request, RunningRequests};
pub(crate) use stage::SimulatedEngine;
pub(crate) use time::{duration, readable};
