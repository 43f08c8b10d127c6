//! Any text as a policy file: no panic, every diagnostic can be shown, and what has no error can be used.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_engine::document::Format;

#[path = "../../crates/tollgate-engine/tests/common/reading.rs"]
mod reading;

fuzz_target!(|text: &str| {
    for format in [Format::Yaml, Format::Toml] {
        reading::read(text, format);
    }
});
