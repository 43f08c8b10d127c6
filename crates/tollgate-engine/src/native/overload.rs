//! What a rule says of overload: the law that finds how many may run at once, and who is shed first.

use tollgate::ConcurrencyLimiter;
use tollgate_adaptive::NamedLaw;
use tollgate_adaptive::shed::{Criticality, Shares};

use super::codes;
use super::fields::{ADAPTIVE, SHED};
use super::reader::{Fields, Reader};
use super::words::{LAWS, names};
use crate::document::{Node, Value};
use crate::policy::{Adaptive, Shed};
use crate::suggest;

const EXAMPLE: &str = "{adaptive: little, min: 10, max: 200}";

/// Whether a concurrency is one that a law finds.
pub(super) fn adapts(fields: &Fields<'_>) -> bool {
    let node = fields.get("concurrency");
    node.is_some_and(|node| matches!(node.value, Value::Map(_)))
}

/// The least of a limit that adapts, if the policy doesn't say. A law that mistakes slow calls for a queue stays there, so it
/// is what a service can bear in most cases: a limit of 1 leaves one of a hundred calls.
fn default_min(max: u32) -> u32 {
    (max / 2).clamp(1, 10)
}

impl Reader<'_> {
    /// The law that finds how many may run at once, of a rule that has one.
    pub(super) fn adaptive(&mut self, fields: &Fields<'_>) -> Option<Adaptive> {
        let node = fields.get("concurrency").filter(|_| adapts(fields))?;
        if fields.get("shared").is_some() {
            let message = "a limit that adapts is one rule's, and can't be shared";
            let help = "give it a rule of its own, without shared";
            self.error_with(codes::CONFLICT, message, fields.place("concurrency"), help);
        }
        let own = self.fields(node, "a concurrency", ADAPTIVE)?;
        let law = match own.get("adaptive") {
            Some(node) => self.word(node, "law", LAWS),
            None => {
                let message = "expected adaptive: the law by which the limit is found";
                let laws = suggest::any_of(&names(LAWS));
                let help = format!("write {EXAMPLE}; the laws are {laws}");
                self.error_with(codes::MISSING_FIELD, message, node.span, help);
                None
            }
        };
        let max = match own.get("max") {
            Some(node) => self.bound(node, "max"),
            None => {
                let message = "expected max: how many at once there may ever be";
                let help = format!("write it as in {EXAMPLE}");
                self.error_with(codes::MISSING_FIELD, message, node.span, help);
                None
            }
        };
        let min = match own.get("min") {
            Some(node) => Some(self.bound(node, "min")?),
            None => None,
        };
        let (law, max) = law.zip(max)?;
        let min = min.unwrap_or_else(|| default_min(max));
        if min > max {
            let message = format!("a min of {min} is above the max of {max}");
            let help = format!("lower min to {max} at most, or raise max");
            self.error_with(codes::OUT_OF_RANGE, message, own.place("min"), help);
            return None;
        }
        Some(Adaptive { law, min, max })
    }

    /// A bound of a limit that adapts.
    fn bound(&mut self, node: &Node, name: &str) -> Option<u32> {
        let number = self.number(node, &format!("{name}, a whole number from 1"))?;
        let most = ConcurrencyLimiter::MAX_LIMIT;
        match u32::try_from(number) {
            Ok(0) => {
                let message = format!("a {name} of 0 may let nothing pass");
                let help = "say 1 at least: a law learns from requests that run";
                self.error_with(codes::NOTHING_PASSES, message, node.span, help);
                None
            }
            Ok(number) if number <= most => Some(number),
            _ => {
                let message = format!("a {name} of {number} is above {most}");
                self.error(codes::OUT_OF_RANGE, message, node.span);
                None
            }
        }
    }

    /// Who is shed first when the slots of a rule run out.
    pub(super) fn shed(&mut self, fields: &Fields<'_>) -> Option<Shed> {
        let node = fields.get("shed")?;
        let place = fields.place("shed");
        if fields.get("concurrency").is_none() {
            let message =
                "shed says who is refused first when slots run out, but there is no concurrency";
            let help = "add a concurrency, or leave it out";
            self.error_with(codes::CONFLICT, message, place, help);
        }
        if fields.get("shared").is_some() {
            let message =
                "rules that share a counter can't shed: each would have other shares of it";
            let help = "leave out one of them";
            self.error_with(codes::CONFLICT, message, place, help);
        }
        let Value::Map(_) = &node.value else {
            let by = self.fact(node)?;
            return Some(Shed {
                by,
                shares: Shares::default(),
            });
        };
        let own = self.fields(node, "shed", SHED)?;
        let by = match own.get("by") {
            Some(node) => self.fact(node),
            None => {
                let message = "expected by: the fact that says how critical a request is";
                let help = "write it as in shed: {by: priority}";
                self.error_with(codes::MISSING_FIELD, message, node.span, help);
                None
            }
        };
        let usual = Shares::default();
        let [sheddable, default] = [Criticality::Sheddable, Criticality::Default].map(|class| {
            let node = own.get(class.name());
            let said = node.map(|node| self.percent(node));
            said.unwrap_or(Some(usual.percent(class)))
        });
        let (sheddable, default) = sheddable.zip(default)?;
        if sheddable > default {
            let message = format!(
                "sheddable requests may use {sheddable}% of the limit, more than the {default}% of default ones"
            );
            let help = "those that are shed first have the smallest part";
            self.error_with(codes::CONFLICT, message, place, help);
            return None;
        }
        Some(Shed {
            by: by?,
            shares: Shares::new(sheddable, default),
        })
    }
}

/// All laws, by name.
pub(crate) const fn laws() -> [(&'static str, NamedLaw); NamedLaw::ALL.len()] {
    let mut laws = [("", NamedLaw::Little); NamedLaw::ALL.len()];
    let mut number = 0;
    while number < laws.len() {
        laws[number] = (NamedLaw::ALL[number].name(), NamedLaw::ALL[number]);
        number += 1;
    }
    laws
}
