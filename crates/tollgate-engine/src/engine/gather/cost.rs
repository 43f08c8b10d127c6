//! What a request costs by a rule.

use std::num::{IntErrorKind, ParseIntError};

use crate::engine::rules::Applied;
use crate::facts::Facts;
use crate::matcher::Known;

fn is_too_large(error: &ParseIntError) -> bool {
    *error.kind() == IntErrorKind::PosOverflow
}

/// What a request costs by a rule.
#[inline(always)]
pub(super) fn rule_cost(rule: &Applied, known: &Known<'_, '_>, facts: &Facts<'_>) -> u64 {
    let cost = rule.cost.and_then(|slot| cost_of(known.text(slot)?));
    let cost = cost.or(facts.cost()).unwrap_or(rule.default_cost);
    cost.max(u64::from(rule.is_estimated))
}

/// What a fact says that a request costs. A number that is too large counts as the largest, not as the default.
fn cost_of(text: &str) -> Option<u64> {
    match text.parse() {
        Ok(cost) => Some(cost),
        Err(error) if is_too_large(&error) => Some(u64::MAX),
        Err(_) => None,
    }
}
