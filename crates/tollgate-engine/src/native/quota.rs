//! Quotas, and what to write in place of a text that is none.

use tollgate::Rate;
use tollgate::quota::{Quota, QuotaError};

use super::codes;
use super::reader::{Reader, shorten};
use super::rule::one_line;
use crate::document::{Node, Value};

impl Reader<'_> {
    pub(super) fn quota(&mut self, node: &Node) -> Option<Quota> {
        let Value::Text(text) = &node.value else {
            const QUOTA: &str = "a quota such as 10000/month or 500 in any 30d";
            match node.value {
                Value::Integer(number) if number > 0 => {
                    let message = format!("expected {QUOTA}, found a whole number");
                    let help = format!("say in how long: {number}/day");
                    self.error_with(codes::WRONG_TYPE, message, node.span, help);
                }
                _ => self.unexpected(node, QUOTA),
            }
            return None;
        };
        let quota: Quota = match text.parse() {
            Ok(quota) => quota,
            Err(error) => {
                self.bad_quota(node, text, &error);
                return None;
            }
        };
        if quota.is_unlimited() {
            let help = "leave it out, or say unlimited: true";
            self.error_with(codes::BAD_QUOTA, "an unlimited quota", node.span, help);
            return None;
        }
        if quota.count() == 0 {
            let help = "list the requests under block if none of them may pass";
            let message = "a quota of 0 lets nothing pass";
            self.error_with(codes::NOTHING_PASSES, message, node.span, help);
            return None;
        }
        Some(quota)
    }

    fn bad_quota(&mut self, node: &Node, text: &str, error: &QuotaError) {
        let example =
            "write a quota such as 10000/month, 500/day in Europe/Zurich or 900 in any 30d";
        if let Some((short, message, help)) = shortened(text) {
            let span = self.sources.within(node.span, text, 0, short);
            return self.error_with(codes::BAD_QUOTA, message, span, help);
        }
        let (from, message) = match error {
            QuotaError::Parse {
                column, expected, ..
            } => (
                column - 1,
                match expected.strip_prefix("nothing that ") {
                    // "Expected nothing that …" is better said as what is wrong.
                    Some(cant) => cant.to_owned(),
                    None => format!("expected {expected}"),
                },
            ),
            QuotaError::UnknownZone(zone) => {
                let at = text.rfind(zone.as_str()).unwrap_or(0);
                let from = text.get(..at).map_or(0, |part| part.chars().count());
                (from, format!("unknown time zone {:?}", shorten(zone)))
            }
            other => {
                let message = other.to_string();
                let (message, _) = message.split_once("; ").unwrap_or((&message, ""));
                return self.error_with(codes::BAD_QUOTA, message, node.span, example);
            }
        };
        let rest = text.chars().skip(from);
        let length = rest.take_while(|c| !c.is_whitespace()).count();
        let span = self.sources.within(node.span, text, from, length);
        self.error_with(codes::BAD_QUOTA, message, span, example);
    }
}

/// Whether a quota begins with a shortened number, as in `1k/day`: its length, what is wrong and what to write.
fn shortened(text: &str) -> Option<(usize, String, String)> {
    let end = text.find(['/', ' '])?;
    let (count, rest) = text.split_at(end);
    // A rate is refused for the same reason, and knows what to write.
    let error = format!("{count}/s").parse::<Rate>().err()?;
    let (message, help) = one_line(&error.to_string());
    if !message.contains("in full") {
        return None;
    }
    let help = match help
        .strip_prefix("write ")
        .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    {
        Some(number) => format!("write {number}{rest}"),
        None => help,
    };
    Some((count.chars().count(), message, help))
}
