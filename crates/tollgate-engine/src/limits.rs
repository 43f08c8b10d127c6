//! The types that the engine and the backends share: limits, checks, keys and answers. They depend on neither.

mod answer;
mod check;
mod compiled;
mod deny_cache;
mod hashers;
mod key;
mod kind;
mod limit;
mod prepared_state;
mod request_key;
mod standalone;
mod store_failure;
pub(crate) mod warm_up;

pub use answer::{Answer, AnswerSource};
pub use check::Check;
pub use deny_cache::{DenyCache, DenyRecheck, DenyVersion, KnownDenial};
pub use kind::LimitKind;
pub use limit::{CarryOver, Counter, Limit};
pub use prepared_state::Prepared;
pub use request_key::RequestKey;
pub use standalone::StandaloneLimit;
pub use store_failure::{CheckResult, FailureKind, StoreUnavailable};

pub(crate) use compiled::{CompiledLimit, EXACT_ALGORITHMS};
pub(crate) use hashers::KeyHashers;
pub(crate) use key::KeyPlan;
pub(crate) use limit::Estimates;
pub(crate) use store_failure::decisions;
