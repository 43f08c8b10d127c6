//! The answer to a request of several descriptors, from the decision on each.

use std::time::Duration;

use tollgate::{Decision, Outcome};
use tollgate_engine::envoy::{
    self, DescriptorIndex, LimitStatus, LookupResult, StatusCode, limit_status, overall_code,
    remove_replaced_limits,
};
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::Mode;

const POLICY: &str = "
domain: edge
descriptors:
- {key: plain, rate_limit: {name: plain, unit: minute, requests_per_unit: 10}}
- {key: shadow, shadow_mode: true, rate_limit: {name: shadow, unit: minute, requests_per_unit: 10}}
- {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: quiet, quota_mode: true, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: free, rate_limit: {name: free, unlimited: true}}
- {key: vip, rate_limit: {unlimited: true, replaces: [{name: plain}, {name: free}]}}
- {key: strict, rate_limit: {name: strict, unit: second, requests_per_unit: 0, replaces: [{name: plain}]}}
- {key: over-strict, rate_limit: {unit: year, requests_per_unit: 1, replaces: [{name: strict}]}}
- {key: many, rate_limit: {rate: [10/s, 100/h], quota: 1000/month, concurrency: 7}}
";

fn policy() -> DescriptorIndex {
    DescriptorIndex::new(&envoy::decode(&[(0, POLICY)]).expect("a policy").domains)
}

fn allowed(limit: u64, remaining: u64) -> Decision {
    Decision::new(
        Outcome::Allowed,
        limit,
        remaining,
        Duration::ZERO,
        Duration::from_secs(30),
    )
}

fn denied(limit: u64, wait: u64) -> Decision {
    let wait = Duration::from_secs(wait);
    Decision::new(Outcome::Denied, limit, 0, wait, wait)
}

/// The answers for descriptors of these keys, each over its limit or not.
fn answers<'p>(policy: &'p DescriptorIndex, request: &[(&str, bool)]) -> Vec<LimitStatus<'p>> {
    let mut found: Vec<_> = request
        .iter()
        .map(|(key, _)| policy.lookup("edge", &Descriptor::new(&[(key, "x")])))
        .collect();
    remove_replaced_limits(&mut found);
    let found = found.iter().zip(request);
    found
        .map(|(lookup, (_, is_over))| {
            let decision = if *is_over {
                denied(10, 5)
            } else {
                allowed(10, 4)
            };
            limit_status(*lookup, &[decision])
        })
        .collect()
}

const OK: StatusCode = StatusCode::Ok;
const OVER: StatusCode = StatusCode::OverLimit;

/// The keys of a request with whether each is over, each status, and the whole.
type Row = (
    &'static [(&'static str, bool)],
    &'static [StatusCode],
    StatusCode,
);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (&[("plain", false)], &[OK], OK),
    (&[("plain", true)], &[OVER], OVER),
    (&[("nobody", true)], &[OK], OK),
    (&[("plain", false), ("plain", true), ("nobody", false)], &[OK, OVER, OK], OVER),
    // Shadow counts, and lets pass.
    (&[("shadow", true)], &[OK], OK),
    (&[("shadow", true), ("plain", true)], &[OK, OVER], OVER),
    // Quotas refuse together.
    (&[("quota", true)], &[OVER], OVER),
    (&[("quota", true), ("quota", false)], &[OVER, OK], OK),
    (&[("quota", true), ("quota", true)], &[OVER, OVER], OVER),
    (&[("quota", true), ("plain", false)], &[OVER, OK], OVER),
    (&[("quota", true), ("quota", false), ("plain", true)], &[OVER, OK, OVER], OVER),
    (&[("quota", true), ("quiet", true)], &[OVER, OK], OK),
    (&[("quota", true), ("free", false)], &[OVER, OK], OVER),
    // Unlimited passes whatever a decision would be, and replaces.
    (&[("free", true)], &[OK], OK),
    (&[("plain", true), ("vip", false)], &[OK, OK], OK),
    (&[("vip", false), ("plain", true), ("shadow", true)], &[OK, OK, OK], OK),
    (&[("vip", false), ("free", false)], &[OK, OK], OK),
    // A limit that is replaced still replaces.
    (&[("plain", true), ("strict", true), ("over-strict", false)], &[OK, OK, OK], OK),
    (&[("plain", true), ("strict", false)], &[OK, OK], OK),
    (&[("plain", true), ("plain", true), ("strict", true)], &[OK, OK, OVER], OVER),
];

