//! Any bytes as what a Redis client says: no panic, and the same commands however the bytes come.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tollgate-server/src/resp/frame.rs"]
mod frame;
#[path = "../../crates/tollgate-server/tests/common/resp_reading.rs"]
mod reading;
#[path = "../../crates/tollgate-server/src/cl_throttle.rs"]
mod cl_throttle;

fuzz_target!(|input: &[u8]| {
    reading::read(input);
});
