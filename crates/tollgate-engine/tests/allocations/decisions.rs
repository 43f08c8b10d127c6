//! A decision by rates allocates nothing: counted by the allocator, thread by thread.

use tollgate::clock::Manual;
use tollgate::quota::Quota;
use tollgate_engine::Facts;
use tollgate_engine::policy::{KeyPart, Limits, Mode, Pattern};
use tollgate_testkit::allocation_counter::allocation_count;

use crate::common::{engine, only, policy, rates, rule};

fn allocations(run: impl FnOnce()) -> u64 {
    let before = allocation_count();
    run();
    allocation_count() - before
}

#[test]
fn a_decision_asks_for_no_memory() {
    let clock = Manual::new();
    let mut rules: Vec<_> = (0..1_000)
        .map(|number| {
            let mut own = rule(&format!("rule{number}"), rates(&["5/h", "100/day"]));
            own.matches = only("path", &format!("/{number}"));
            own.key.push(KeyPart::Network {
                fact: "ip".to_owned(),
                bits: 64,
            });
            own
        })
        .collect();
    let conditions = &mut rules[7].matches.conditions;
    conditions.push(("ip".to_owned(), Pattern::Cidr("10.0.0.0/8".to_owned())));
    conditions.push(("user".to_owned(), Pattern::Regex("[0-9]+".to_owned())));
    rules.push(rule("all", rates(&["1000/s"])));
    let mut shadow = rule("shadow", rates(&["1/h"]));
    shadow.mode = Mode::Shadow;
    rules.push(shadow);
    let mut exact = rule("window", rates(&["3/h"]));
    exact.algorithm = tollgate::Algorithm::SlidingCounter;
    exact.matches = only("path", "/8");
    rules.push(exact);
    let mut total = rule(
        "total",
        Limits {
            quota: Some(Quota::per_day(1_000)),
            ..Limits::default()
        },
    );
    total.matches = only("path", "/9");
    rules.push(total);
    // What is counted of it needs none, either.
    let engine = engine(policy(rules), &clock).with_counters(100);
    for path in ["/7", "/8", "/9", "/none"] {
        let facts = Facts::new()
            .with("path", path)
            .with("user", "42")
            .with("ip", "10.0.0.1");
        // The first of a key makes its entry.
        let first = engine.decide(&facts);
        assert!(first.denied().is_none());
        drop(first);
        let mut refused = 0;
        let count = allocations(|| {
            for _ in 0..20 {
                refused += u32::from(engine.decide(&facts).denied().is_some());
            }
        });
        assert_eq!(count, 0, "{path}");
        assert_eq!(refused > 0, path != "/none", "{path}");
    }
}
