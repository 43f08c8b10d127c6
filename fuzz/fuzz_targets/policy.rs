//! Any text as a policy file: no panic, and every diagnostic can be shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_engine::document::Format;
use tollgate_engine::{Policy, render};

fuzz_target!(|text: &str| {
    for format in [Format::Yaml, Format::Toml] {
        let (found, sources) = match Policy::from_text(text, format) {
            Ok(checked) => (checked.warnings, checked.sources),
            Err(rejected) => (rejected.errors, rejected.sources),
        };
        let _ = render::human(&found, &sources);
        let _ = render::json(&found, &sources);
    }
});
