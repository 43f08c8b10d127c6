//! Events as people read them.

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
        } = self;
        write!(
            f,
            "node {node}: {cost} for {who}, runs {:.6} s, {ends:?}",
            seconds(*runs)
        )?;
        if let Some(patience) = patience {
            write!(f, ", dropped after {:.6} s", seconds(*patience))?;
        }
        if *returns {
            f.write_str(", comes back")
        } else {
            Ok(())
        }
    }
}
