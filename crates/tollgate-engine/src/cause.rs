//! What decided about a request, by name.

use std::fmt;

use crate::bounds::TooMuch;

/// What decided about a request.
///
/// ```
/// use tollgate_engine::verdict::Cause;
///
/// assert_eq!(Cause::Rule("per-user").to_string(), "rule \"per-user\"");
/// assert_eq!(Cause::Block(0).to_string(), "block[0]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause<'a> {
    /// No rule is for it.
    Nothing,
    /// It is exempt, by this entry of the list.
    Exempt(usize),
    /// It is blocked, by this entry of the list.
    Block(usize),
    /// It is blocked by an operator's [order](crate::orders) of this number, which names no rule.
    Ordered(u64),
    /// A rule, by name.
    Rule(&'a str),
    /// What a tier allows, by name.
    Tier(&'a str),
    /// A limit of a tree of descriptors, as `domain/key=value/key`.
    Descriptor(&'a str),
    /// A limit that a descriptor brought along.
    Asked,
    /// The store couldn't be asked about a rule or tier that nothing passes without, by name. The limit
    /// itself has refused nothing.
    StoreFailure(&'a str),
    /// It has more of something than [is taken](crate::Bounds). No limit was asked.
    TooMuch(TooMuch<'a>),
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no rule"),
            Self::Exempt(entry) => write!(f, "exempt[{entry}]"),
            Self::Block(entry) => write!(f, "block[{entry}]"),
            Self::Ordered(id) => write!(f, "order {id}"),
            Self::Rule(name) => write!(f, "rule {name:?}"),
            Self::Tier(name) => write!(f, "tier {name:?}"),
            Self::Descriptor(path) => write!(f, "descriptor {path:?}"),
            Self::Asked => f.write_str("a limit that was asked for"),
            Self::StoreFailure(name) => write!(f, "no store to ask about {name:?}"),
            Self::TooMuch(what) => what.fmt(f),
        }
    }
}
