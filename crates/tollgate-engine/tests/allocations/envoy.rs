//! Finding a limit and writing its key allocate nothing: asserted by counting the calls to the allocator.

use tollgate::Decision;
use tollgate_engine::envoy::{self, DescriptorIndex};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::Mode;
use tollgate_testkit::allocation_counter::allocation_count;

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
    let compiled = DescriptorIndex::new(&domains);
    let requests: [&[(&str, &str)]; 4] = [
        &[("user", "42")],
        &[("user", "bot-1-x2")],
        &[("path", "/files/a"), ("ip", "10.0.0.1")],
        &[("nobody", "42")],
    ];
    let mut key = Vec::with_capacity(256);
    let before = allocation_count();
    let mut found = requests.map(|entries| compiled.lookup("edge", &Descriptor::new(entries)));
    envoy::remove_replaced_limits(&mut found);
    let mut limits = 0;
    for (lookup, entries) in found.iter().zip(requests) {
        if let Some(leaf) = lookup.leaf() {
            key.clear();
            envoy::counter_key(leaf, entries, |piece| key.extend_from_slice(piece));
            limits += 1;
        }
    }
    let statuses = found.map(|lookup| envoy::limit_status(lookup, &[Decision::UNLIMITED]));
    let whole = envoy::overall_code(&statuses, Mode::Enforce);
    assert_eq!(allocation_count() - before, 0);
    assert_eq!((limits, whole), (3, envoy::StatusCode::Ok));
}
