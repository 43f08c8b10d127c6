//! The end of a sequence's replay: the model of the peer differs from the recording, or ours does and no rule excuses
//! it.

use std::fmt::{self, Debug};
use std::ops::Sub;

/// Who contradicts what was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// Our arithmetic: that is what the set is for.
    Ours,
    /// Our model of the peer: nothing is known of our arithmetic.
    Model,
}

/// One contradiction, in words.
#[derive(Debug)]
pub(crate) struct Disagreement {
    side: Side,
    text: String,
}

impl Side {
    /// Whether this side equals the recording.
    pub(crate) fn says<T: PartialEq + Debug>(
        self,
        what: &str,
        said: T,
        recorded: T,
    ) -> Result<(), Disagreement> {
        if said == recorded {
            return Ok(());
        }
        Err(self.differs(format!("{what}: said {said:?}, recorded {recorded:?}")))
    }

    /// Whether this side equals the recording within a tolerance.
    pub(crate) fn says_nearly<T>(
        self,
        what: &str,
        said: T,
        recorded: T,
        tolerance: T,
    ) -> Result<(), Disagreement>
    where
        T: Copy + PartialOrd + Sub<Output = T> + Debug,
    {
        let difference = if said < recorded {
            recorded - said
        } else {
            said - recorded
        };
        if difference <= tolerance {
            return Ok(());
        }
        let recorded = format!("recorded {recorded:?} ± {tolerance:?}");
        Err(self.differs(format!("{what}: said {said:?}, {recorded}")))
    }

    /// This side contradicts what was recorded.
    pub(crate) fn differs(self, text: String) -> Disagreement {
        Disagreement { side: self, text }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours differs from the peer",
            Self::Model => "the model of the peer is wrong",
        })
    }
}

impl Disagreement {
    pub(crate) fn side(&self) -> Side {
        self.side
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
