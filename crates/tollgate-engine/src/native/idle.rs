//! Fields of a rule or tier that would do nothing: an error, as people mean something by them.

use super::codes;
use super::overload::adapts;
use super::reader::{Fields, Reader};
use crate::document::Value;

/// The fields that a request's cost can be charged to.
pub(crate) const CHARGED: [&str; 2] = ["rate", "quota"];
/// The fields by which anything is counted.
pub(crate) const COUNTED: [&str; 3] = ["rate", "quota", "concurrency"];
/// The fields that say where and how it is counted, of a rule and of a tier.
pub(crate) const RULE_KEPT: &[&str] = &["counting", "on_store_failure", "over", "slot"];
pub(crate) const TIER_KEPT: &[&str] = &["counting", "on_store_failure", "over"];

const LEAVE_OUT: &str = "leave it out";

impl Reader<'_> {
    /// Notes each field that would have no effect, those among them that say where something is counted.
    pub(super) fn idle(&mut self, fields: &Fields<'_>, kept: &[&str]) {
        let has = |name: &str| fields.get(name).is_some();
        let any = |names: &[&str]| names.iter().any(|name| has(name));
        let says = |name: &str, word: &str| {
            let value = fields.get(name).map(|node| &node.value);
            value.is_some_and(|value| matches!(value, Value::Text(text) if text == word))
        };
        if has("cost") && !any(&CHARGED) && (has("concurrency") || has("unlimited")) {
            let (message, help) = if has("concurrency") {
                (
                    "a cost is charged to rates and quotas, but there is none: a request takes one slot, \
                     whatever it costs",
                    "add a rate or a quota, or leave it out",
                )
            } else {
                (
                    "a cost is charged to rates and quotas, but there is none",
                    LEAVE_OUT,
                )
            };
            self.error_with(codes::CONFLICT, message, fields.place("cost"), help);
        }
        // Of a lease it is told elsewhere that there is no rate.
        let is_told = |name: &str| name == "counting" && says("counting", "leased");
        for &name in kept.iter().filter(|name| has(name) && !is_told(name)) {
            let message = if name != "over" && adapts(fields) && !any(&CHARGED) {
                format!(
                    "{name} does nothing for a limit that adapts: it is counted in each process by itself"
                )
            } else if has("unlimited") && !any(&COUNTED) {
                format!("{name} does nothing where all is unlimited: nothing is counted")
            } else if name == "slot" && says("counting", "local") {
                "slot does nothing where counting is local: no store is asked".to_owned()
            } else {
                continue;
            };
            self.error_with(codes::CONFLICT, message, fields.place(name), LEAVE_OUT);
        }
    }
}
