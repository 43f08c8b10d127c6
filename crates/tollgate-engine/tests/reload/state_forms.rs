//! Restarts of tiers, counters that rules share, and trees of descriptors: the same answers as after a reload to the
//! same policy.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::{Facts, Policy};
use tollgate_testkit::temp_folder::TempFolder;

use super::state::{clock, restore, save, start};
use crate::common::TestEngine;
use crate::config;

/// Tiers and shared counters that differ in names, order, periods and who is where.
const BY_FACTS: [&str; 5] = [
    "tiers: {free: {rate: 10/h}, paid: {rate: [30/h, 9/m]}}\ntenants: {acme: paid}\ndefault_tier: free\n\
     limits: [{name: a, key: user, rate: 20/h, shared: s, match: {path: /a}}, {name: b, key: user, rate: 20/h, shared: s, match: {path: /b}}]",
    "tiers: {aaa: {rate: 7/s}, free: {rate: 12/h}, paid: {rate: 30/h}}\ntenants: {acme: free}\ndefault_tier: free\n\
     limits: [{name: b, key: user, rate: 20/h, shared: s, match: {path: /b}}, {name: a, key: user, rate: 20/h, shared: s, match: {path: /a}}]",
    "tiers: {free: {rate: [9/m, 10/h], algorithm: sliding-log}, paid: {rate: 40/h}}\ntenants: {acme: paid}\ndefault_tier: free\n\
     limits: [{name: c, key: user, rate: 25/h, shared: s}, {name: d, key: user, rate: 25/h, shared: s, match: {path: /a}}]",
    "tiers: {zero: {rate: 5/day}}\ndefault_tier: zero\n\
     limits: [{name: a, key: user, rate: 20/h, shared: t, match: {path: /a}}, {name: b, key: user, rate: 20/h, shared: t}]",
    "limits: [{name: a, key: user, rate: [20/h, 50/day], mode: shadow}, {name: b, key: user, rate: 5/m, replaces: a, match: {path: /b}}]",
];

const BY_DESCRIPTORS: [&str; 4] = [
    "domain: edge\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}\n\
     - {key: path, value: /a*, rate_limit: {unit: day, requests_per_unit: 12}}\n\
     - {key: tenant, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 9}}]}",
    "domain: edge\ndescriptors:\n- {key: tenant, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]}\n\
     - {key: path, value: /a*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 12}}\n\
     - {key: user, rate_limit: {unit: hour, requests_per_unit: 15}}",
    "domain: edge\ncharging: each\ndescriptors:\n- {key: user, value: ada, rate_limit: {unit: hour, requests_per_unit: 4}}\n\
     - {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}\n\
     - {key: path, rate_limit: {unit: day, requests_per_unit: 12}}",
    "domain: mesh\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}",
];

fn read(text: &str) -> Policy {
    let read = Policy::from_text(text, Format::Yaml);
    read.unwrap_or_else(|rejected| panic!("{text}\n{rejected}"))
        .policy
}

/// A request, some time after the previous one.
type Step = (u64, [usize; 3]);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let waits = prop_oneof![Just(0), 0..3_000u64, 0..100_000u64, 0..5_000_000u64];
    prop::collection::vec((waits, [0..2usize, 0..2, 0..2]), 1..40)
}

/// An engine's answers to a request, by facts and by descriptors.
fn asked(engine: &TestEngine, [user, tenant, path]: [usize; 3]) -> String {
    let (user, tenant, path) = (
        ["ada", "eve"][user],
        ["acme", "other"][tenant],
        ["/a", "/b"][path],
    );
    let facts = Facts::new()
        .with("user", user)
        .with("tenant", tenant)
        .with("path", path);
    let by_facts = *engine.decide(&facts).decision();
    let entries = [
        &[("user", user)][..],
        &[("path", path)],
        &[("tenant", tenant), ("user", user)],
    ];
    let descriptors = entries.map(Descriptor::new);
    let by_descriptors = engine.decide_descriptors("edge", &descriptors, 1);
    let each = by_descriptors.statuses.iter().map(|status| status.decision);
    format!("{by_facts:?} {:?}", each.collect::<Vec<_>>())
}

fn alike(engines: &[&TestEngine], clocks: &[&Manual], steps: &[Step]) -> Result<(), TestCaseError> {
    for (wait, what) in steps {
        let wait = Duration::from_millis(*wait);
        clocks.iter().for_each(|clock| clock.advance(wait));
        let answers: Vec<_> = engines.iter().map(|engine| asked(engine, *what)).collect();
        prop_assert!(
            answers.windows(2).all(|both| both[0] == both[1]),
            "{:#?}",
            answers
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..config() })]

    #[test]
    fn tiers_shared_counters_and_trees_go_on_as_after_a_reload(
        parts in prop::collection::vec(steps(), 4),
        down in prop::sample::select(vec![0, 1, 30_000, 4_000_000]),
        order in prop::collection::vec(0..BY_FACTS.len() + BY_DESCRIPTORS.len(), 4),
    ) {
        let all: Vec<_> = BY_FACTS.into_iter().chain(BY_DESCRIPTORS).map(read).collect();
        let scratch = TempFolder::new("restart-forms");
        let path = scratch.path("state");
        let (clock, wall) = clock();
        let oracle = start(all[order[0]].clone(), (&clock, &wall));
        alike(&[&oracle], &[&clock, &wall], &parts[0])?;
        save(&oracle, &path);
        // As many restarts in a row, each on a clock that begins elsewhere.
        for (number, part) in (1..).zip(&parts[1..]) {
            for clock in [&clock, &wall] {
                clock.advance(Duration::from_millis(down));
            }
            let next = all[order[number]].clone();
            oracle.reload(next.clone()).unwrap();
            let other = Manual::starting_at(tollgate::Timestamp::from_secs(86_400 * 7 * number as u64));
            let restored = restore(next, &path, (&other, &wall));
            alike(&[&oracle, &restored], &[&clock, &wall, &other], part)?;
            save(&restored, &path);
        }
    }
}
