//! `on_store_failure`: one word for all limits, or one for each kind of them.

use super::codes;
use super::fields::FAILURE_KINDS;
use super::reader::{Fields, Reader};
use super::words::FAILURES;
use crate::document::{Node, Value};
use crate::policy::{FailureModes, OnStoreFailure};

/// What is written of failures of the store; what isn't is for others to say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrittenFailures {
    rate: Option<OnStoreFailure>,
    quota: Option<OnStoreFailure>,
    concurrency: Option<OnStoreFailure>,
    /// Whether it says more than `inherit`.
    pub(super) says: bool,
}

impl WrittenFailures {
    /// What holds, by what is said here, for the whole policy, or nowhere.
    pub(super) fn or(self, whole: Self) -> FailureModes {
        let default = FailureModes::default();
        FailureModes {
            rate: self.rate.or(whole.rate).unwrap_or(default.rate),
            quota: self.quota.or(whole.quota).unwrap_or(default.quota),
            concurrency: self
                .concurrency
                .or(whole.concurrency)
                .unwrap_or(default.concurrency),
        }
    }
}

impl Reader<'_> {
    /// What a rule or tier says of failures of the store.
    pub(super) fn failures(&mut self, fields: &Fields<'_>) -> WrittenFailures {
        let Some(node) = fields.get("on_store_failure") else {
            return WrittenFailures::default();
        };
        if let Value::Map(kinds) = &node.value {
            for (name, _) in kinds {
                let Value::Text(kind) = &name.value else {
                    continue;
                };
                let is_kind = FAILURE_KINDS.iter().any(|field| field.name == kind);
                if is_kind && fields.get(kind).is_none() {
                    let message = format!("{kind} does nothing here: there is no {kind}");
                    self.error_with(codes::CONFLICT, message, name.span, "leave it out");
                }
            }
        }
        self.each_failure(node)
    }

    /// One word for all, or a map of them.
    pub(super) fn each_failure(&mut self, node: &Node) -> WrittenFailures {
        if !matches!(node.value, Value::Map(_)) {
            let all = self.word(node, "way to fail", FAILURES).flatten();
            return WrittenFailures {
                rate: all,
                quota: all,
                concurrency: all,
                says: all.is_some(),
            };
        }
        let before = self.problems.len();
        let Some(fields) = self.fields(node, "ways to fail by kind", FAILURE_KINDS) else {
            return WrittenFailures::default();
        };
        if fields.iter().next().is_none() && self.problems.len() == before {
            let message = "expected ways to fail by kind, but there is nothing in it";
            let help = "write one such as {rate: local, quota: closed}, or one word for all";
            self.error_with(codes::EMPTY, message, node.span, help);
        }
        let mut read = |kind: &str| {
            let node = fields.get(kind)?;
            self.word(node, "way to fail", FAILURES).flatten()
        };
        WrittenFailures {
            rate: read("rate"),
            quota: read("quota"),
            concurrency: read("concurrency"),
            says: true,
        }
    }
}
