//! Any bytes as a body of JSON: no panic, and what is read is what every other reader of JSON reads.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tollgate-server/src/http/body.rs"]
mod body;
#[path = "../../crates/tollgate-server/src/http/descriptors.rs"]
mod descriptors;
#[path = "../../crates/tollgate-server/tests/common/json_reading.rs"]
mod reading;

/// What descriptors say that are wrong.
mod session {
    pub(crate) type Wrong = (u16, String);

    pub(crate) fn bad(why: String) -> Wrong {
        (400, why)
    }
}

fuzz_target!(|bytes: &[u8]| {
    reading::read(bytes);
});
