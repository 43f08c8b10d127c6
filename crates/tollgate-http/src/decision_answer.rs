//! What a response reports about the decision of an engine.

use std::borrow::Cow;

use tollgate::{Algorithm, Decision};
use tollgate_engine::backend::{Limit, LimitKind};
use tollgate_engine::verdict::{BoundExceeded, Cause, DecisionDetails, DenyReason, LimitState};

use crate::ShownLimit;
use crate::fields;

/// The most limits that a response lists. Clients read few, and header fields have to stay short.
pub const MAX_LISTED_LIMITS: usize = 8;

/// What a response reports about a request that an engine decided.
///
/// ```
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Engine, Facts, Policy};
/// use tollgate_http::{DecisionAnswer, DenyReason};
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, Memory::new())?;
/// let facts = Facts::new().with("user", "ada");
/// let _first = engine.decide(&facts);
/// let second = engine.decide(&facts);
/// let answered = DecisionAnswer::of(&second, second.denied().is_none());
/// assert_eq!((answered.rule(), answered.reason()), (Some("per-user"), DenyReason::Rate));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DecisionAnswer<'a> {
    /// Whether the request passed.
    pub is_allowed: bool,
    /// What decided: a rule, a tier, a block, or a failed store.
    pub cause: Cause<'a>,
    /// The decision.
    pub decision: Decision,
    findings: &'a DecisionDetails<'a>,
}

impl<'a> DecisionAnswer<'a> {
    /// Reads the details of a decision. `is_allowed` states whether the request passes, which can differ from the
    /// decision in shadow mode.
    pub fn of(findings: &'a DecisionDetails<'a>, is_allowed: bool) -> Self {
        Self {
            is_allowed,
            cause: findings.cause(),
            decision: *findings.decision(),
            findings,
        }
    }

    /// The name of the rule, tier or store failure that decided; none if the cause has no name.
    pub fn rule(&self) -> Option<&'a str> {
        cause_name(self.cause)
    }

    /// The names of the rules in shadow mode that would have denied the request, in the order of the file.
    pub fn shadow_rules(&self) -> impl Iterator<Item = String> + use<'_, 'a> {
        let refusals = self.findings.shadow_denials();
        refusals.filter_map(|refusal| match refusal.cause {
            Cause::Rule(name) | Cause::Tier(name) => Some(name.to_owned()),
            _ => None,
        })
    }

    /// The limit that decided, for header fields.
    pub fn shown(&self) -> Option<ShownLimit<'a>> {
        let kind = self.findings.limit()?.kind();
        Some(shown_limit(self.rule()?, kind, &self.decision))
    }

    /// All limits that the request was charged to, for header fields: the most urgent first, at most
    /// [`MAX_LISTED_LIMITS`].
    ///
    /// The details have to be of a decision that [lists its limits](tollgate_engine::DecideOptions::listing_limits).
    /// Otherwise only the limit that decided is shown. A limit has the name of its rule. If a rule has several
    /// limits, each name states which one it is: `api:10/s`, `api:1000/month`, `api:concurrency`.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Facts, Policy};
    /// use tollgate_http::{DecisionAnswer, HeaderDialect, fields};
    ///
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: api, rate: 10/s, concurrency: 3}, {name: all, rate: 50/m}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// let verdict = engine.decide_listing_limits(&facts);
    /// let answered = DecisionAnswer::of(&verdict, verdict.denied().is_none());
    /// let mut lines = Vec::new();
    /// answered.with_limits(|limits| {
    ///     fields::write(&[HeaderDialect::Draft8], limits, 0, |name, value| lines.push(format!("{name}: {value}")));
    /// });
    /// assert_eq!(lines[1], r#"ratelimit: "api:10/s";r=9;t=1, "all";r=49;t=2, "api:concurrency";r=2"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_limits<T>(&self, show: impl FnOnce(&[ShownLimit<'_>]) -> T) -> T {
        let mut limits = self.findings.limits();
        let (first, second) = (limits.next(), limits.next());
        drop(limits);
        match (first, second) {
            (Some(_), Some(_)) => {
                let names = self.names();
                let limits = self.findings.limits().zip(&names);
                let limits: Vec<_> = limits
                    .map(|(limit, name)| shown_limit(name, limit.kind, &limit.decision))
                    .collect();
                show(&limits)
            }
            _ => match self.shown() {
                Some(shown) => show(&[shown]),
                None => show(&[]),
            },
        }
    }

    /// The names of the listed limits.
    #[cold]
    fn names(&self) -> Vec<Cow<'a, str>> {
        let limits: Vec<_> = self.findings.limits().take(MAX_LISTED_LIMITS).collect();
        let name = |limit: &LimitState<'a>| {
            let rule = cause_name(limit.cause).unwrap_or_default();
            let of_rule = self.findings.limits();
            let of_rule = of_rule.filter(|other| other.cause == limit.cause);
            if of_rule.count() < 2 {
                return Cow::Borrowed(rule);
            }
            Cow::Owned(match limit.kind {
                LimitKind::Concurrency(_) | LimitKind::Adaptive(_) => format!("{rule}:concurrency"),
                kind => format!("{rule}:{kind}"),
            })
        };
        limits.iter().map(name).collect()
    }

    /// Why the request was denied.
    pub fn reason(&self) -> DenyReason {
        self.findings.reason().unwrap_or(DenyReason::Rate)
    }

    /// The limit that decided.
    pub fn limit(&self) -> Option<&'a LimitKind> {
        self.findings.limit().map(Limit::kind)
    }

    /// The bound of the engine that the request exceeds, such as its number of facts; none if a limit decided.
    pub fn too_much(&self) -> Option<BoundExceeded<'a>> {
        match self.cause {
            Cause::TooMuch(what) if !self.is_allowed => Some(what),
            _ => None,
        }
    }

    /// The store failure for which the request was denied. Such a response says *unavailable*, not *denied*.
    pub fn failure(&self) -> Option<&'a str> {
        match self.cause {
            Cause::StoreFailure(name) if !self.is_allowed => Some(name),
            _ => None,
        }
    }
}

/// The name of the cause; none if it has no name.
const fn cause_name(cause: Cause<'_>) -> Option<&str> {
    match cause {
        Cause::Rule(name) | Cause::Tier(name) | Cause::StoreFailure(name) => Some(name),
        _ => None,
    }
}

/// Shows the decision of a limit of this kind.
fn shown_limit<'n>(name: &'n str, kind: &LimitKind, decision: &Decision) -> ShownLimit<'n> {
    let shown = ShownLimit::of(name, decision);
    let LimitKind::Rate { rate, algorithm } = kind else {
        return match kind.window() {
            Some(window) => shown.window(window),
            None => shown,
        };
    };
    match algorithm {
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            ShownLimit::of_bucket(name, decision, *rate)
        }
        _ => match fields::refill_time(*rate, decision.limit) {
            Some(window) => shown.window(window),
            None => shown,
        },
    }
}
