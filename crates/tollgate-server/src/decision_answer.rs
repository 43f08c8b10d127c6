//! What clients are told of a decision, whatever they speak.

use std::borrow::Cow;
use std::fmt::{self, Write};

use smallvec::SmallVec;
use tollgate::Decision;
use tollgate::clock::{Clock, Wall};
use tollgate_engine::RequestDecision;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::verdict::{DecisionDetails, DenyReason};
pub(crate) use tollgate_http::DecisionAnswer;
use tollgate_http::HeaderDialect;

use crate::settings::ShadowVisibility;

/// What an operator is told whose gift a store couldn't be told of.
pub(crate) const STORE_UNREACHABLE: &str =
    "the store can't be asked, so it isn't done, or not everywhere: ask again once it can";

/// What is told of a request that was decided.
pub(crate) fn outcome_of_verdict<'a>(verdict: &'a RequestDecision<'a>) -> DecisionAnswer<'a> {
    DecisionAnswer::of(verdict, verdict.denied().is_none())
}

/// What would be told of a request that was only looked at.
pub(crate) fn outcome_of_peek<'a>(findings: &'a DecisionDetails<'a>) -> DecisionAnswer<'a> {
    DecisionAnswer::of(findings, findings.decision().is_allowed())
}

/// Why a request isn't decided, where nothing passes without the store.
pub(crate) fn store_unreachable_for(limit: &str) -> String {
    format!("the store can't be asked about {limit:?}, and nothing passes without it")
}

/// What each protocol tells of a decision, in its own words.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DecisionReport<'a> {
    pub(crate) is_allowed: bool,
    /// What decided.
    pub(crate) rule: Option<Cow<'a, str>>,
    /// None if nothing was decided.
    pub(crate) decision: Option<Decision>,
    /// Why it was denied, and by which limit of the rule, if one did.
    pub(crate) reason: Option<DenyReason>,
    pub(crate) limited_by: Option<LimitText>,
    /// Limits in shadow that would have denied what passes, if an operator wants clients to see them.
    pub(crate) shadow: Vec<String>,
}

impl<'a> DecisionReport<'a> {
    pub(crate) fn of(answered: &DecisionAnswer<'a>, shadow: ShadowVisibility) -> Self {
        let is_allowed = answered.is_allowed;
        let limit = answered.limit().filter(|_| !is_allowed);
        Self {
            is_allowed,
            rule: answered.rule().map(Cow::Borrowed),
            decision: Some(answered.decision),
            reason: (!is_allowed).then(|| answered.reason()),
            limited_by: limit.map(LimitText::of),
            shadow: match shadow {
                ShadowVisibility::Shown if is_allowed => answered.shadow_rules().collect(),
                _ => Vec::new(),
            },
        }
    }

    /// Where no limit has decided.
    pub(crate) fn unlimited(is_allowed: bool) -> Self {
        Self {
            is_allowed,
            decision: Some(Decision::UNLIMITED),
            ..Self::default()
        }
    }

    /// The same, to be kept when the verdict is gone.
    pub(crate) fn into_owned(self) -> DecisionReport<'static> {
        DecisionReport {
            rule: self.rule.map(|rule| Cow::Owned(rule.into_owned())),
            is_allowed: self.is_allowed,
            decision: self.decision,
            reason: self.reason,
            limited_by: self.limited_by,
            shadow: self.shadow,
        }
    }
}

/// A limit as a policy says it, `100/m`. Denials may be very many, so it asks for no memory unless it is long.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LimitText(SmallVec<[u8; 40]>);

impl LimitText {
    pub(crate) fn of(limit: &LimitKind) -> Self {
        let mut text = Self::default();
        // Bytes take whatever is written.
        let _ = write!(text, "{limit}");
        text
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Write for LimitText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// The time, for the one dialect that tells it.
pub(crate) fn unix_time_for(dialects: &[HeaderDialect]) -> u64 {
    if dialects.contains(&HeaderDialect::XRateLimit) {
        Wall.now().as_nanos() / 1_000_000_000
    } else {
        0
    }
}
