//! What clients are told of a request that an engine decided.

use tollgate::{Algorithm, Decision, Outcome};
use tollgate_engine::backend::{Limit, LimitKind};
use tollgate_engine::verdict::{Cause, Findings, Reason, TooMuch};

use crate::fields;
use crate::{Kind, Shown};

/// What a client is told of a request that an engine decided.
///
/// ```
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Engine, Facts, Policy};
/// use tollgate_http::{Answered, Kind};
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, Memory::new())?;
/// let facts = Facts::new().with("user", "ada");
/// let _first = engine.decide(&facts);
/// let second = engine.decide(&facts);
/// let answered = Answered::of(&second, second.refused().is_none());
/// assert_eq!((answered.rule(), answered.kind()), (Some("per-user"), Kind::Rate));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Answered<'a> {
    /// Whether it passed.
    pub is_allowed: bool,
    /// What decided.
    pub cause: Cause<'a>,
    /// What was decided.
    pub decision: Decision,
    findings: &'a Findings<'a>,
}

impl<'a> Answered<'a> {
    /// What the findings tell of a request that passed, or didn't.
    pub fn of(findings: &'a Findings<'a>, is_allowed: bool) -> Self {
        Self {
            is_allowed,
            cause: findings.cause(),
            decision: *findings.decision(),
            findings,
        }
    }

    /// The name of what decided; none if nothing that has one did.
    pub fn rule(&self) -> Option<&'a str> {
        match self.cause {
            Cause::Rule(name) | Cause::Tier(name) | Cause::StoreFailure(name) => Some(name),
            _ => None,
        }
    }

    /// What header fields show of the limit that decided.
    pub fn shown(&self) -> Option<Shown<'a>> {
        let (name, kind) = (self.rule()?, self.findings.limit()?.kind());
        let shown = Shown::of(name, &self.decision);
        let LimitKind::Rate { rate, algorithm } = kind else {
            return Some(match kind.window() {
                Some(window) => shown.window(window),
                None => shown,
            });
        };
        Some(match algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Shown::of_bucket(name, &self.decision, *rate)
            }
            _ => match fields::time_of(*rate, self.decision.limit) {
                Some(window) => shown.window(window),
                None => shown,
            },
        })
    }

    /// What refused.
    pub fn kind(&self) -> Kind {
        match self.cause {
            Cause::StoreFailure(_) => return Kind::Unavailable,
            Cause::TooMuch(_) => return Kind::TooLarge,
            _ => {}
        }
        match self.findings.reason() {
            Some(Reason::Blocked) => return Kind::Blocked,
            Some(Reason::Shed) => return Kind::Shed,
            _ => {}
        }
        if self.decision.outcome == Outcome::Never {
            return Kind::TooLarge;
        }
        match self.findings.limit().map(Limit::kind) {
            Some(LimitKind::Quota(_)) => Kind::Quota,
            Some(LimitKind::Concurrency(_)) => Kind::Concurrency,
            _ => Kind::Rate,
        }
    }

    /// The limit that decided.
    pub fn limit(&self) -> Option<&'a LimitKind> {
        self.findings.limit().map(Limit::kind)
    }

    /// What the request has more of than is taken: no decision of a limit, either.
    pub fn too_much(&self) -> Option<TooMuch<'a>> {
        match self.cause {
            Cause::TooMuch(what) if !self.is_allowed => Some(what),
            _ => None,
        }
    }

    /// Why nothing could be decided: another answer than a refusal.
    pub fn failure(&self) -> Option<&'a str> {
        match self.cause {
            Cause::StoreFailure(name) if !self.is_allowed => Some(name),
            _ => None,
        }
    }
}
