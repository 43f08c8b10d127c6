//! What decided about a request, by name.

use crate::bounds::BoundExceeded;

/// What decided about a request.
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
    /// No rule is for it.
    #[display("no rule")]
    Nothing,
    /// It is exempt, by this entry of the list.
    #[display("exempt[{_0}]")]
    Exempt(usize),
    /// It is blocked, by this entry of the list.
    #[display("block[{_0}]")]
    Block(usize),
    /// It is blocked by an operator's [order](crate::orders) of this number, which names no rule.
    #[display("order {_0}")]
    Override(u64),
    /// A rule, by name.
    #[display("rule {_0:?}")]
    Rule(&'a str),
    /// What a tier allows, by name.
    #[display("tier {_0:?}")]
    Tier(&'a str),
    /// A limit of a tree of descriptors, as `domain/key=value/key`.
    #[display("descriptor {_0:?}")]
    Descriptor(&'a str),
    /// A limit that a descriptor brought along.
    #[display("a limit that was asked for")]
    RequestedLimit,
    /// The store couldn't be asked about a rule or tier that nothing passes without, by name. The limit
    /// itself has refused nothing.
    #[display("no store to ask about {_0:?}")]
    StoreFailure(&'a str),
    /// It has more of something than [is taken](crate::RequestBounds). No limit was asked.
    #[display("{_0}")]
    TooMuch(BoundExceeded<'a>),
}
