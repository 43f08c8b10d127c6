//! How a rule comes into force: for which part of its keys, and how fast after a start.

use std::time::Duration;

use super::codes;
use super::fields::ROLLOUT;
use super::reader::{Fields, Reader};
use super::words::MODES;
use crate::document::{Node, Value};
use crate::limits::warm_up::Gate;
use crate::policy::{KeyPart, Limits, Mode};

/// What stands for every key.
const ALL: u8 = 100;

impl Reader<'_> {
    /// The mode of a whole policy, which has no parts.
    pub(super) fn whole_mode(&mut self, node: &Node) -> Mode {
        if let Value::Map(_) = &node.value {
            let message = "expected a mode: enforce, shadow or off, found a map";
            let help = "only a rule is enforced for a part of its keys: say it there";
            self.error_with(codes::WRONG_TYPE, message, node.span, help);
            return Mode::Enforce;
        }
        self.word(node, "mode", MODES).unwrap_or(Mode::Enforce)
    }

    /// A rule's mode, and for how many of a hundred keys it is enforced.
    pub(super) fn rollout(&mut self, fields: &Fields<'_>, keys: &[Vec<KeyPart>]) -> (Mode, u8) {
        let Some(node) = fields.get("mode") else {
            return (Mode::Enforce, ALL);
        };
        let Value::Map(_) = &node.value else {
            let mode = self.word(node, "mode", MODES);
            return (mode.unwrap_or(Mode::Enforce), ALL);
        };
        let Some(part) = self.fields(node, "a mode", ROLLOUT) else {
            return (Mode::Enforce, ALL);
        };
        let percent = match part.get("enforce") {
            Some(node) => self.percent(node),
            None => {
                let message = "expected the part of the keys for which it is enforced";
                let help = "write {enforce: 10%}, or one of enforce, shadow and off";
                self.error_with(codes::MISSING_FIELD, message, node.span, help);
                None
            }
        };
        if keys.iter().all(Vec::is_empty) {
            let message = "it is to be enforced for a part of its keys, but it has no key";
            let help = "give it a key such as [user], or say enforce or shadow for all requests";
            self.error_with(codes::CONFLICT, message, node.span, help);
        }
        (Mode::Enforce, percent.unwrap_or(ALL))
    }

    /// For how long its rates grow after a start.
    pub(super) fn warm_up(&mut self, fields: &Fields<'_>, limits: &Limits) -> Option<Duration> {
        let node = fields.get("warm_up")?;
        let length = self.duration(node, "a length of time such as 30s")?;
        if fields.get("rate").is_none() {
            let message = "warm_up lets rates grow, but there is no rate";
            let help = "add a rate, or leave it out: quotas and slots don't warm up";
            self.error_with(codes::CONFLICT, message, fields.place("warm_up"), help);
            return None;
        }
        if let Some(rate) = limits.rates.iter().find(|rate| Gate::new(**rate).is_err()) {
            let message =
                format!("{rate} can't be warmed up: a part of it can't be counted exactly enough");
            let help = "use another rate, or leave warm_up out";
            self.error_with(
                codes::UNREPRESENTABLE,
                message,
                fields.place("warm_up"),
                help,
            );
            return None;
        }
        Some(length)
    }

    pub(super) fn percent(&mut self, node: &Node) -> Option<u8> {
        let percent = match &node.value {
            Value::Text(text) => {
                let digits = text.strip_suffix('%').map(str::trim_end);
                digits.and_then(|digits| digits.parse::<u8>().ok())
            }
            // What a file writes as 0.8 is the number that is nearest to 80 / 100.
            Value::Float(part) => {
                (1..=100).find(|percent| (f64::from(*percent) / 100.0 - part).abs() < 1e-9)
            }
            _ => None,
        };
        let percent = percent.filter(|percent| (1..=100).contains(percent));
        if percent.is_none() {
            let message = "expected a part from 1% to 100%, in whole percents";
            let help = match node.value {
                Value::Integer(number @ 1..=100) => format!("write {number}%"),
                _ => "write it as 80% or 0.8".to_owned(),
            };
            self.error_with(codes::OUT_OF_RANGE, message, node.span, help);
        }
        percent
    }
}
