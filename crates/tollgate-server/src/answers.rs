//! What clients are told of a decision, whatever they speak.

use std::fmt::{self, Write};

use smallvec::SmallVec;
use tollgate::clock::{Clock, Wall};
use tollgate_engine::Verdict;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::policy::Mode;
use tollgate_engine::verdict::Findings;
pub(crate) use tollgate_http::Answered;
use tollgate_http::Dialect;

/// What an operator is told whose gift a store couldn't be told of.
pub(crate) const LOST: &str =
    "the store can't be asked, so it isn't done, or not everywhere: ask again once it can";

/// What is told of a request that was decided.
pub(crate) fn answered<'a>(verdict: &'a Verdict<'a>) -> Answered<'a> {
    Answered::of(verdict, verdict.refused().is_none())
}

/// What would be told of a request that was only looked at.
pub(crate) fn looked_at<'a>(findings: &'a Findings<'a>) -> Answered<'a> {
    Answered::of(findings, findings.decision().is_allowed())
}

/// The limit of a rule that denied a request, as the policy says it; none if it passed, or no limit did.
pub(crate) fn limited_by(answered: &Answered<'_>) -> Option<LimitText> {
    let limit = answered.limit().filter(|_| !answered.is_allowed);
    limit.map(LimitText::of)
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
pub(crate) fn unix_now(dialects: &[Dialect]) -> u64 {
    if dialects.contains(&Dialect::Github) {
        Wall.now().as_nanos() / 1_000_000_000
    } else {
        0
    }
}

/// As a policy calls it.
pub(crate) const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}
