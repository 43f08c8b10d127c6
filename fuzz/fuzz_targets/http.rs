//! Any bytes as requests of HTTP: no panic, and the same requests however the bytes come.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tollgate-server/tests/common/http_reading.rs"]
mod reading;
#[path = "../../crates/tollgate-server/src/http/request.rs"]
mod request;

fuzz_target!(|input: &[u8]| {
    reading::read(input);
});
