//! Finding a limit and writing its key allocate nothing: asserted by counting the calls to the allocator.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tollgate::Decision;
use tollgate_engine::envoy::{self, Compiled};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::Mode;

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system allocator, which keeps the contract;
// the count beside it is a thread-local without a destructor and allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's layout is passed on as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System.alloc` with this layout, by way of `alloc` above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_request_allocates_nothing() {
    let file = "
domain: edge
descriptors:
- {key: user, rate_limit: {name: n, unit: minute, requests_per_unit: 10}}
- {key: user, value: 'bot-*-x*', rate_limit: {unit: minute, requests_per_unit: 1, replaces: [{name: n}]}}
- key: path
  value: /files/*
  share_threshold: true
  descriptors:
  - {key: ip, rate_limit: {unit: second, requests_per_unit: 5}}
";
    let domains = envoy::decode(&[(0, file)])
        .expect("a configuration")
        .domains;
    let compiled = Compiled::new(&domains);
    let requests: [&[(&str, &str)]; 4] = [
        &[("user", "42")],
        &[("user", "bot-1-x2")],
        &[("path", "/files/a"), ("ip", "10.0.0.1")],
        &[("nobody", "42")],
    ];
    let mut key = Vec::with_capacity(256);
    let before = CALLS.get();
    let mut found = requests.map(|entries| compiled.lookup("edge", &Descriptor::new(entries)));
    envoy::drop_replaced(&mut found);
    let mut limits = 0;
    for (lookup, entries) in found.iter().zip(requests) {
        if let Some(leaf) = lookup.leaf() {
            key.clear();
            envoy::counter_key(leaf, entries, |piece| key.extend_from_slice(piece));
            limits += 1;
        }
    }
    let statuses = found.map(|lookup| envoy::status(lookup, &[Decision::UNLIMITED]));
    let whole = envoy::overall(&statuses, Mode::Enforce);
    assert_eq!(CALLS.get() - before, 0);
    assert_eq!((limits, whole), (3, envoy::StatusCode::Ok));
}