#[test]
fn requests_are_answered_as_a_whole() {
    let policy = policy();
    for (request, codes, whole) in ROWS {
        let answers = answers(&policy, request);
        let found: Vec<_> = answers.iter().map(|status| status.code).collect();
        assert_eq!(&found, codes, "{request:?}");
        assert_eq!(overall_code(&answers, Mode::Enforce), *whole, "{request:?}");
        assert_eq!(overall_code(&answers, Mode::Shadow), OK, "{request:?}");
    }
}

#[test]
fn nothing_replaces_what_is_unlimited() {
    let policy = policy();
    let answers = answers(
        &policy,
        &[("vip", false), ("free", false), ("plain", false)],
    );
    let left: Vec<_> = answers.iter().map(|status| status.remaining).collect();
    assert_eq!(left, [u32::MAX, u32::MAX, 0]);
}

#[test]
fn what_is_told_about_each_kind() {
    let policy = policy();
    let told = |key: &str, decisions: &[Decision]| {
        let status = limit_status(
            policy.lookup("edge", &Descriptor::new(&[(key, "x")])),
            decisions,
        );
        let limit = status.current_limit;
        (
            limit.map(|limit| (limit.requests_per_unit, limit.unit, limit.name)),
            status.remaining,
            status.would_deny,
        )
    };
    let minute = Some(Unit::Minute);
    assert_eq!(
        told("plain", &[allowed(10, 4)]),
        (Some((10, minute, Some("plain"))), 4, false)
    );
    assert_eq!(
        told("shadow", &[denied(10, 5)]),
        (Some((10, minute, Some("shadow"))), 0, true)
    );
    assert_eq!(told("nobody", &[]), (None, 0, false));
    assert_eq!(told("free", &[]), (None, u32::MAX, false));
    // A rate of 0 still has its unit.
    assert_eq!(
        told("strict", &[denied(0, 1)]),
        (Some((0, Some(Unit::Second), Some("strict"))), 0, false)
    );
    // The tightest of several: here the least left, then the longest wait, then what is no rate.
    let hour = Some(Unit::Hour);
    let four = |rates: [Decision; 2]| [rates[0], rates[1], allowed(1_000, 900), allowed(7, 6)];
    assert_eq!(
        told("many", &four([allowed(10, 4), allowed(100, 3)])),
        (Some((100, hour, None)), 3, false)
    );
    assert_eq!(
        told("many", &four([denied(10, 1), denied(100, 60)])),
        (Some((100, hour, None)), 0, false)
    );
    assert_eq!(
        told("many", &four([allowed(10, 9), allowed(100, 50)])),
        (Some((7, None, None)), 6, false)
    );
}

#[test]
fn a_limit_in_the_request_is_neither_shadowed_nor_replaced() {
    let policy = policy();
    let descriptor = |key| Descriptor {
        limit: Some((3, Unit::Week)),
        ..Descriptor::new(key)
    };
    let keys = [[("shadow", "x")], [("plain", "x")], [("vip", "x")]];
    let mut found = [
        policy.lookup("edge", &descriptor(&keys[0])),
        policy.lookup("edge", &descriptor(&keys[1])),
        policy.lookup("edge", &Descriptor::new(&keys[2])),
    ];
    remove_replaced_limits(&mut found);
    assert!(matches!(
        found,
        [
            LookupResult::Requested { .. },
            LookupResult::Requested { .. },
            LookupResult::Limited(_)
        ]
    ));
    let answer = limit_status(found[0], &[denied(3, 9)]);
    assert_eq!((answer.code, answer.would_deny), (OVER, false));
    assert_eq!(
        answer.current_limit.expect("a limit").unit,
        Some(Unit::Week)
    );
}
