//! Commands on policy files: check, explain, compare and convert them.

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

pub use check::{CheckArgs, check};
pub(crate) use convert::write_converted;
pub use convert::{Conversion, ConvertArgs, convert};
pub use diff::{DiffArgs, diff};
pub use explain::{ExplainArgs, RuleFilter, explain};
pub(crate) use facts::facts_object;
pub use facts::{DescriptorArg, FactArg, HitsArg, PerDescriptor, RequestedLimit};
pub use simulated_engine::StoreState;
pub use time::Moment;

pub(crate) use notes::{adaptive_note, lease_note, quota_note};
pub(crate) use policy_input::{read_checked_policy, read_policy};
pub(crate) use request::{DescriptorOptions, ExplainedRequest, RunningRequests};
pub(crate) use simulated_engine::SimulatedEngine;
pub(crate) use time::{format_duration, parse_duration};
