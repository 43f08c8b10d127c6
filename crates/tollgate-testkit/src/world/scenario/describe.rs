//! Events as text for people.

use std::fmt;

use super::{Event, Request};

/// Microseconds as seconds.
pub(super) fn seconds(micros: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "it is only shown")]
    let micros = micros as f64;
    micros / 1e6
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(ask) => ask.fmt(f),
            other => write!(f, "{other:?}"),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            who,
            cost,
            patience,
            runs,
            ends,
            returns,
            descriptors,
            has_facts,
            brings,
        } = self;
        write!(
            f,
            "node {node}: {cost} for {who}, runs {:.6} s, {ends:?}",
            seconds(*runs)
        )?;
        if let Some(patience) = patience {
            write!(f, ", dropped after {:.6} s", seconds(*patience))?;
        }
        let of_trees = (0..u8::BITS).filter(|number| (descriptors >> number) & 1 == 1);
        for number in of_trees {
            write!(f, ", descriptor r{number}")?;
        }
        if !has_facts {
            f.write_str(", no facts")?;
        }
        if let Some(brings) = brings {
            write!(f, ", brings {brings}")?;
        }
        if *returns {
            f.write_str(", comes back")
        } else {
            Ok(())
        }
    }
}
