//! What the engine and backends speak of: limits, checks, keys and answers. It depends on neither.

mod answer;
mod check;
mod deny;
mod form;
mod key;
mod kind;
mod limit;
mod prepared;
mod sole;

pub use answer::{Answer, Source};
pub use check::Check;
pub use deny::{DenyCache, DenyVersion};
pub use key::RequestKey;
pub use kind::LimitKind;
pub use limit::{Counter, Limit};
pub use prepared::Prepared;
pub use sole::SoleLimit;

pub(crate) use form::{CoreForm, EXACT};
pub(crate) use key::{KeyHashers, KeyPlan};
pub(crate) use limit::Estimates;
