//! What Envoy is told: `envoy.service.ratelimit.v3.RateLimitResponse`.

use std::time::Duration;

use tollgate_engine::backend::LimitKind;
use tollgate_engine::engine::{DescriptorFindings, DescriptorStatus};
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::Unit;

use super::wire::{bytes, message, number};
use crate::service::Answered;

/// The numbers of `RateLimitResponse.Code`.
const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

/// Whether a request passes, as Envoy reads it.
pub(crate) const fn code(is_allowed: bool) -> u64 {
    if is_allowed { OK } else { OVER_LIMIT }
}

/// The code of all, which is the first field.
pub(crate) fn overall(out: &mut Vec<u8>, is_allowed: bool) {
    number(out, 1, code(is_allowed));
}

/// The status of each descriptor that a tree has a limit for, or hasn't.
pub(crate) fn statuses(out: &mut Vec<u8>, findings: &DescriptorFindings) {
    for status in &findings.statuses {
        message(out, 2, |out| by_tree(out, status));
    }
}

fn by_tree(out: &mut Vec<u8>, status: &DescriptorStatus) {
    number(out, 1, code(status.code == StatusCode::Ok));
    if let Some(limit) = &status.current_limit {
        let (requests, name) = (limit.requests_per_unit, limit.name.as_deref());
        current_limit(out, requests, limit.unit, name.unwrap_or_default());
    }
    number(out, 3, u64::from(status.remaining));
    if status.current_limit.is_some() {
        let reset = status
            .decision
            .map_or(Duration::ZERO, |decision| decision.reset_after);
        duration(out, 4, reset);
    }
}

/// The status of each of so many descriptors that rules have decided about together: the first tells the limit.
pub(crate) fn statuses_by_rule(out: &mut Vec<u8>, descriptors: usize, answered: &Answered<'_>) {
    for place in 0..descriptors {
        message(out, 2, |out| {
            number(out, 1, code(answered.is_allowed));
            if place == 0 {
                by_rule(out, answered);
            }
        });
    }
}

fn by_rule(out: &mut Vec<u8>, answered: &Answered<'_>) {
    let (Some(name), decision) = (answered.rule(), &answered.decision) else {
        return;
    };
    if decision.is_unlimited() {
        return;
    }
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let (requests, unit) = match answered.limit() {
        Some(kind) => (kind.quota().unwrap_or(decision.limit), unit_of(kind)),
        None => (decision.limit, None),
    };
    current_limit(out, small(requests), unit, name);
    let left = if answered.is_allowed {
        small(decision.remaining)
    } else {
        0
    };
    number(out, 3, u64::from(left));
    duration(out, 4, decision.reset_after);
}

/// The unit of a limit, if it is by one of theirs.
fn unit_of(kind: &LimitKind) -> Option<Unit> {
    let seconds = kind.window()?;
    let units = [
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Week,
        Unit::Month,
        Unit::Year,
    ];
    units
        .into_iter()
        .find(|unit| Duration::from_secs(unit.seconds()) == seconds)
}

fn current_limit(out: &mut Vec<u8>, requests: u32, unit: Option<Unit>, name: &str) {
    message(out, 2, |out| {
        number(out, 1, u64::from(requests));
        number(out, 2, unit.map_or(0, unit_number));
        bytes(out, 3, name.as_bytes());
    });
}

/// The numbers of `RateLimitResponse.RateLimit.Unit`.
const fn unit_number(unit: Unit) -> u64 {
    match unit {
        Unit::Second => 1,
        Unit::Minute => 2,
        Unit::Hour => 3,
        Unit::Day => 4,
        Unit::Month => 5,
        Unit::Year => 6,
        Unit::Week => 7,
    }
}

/// A `google.protobuf.Duration`, which has room for ten thousand years.
fn duration(out: &mut Vec<u8>, field: u32, time: Duration) {
    const LONGEST: u64 = 315_576_000_000;
    message(out, field, |out| {
        number(out, 1, time.as_secs().min(LONGEST));
        if time.as_secs() < LONGEST {
            number(out, 2, u64::from(time.subsec_nanos()));
        }
    });
}

/// A header field that the response of the proxy gets.
pub(crate) fn header(out: &mut Vec<u8>, name: &str, value: &str) {
    message(out, 3, |out| {
        bytes(out, 1, name.as_bytes());
        bytes(out, 2, value.as_bytes());
    });
}

/// Metadata of text, for the proxy's log and its other filters.
pub(crate) fn metadata<'t>(out: &mut Vec<u8>, pairs: impl IntoIterator<Item = (&'t str, &'t str)>) {
    message(out, 6, |out| {
        for (name, text) in pairs {
            message(out, 1, |out| {
                bytes(out, 1, name.as_bytes());
                message(out, 2, |out| {
                    // A value of text may be empty, and is text then.
                    super::wire::varint(out, 3 << 3 | 2);
                    super::wire::varint(out, text.len() as u64);
                    out.extend_from_slice(text.as_bytes());
                });
            });
        }
    });
}
