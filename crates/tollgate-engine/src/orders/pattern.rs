//! Values of facts that an order is for: one text, all that a glob matches, or the addresses of a network.

use std::fmt;

use crate::address::Network;
use crate::key_text::Shown;

/// Which values of a fact an order is for.
///
/// ```
/// use tollgate_engine::orders::FactPattern;
///
/// assert_eq!(FactPattern::of("ada"), FactPattern::Exact("ada".to_owned()));
/// assert_eq!(FactPattern::of("/api/**"), FactPattern::Glob("/api/**".to_owned()));
/// assert_eq!(FactPattern::of("10.0.0.0/8"), FactPattern::Network("10.0.0.0/8".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FactPattern {
    /// This text.
    Exact(String),
    /// What a policy's glob matches: `*` is anything but `/`, `**` anything, `?` one character but `/`.
    Glob(String),
    /// All addresses of this network; and the text itself, as lists show a key that is a network.
    Network(String),
}

impl FactPattern {
    /// What an operator means who writes this: a glob if it has a `*`, a network if it is one, as a policy reads it.
    pub fn of(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.contains('*') {
            Self::Glob(text)
        } else if text.contains('/') && Network::parse(&text).is_some() {
            Self::Network(text)
        } else {
            Self::Exact(text)
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Glob(text) | Self::Network(text) => text,
        }
    }
}

impl fmt::Display for FactPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => Shown(text).fmt(f),
            // A star stands bare only here, where it means a glob.
            Self::Glob(text) if Shown(&text.replace('*', "")).to_string().starts_with('"') => {
                write!(f, "{text:?}")
            }
            Self::Glob(text) | Self::Network(text) => f.write_str(text),
        }
    }
}
