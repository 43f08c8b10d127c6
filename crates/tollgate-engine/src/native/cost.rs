//! What a request costs a rule or a tier: a number, or the fact that says it.

use super::LimitPlaces;
use super::codes;
use super::fields::COST;
use super::reader::{Fields, Reader, shorten};
use crate::document::{Node, Value};
use crate::policy::{Cost, Limits};

impl Reader<'_> {
    /// What a request costs, by a limit that this may be too much for.
    pub(super) fn own_cost(
        &mut self,
        fields: &Fields<'_>,
        limits: &Limits,
        places: &LimitPlaces,
    ) -> Cost {
        let Some(node) = fields.get("cost") else {
            return Cost::default();
        };
        let cost = self.cost(node);
        self.cost_fits(&cost, limits, places, node);
        cost
    }

    fn cost(&mut self, node: &Node) -> Cost {
        match &node.value {
            Value::Map(_) => {
                let Some(fields) = self.fields(node, "a cost", COST) else {
                    return Cost::default();
                };
                if fields.get("fact").is_none() {
                    let message = "expected the fact that says the cost";
                    let help = "write {fact: tokens, default: 1}, or just a number";
                    self.error_with(codes::MISSING_FIELD, message, node.span, help);
                }
                let fact = fields.get("fact").and_then(|node| self.fact(node));
                let default = fields.get("default");
                let default = default.and_then(|node| self.number(node, "a whole number from 0"));
                Cost {
                    fact,
                    default: default.unwrap_or(1),
                }
            }
            Value::Integer(0) => {
                let message = "a cost of 0 only looks at the limit: it would never be reached";
                let help = "leave the cost out for 1, or take the rule out";
                self.error_with(codes::COST_ZERO, message, node.span, help);
                Cost::default()
            }
            Value::Integer(_) => Cost {
                fact: None,
                default: self.number(node, "a whole number from 1").unwrap_or(1),
            },
            Value::Text(text) => {
                let message = "expected a number or {fact: …, default: …}, found text";
                let help = format!("write {{fact: {}}} if a fact says it", shorten(text));
                self.error_with(codes::WRONG_TYPE, message, node.span, help);
                Cost::default()
            }
            _ => {
                self.unexpected(node, "a whole number or {fact: tokens, default: 1}");
                Cost::default()
            }
        }
    }

    /// Notes a cost that no limit of the rule can ever admit.
    fn cost_fits(&mut self, cost: &Cost, limits: &Limits, places: &LimitPlaces, node: &Node) {
        let rates = limits.rates.iter().zip(&places.rates);
        let bursts = rates.map(|(rate, place)| ("burst", rate.burst_size(), *place));
        let quota = limits.quota.as_ref();
        let quota = quota.map(|quota| ("quota", quota.count(), places.quota));
        for (what, most, place) in bursts.chain(quota) {
            if cost.default > most && most > 0 {
                let message = format!(
                    "a cost of {} is above the {what} of {most} on line {}: nothing would pass",
                    cost.default, place.start.line
                );
                let help = format!("raise the {what} to the cost at least");
                self.error_with(codes::NOTHING_PASSES, message, node.span, help);
            }
        }
    }
}
