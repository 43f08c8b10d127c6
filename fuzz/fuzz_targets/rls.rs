//! Any bytes as a question of Envoy's: no panic, and nothing is read that isn't in the message.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tollgate-server/tests/common/rls_reading.rs"]
mod reading;
#[path = "../../crates/tollgate-server/src/rls/request.rs"]
mod request;
#[path = "../../crates/tollgate-server/src/rls/protobuf_reader.rs"]
mod protobuf_reader;

fuzz_target!(|message: &[u8]| {
    reading::read(message);
});
