//! What a limit takes for each of its keys, where that is much.

use tollgate::{Algorithm, Rate};

use super::{Found, LOG_MEMORY};
use crate::document::Span;

/// What a hit in a log takes in memory: when it was, and how much of it.
const HIT: u64 = 16;
/// And in a store, about.
const HIT_IN_STORE: u64 = 70;
/// From this on it is told, in bytes a key in memory.
const MUCH: u64 = 16 << 10;

/// A sliding log remembers each hit of its window.
pub(super) fn lint(found: &mut Found, rate: &Rate, algorithm: Algorithm, span: Span) {
    let hits = rate.burst_size();
    let bytes = hits.saturating_mul(HIT);
    if algorithm != Algorithm::SlidingLog || bytes < MUCH {
        return;
    }
    let message = format!(
        "a log of {hits} hits takes about {} a key in memory, and {} in a store",
        size(bytes),
        size(hits.saturating_mul(HIT_IN_STORE))
    );
    let help =
        "say algorithm: sliding-window or gcra, whose memory is constant, or a shorter period";
    found.warn(LOG_MEMORY, span, message, help);
}

/// So many bytes, to two digits or more.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let unit = UNITS.iter().find(|(unit, _)| bytes >= *unit);
    match unit {
        Some((unit, name)) if bytes / unit < 10 => {
            format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit)
        }
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let sizes = [999, 1_600, 16_000, 160_000, 70_000_000, u64::MAX].map(size);
        let expected = [
            "999 bytes",
            "1.6 kB",
            "16 kB",
            "160 kB",
            "70 MB",
            "18446744073 GB",
        ];
        assert_eq!(sizes, expected);
    }
}
