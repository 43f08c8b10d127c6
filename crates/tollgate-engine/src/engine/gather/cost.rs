//! What a request costs by a rule.

use std::num::{IntErrorKind, ParseIntError};

use crate::engine::rules::Applied;
use crate::facts::Facts;
use crate::matcher::Known;

fn is_too_large(error: &ParseIntError) -> bool {
    *error.kind() == IntErrorKind::PosOverflow
}

/// What a request says that it costs by a rule; none if it says nothing that can be read.
#[inline(always)]
pub(super) fn said_cost(rule: &Applied, known: &Known<'_, '_>, facts: &Facts<'_>) -> Option<u64> {
    let cost = rule.cost.and_then(|slot| cost_of(known.text(slot)?));
    cost.or(facts.cost())
}

/// What a request costs by a rule.
#[inline(always)]
pub(super) fn rule_cost(rule: &Applied, said: Option<u64>) -> u64 {
    let cost = said.unwrap_or(rule.default_cost);
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
