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
    use super::reading::read;
    use crate::seeds::read_all;

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
        assert_eq!(read_all("rls", read), MESSAGES);
    }
}
