//! The key of a rule: facts, and other keys to fall back to.

use super::codes;
use super::fields::KEY;
use super::reader::{LONGEST_NAME, Part, Reader, shorten};
use super::text::key_part;
use crate::document::{Node, Value};
use crate::policy::KeyPart;

/// Most facts of a key.
pub(crate) const MOST_KEY_FACTS: usize = 16;
/// Most keys of which the first is taken.
pub(crate) const MOST_KEYS: usize = 8;

impl Reader<'_> {
    /// The key of a rule, and those to fall back to.
    pub(super) fn keys(&mut self, node: &Node) -> Vec<Vec<KeyPart>> {
        let Value::Map(_) = &node.value else {
            return vec![self.key(node)];
        };
        let Some(fields) = self.fields(node, "a key", KEY) else {
            return Vec::new();
        };
        let Some(first) = fields.get("first") else {
            let message = "expected the keys of which the first is taken";
            let help = "write {first: [user, ip]}, or a list of facts such as [user, method]";
            self.error_with(codes::MISSING_FIELD, message, node.span, help);
            return Vec::new();
        };
        let Value::List(items) = &first.value else {
            self.unexpected(first, "a list of keys, such as [user, ip]");
            return Vec::new();
        };
        let mut keys: Vec<Vec<KeyPart>> = Vec::with_capacity(items.len());
        for item in items {
            let key = self.key(item);
            if matches!(&item.value, Value::List(parts) if parts.is_empty()) {
                let message =
                    "a key without facts, where the first key is taken that a request has";
                let help = "leave it out, and say on_missing_key: one_counter: all others count together then";
                self.error_with(codes::EMPTY, message, item.span, help);
            } else if let Some(before) = keys.iter().find(|before| is_known_with(before, &key)) {
                let message =
                    "this key is never taken: a request that has it has the one before, too";
                let names: Vec<_> = before.iter().map(key_part).collect();
                let help = if before.len() == key.len() {
                    "leave out one of them".to_owned()
                } else {
                    format!("put it before [{}], or leave it out", names.join(", "))
                };
                self.error_with(codes::BAD_KEY, message, item.span, help);
            } else if keys.len() == MOST_KEYS {
                let message = format!("more than {MOST_KEYS} keys");
                self.error(codes::BAD_KEY, message, item.span);
                break;
            } else if !key.is_empty() {
                keys.push(key);
            }
        }
        if items.is_empty() {
            let message = "expected at least one key";
            self.error(codes::EMPTY, message, first.span);
        }
        keys
    }

    /// Which facts make a key: one, or a list of them, each once.
    fn key(&mut self, node: &Node) -> Vec<KeyPart> {
        let expected = "a fact or a list of facts, such as [user] or [ip/64, method]";
        let items = match &node.value {
            // No facts at all are one counter for all, as if there were no key.
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let mut parts = Vec::with_capacity(items.len());
        for item in items {
            let Some(text) = self.text(item, expected) else {
                continue;
            };
            let Some(part) = self.key_part(&text, item) else {
                continue;
            };
            if parts.contains(&part) {
                let message = format!("{:?} is in this key twice", shorten(&text));
                self.error(codes::BAD_KEY, message, item.span);
            } else if parts.len() == MOST_KEY_FACTS {
                let message = format!("a key of more than {MOST_KEY_FACTS} facts");
                self.error(codes::BAD_KEY, message, item.span);
                break;
            } else {
                parts.push(part);
            }
        }
        parts
    }

    fn key_part(&mut self, text: &str, node: &Node) -> Option<KeyPart> {
        let Some((fact, bits)) = text.split_once('/') else {
            return self.fact(node).map(KeyPart::Fact);
        };
        let number = bits.parse::<u8>().ok();
        let number = number.filter(|number| (1..=128).contains(number));
        // In one way only, as the schema has it.
        let Some(number) = number.filter(|number| number.to_string() == bits) else {
            let from = fact.chars().count() + 1;
            let span = self
                .sources
                .within(node.span, text, from, bits.chars().count());
            let message = "expected 1 to 128 bits after \"/\"";
            let help = "ip/64 counts all addresses of a network of 64 bits together";
            self.error_with(codes::BAD_KEY, message, span, help);
            return None;
        };
        if fact.chars().count() > LONGEST_NAME {
            let message = "the name of a fact has more than 200 characters";
            self.error(codes::BAD_NAME, message, node.span);
            return None;
        }
        if fact.is_empty() {
            let message = "expected a fact before \"/\", as in ip/64";
            self.error(codes::BAD_KEY, message, node.span);
            return None;
        }
        let fact = self.fact_named(fact.to_owned(), node.span)?;
        self.mention(&fact, node.span, Part::Other);
        Some(KeyPart::Network { fact, bits: number })
    }
}

/// Whether each request that has all facts of `key` has those of `before`.
fn is_known_with(before: &[KeyPart], key: &[KeyPart]) -> bool {
    let has = |fact: &str| key.iter().any(|part| part.fact() == fact);
    !key.is_empty() && before.iter().all(|part| has(part.fact()))
}
