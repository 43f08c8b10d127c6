//! The answer to a client about a decision, whatever the protocol.

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

/// The error of an operator's refund or reset while the store is unreachable.
pub(crate) const STORE_UNREACHABLE: &str =
    "the store can't be asked, so it isn't done, or not everywhere: ask again once it can";

/// The answer to a decided request.
pub(crate) fn outcome_of_verdict<'a>(verdict: &'a RequestDecision<'a>) -> DecisionAnswer<'a> {
    DecisionAnswer::of(verdict, verdict.denied().is_none())
}

/// The answer to a peek.
pub(crate) fn outcome_of_peek<'a>(findings: &'a DecisionDetails<'a>) -> DecisionAnswer<'a> {
    DecisionAnswer::of(findings, findings.decision().is_allowed())
}

/// The error of a request that a closed limit leaves undecided while the store is unreachable.
pub(crate) fn store_unreachable_for(limit: &str) -> String {
    format!("the store can't be asked about {limit:?}, and nothing passes without it")
}

/// The parts of an answer, which each protocol writes in its own format.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DecisionReport<'a> {
    pub(crate) is_allowed: bool,
    /// The deciding rule.
    pub(crate) rule: Option<Cow<'a, str>>,
    /// `None` if nothing was decided.
    pub(crate) decision: Option<Decision>,
    /// Why the request was denied, and by which of the rule's limits.
    pub(crate) reason: Option<DenyReason>,
    pub(crate) limited_by: Option<LimitText>,
    /// Rules in shadow mode that would have denied an allowed request, if clients may see them.
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

    /// The report where no limit applies.
    pub(crate) fn unlimited(is_allowed: bool) -> Self {
        Self {
            is_allowed,
            decision: Some(Decision::UNLIMITED),
            ..Self::default()
        }
    }

    /// An owned report, which outlives the decision.
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

/// A limit as a policy writes it, `100/m`. Denials may be very frequent, so only long texts allocate.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LimitText(SmallVec<[u8; 40]>);

impl LimitText {
    pub(crate) fn of(limit: &LimitKind) -> Self {
        let mut text = Self::default();
        // Writing to bytes can't fail.
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

/// The Unix time, for the one dialect whose headers have it.
pub(crate) fn unix_time_for(dialects: &[HeaderDialect]) -> u64 {
    if dialects.contains(&HeaderDialect::XRateLimit) {
        Wall.now().as_nanos() / 1_000_000_000
    } else {
        0
    }
}
