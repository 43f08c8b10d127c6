//! Envoy's rate-limit service, version 3, on HTTP/2 as it is: one method, health and reflection, with their messages by hand.

mod answer;
mod call;
mod closed;
mod connection;
mod decide;
mod descriptors;
mod health;
mod quiet;
#[cfg(test)]
#[path = "../tests/common/rls_reading.rs"]
mod reading;
mod reflect;
mod request;
mod wire;

pub use closed::{RlsClosed, UnknownAnswer};
pub(crate) use connection::serve;
pub(crate) use decide::{Decided, Limit, Question, Undecided, ask, decide};

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::reading::read;

    /// The seeds of the fuzz target that are messages; the others are none.
    const MESSAGES: [&str; 9] = [
        "empty",
        "every-field",
        "longest-number",
        "many-descriptors",
        "one",
        "peek",
        "twice",
        "unit-unknown",
        "unknown-fields",
    ];

    #[test]
    fn seeds_and_what_is_near_them_are_read_or_refused() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/rls");
        let mut messages = Vec::new();
        for entry in fs::read_dir(folder).expect("the seeds") {
            let path = entry.expect("a seed").path();
            let seed = fs::read(&path).expect("bytes");
            if read(&seed) {
                let name = path.file_name().unwrap_or_default();
                messages.push(name.to_string_lossy().into_owned());
            }
            for place in 0..seed.len() {
                read(&seed[..place]);
                read(&seed[place..]);
                for bit in 0..8 {
                    let mut other = seed.clone();
                    other[place] ^= 1 << bit;
                    read(&other);
                }
            }
        }
        messages.sort();
        assert_eq!(messages, MESSAGES);
    }
}
