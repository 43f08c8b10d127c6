//! What the engine and backends speak of: limits, checks, keys and answers. It depends on neither.

mod answer;
mod check;
mod deny;
mod form;
mod hashers;
mod key;
mod kind;
mod limit;
mod prepared;
mod request_key;
mod sole;
mod unavailable;
pub(crate) mod warm_up;

pub use answer::{Answer, Source};
pub use check::Check;
pub use deny::{DenyCache, DenyRecheck, DenyVersion, KnownDenial};
pub use kind::LimitKind;
pub use limit::{CarryOver, Counter, Limit};
pub use prepared::Prepared;
pub use request_key::RequestKey;
pub use sole::SoleLimit;
pub use unavailable::{CheckResult, FailureKind, Unavailable};

pub(crate) use form::{CompiledLimit, EXACT};
pub(crate) use hashers::KeyHashers;
pub(crate) use key::KeyPlan;
pub(crate) use limit::Estimates;
pub(crate) use unavailable::decisions;
