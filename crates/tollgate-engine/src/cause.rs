//! What made a decision, by name.

use crate::bounds::BoundExceeded;

/// What made a decision.
///
/// ```
/// use tollgate_engine::verdict::Cause;
///
/// assert_eq!(Cause::Rule("per-user").to_string(), "rule \"per-user\"");
/// assert_eq!(Cause::Block(0).to_string(), "block[0]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum Cause<'a> {
    /// No rule applies.
    #[display("no rule")]
    Nothing,
    /// This entry of the exempt list.
    #[display("exempt[{_0}]")]
    Exempt(usize),
    /// This entry of the block list.
    #[display("block[{_0}]")]
    Block(usize),
    /// The operator's [override](crate::overrides) with this number, which blocks without a rule.
    #[display("order {_0}")]
    Override(u64),
    /// A rule, by name.
    #[display("rule {_0:?}")]
    Rule(&'a str),
    /// A tier, by name.
    #[display("tier {_0:?}")]
    Tier(&'a str),
    /// A limit of a descriptor tree, as `domain/key=value/key`.
    #[display("descriptor {_0:?}")]
    Descriptor(&'a str),
    /// A limit that a descriptor brought along.
    #[display("a limit that was asked for")]
    RequestedLimit,
    /// The store was unavailable for a rule or tier that is closed then, by name. The limit itself has denied
    /// nothing.
    #[display("no store to ask about {_0:?}")]
    StoreFailure(&'a str),
    /// The request exceeds a [bound](crate::Bounds). No limit was checked.
    #[display("{_0}")]
    TooMuch(BoundExceeded<'a>),
}
