//! Requests of descriptors, Envoy's form, decided through a store as in memory.

use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::engine::DescriptorVerdict;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::{Engine, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

const FILE: &str = "
domain: edge
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 4}
- key: path
  value: /files/*
  share_threshold: true
  rate_limit: {unit: minute, requests_per_unit: 5}
- key: tenant
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1}
";

/// Lists of entries, and what they cost.
type Request = (Vec<Vec<(&'static str, &'static str)>>, u32);

/// What is told of each descriptor, as far as both can.
fn told(verdict: &DescriptorVerdict) -> String {
    let each = verdict.statuses.iter().map(|status| {
        let decision = status
            .decision
            .map(|decision| (decision.outcome, decision.remaining));
        format!(
            "{:?} {:?} {:?} {}",
            status.code, status.limit, decision, status.would_refuse
        )
    });
    let each: Vec<_> = each.collect();
    format!("{:?}: {}", verdict.code, each.join("; "))
}

#[tokio::test]
async fn descriptors_are_decided_alike_in_memory_and_in_a_store() {
    let server = Server::start();
    let clock = Manual::starting_at(Timestamp::from_secs(1_717_243_200));
    let builder = Redis::builder(&server.url()).unwrap().clock(clock.clone());
    let redis = builder
        .timeout(Duration::from_secs(5))
        .nodes(1)
        .build()
        .unwrap();
    let policy = || Policy::from_text(FILE, Format::Yaml).unwrap().policy;
    let memory = Memory::builder()
        .clock(clock.clone())
        .wall(clock.clone())
        .build();
    let (stored, held) = (Engine::new(policy(), redis), Engine::new(policy(), memory));
    let (stored, held) = (stored.unwrap(), held.unwrap());
    let requests: Vec<Request> = vec![
        (vec![vec![("user", "ada")]], 1),
        (vec![vec![("user", "ada")], vec![("path", "/files/a")]], 2),
        (vec![vec![("path", "/files/b")]], 1),
        (vec![vec![("tenant", "acme"), ("user", "ada")]], 1),
        (vec![vec![("shadow", "x")], vec![("user", "grace")]], 1),
        (vec![vec![("nothing", "here")]], 1),
    ];
    for round in 0..4 {
        for (entries, hits) in &requests {
            let descriptors: Vec<_> = entries.iter().map(|list| Descriptor::new(list)).collect();
            let by_store = stored
                .decide_descriptors_by("edge", &descriptors, *hits)
                .await;
            let by_memory = held.decide_descriptors("edge", &descriptors, *hits);
            let (by_store, by_memory) = (told(&by_store.unwrap()), told(&by_memory));
            assert_eq!(by_store, by_memory, "round {round}: {entries:?}");
        }
    }
    // A limit that the request brings along, by another unit, counts apart.
    let entries = [("user", "ada")];
    let own = Descriptor {
        limit: Some((1, Unit::Minute)),
        ..Descriptor::new(&entries)
    };
    let mut passed = 0;
    for _ in 0..3 {
        let verdict = stored.decide_descriptors_by("edge", &[own], 1).await;
        passed += u32::from(verdict.unwrap().is_allowed());
    }
    assert_eq!(passed, 1);
}
