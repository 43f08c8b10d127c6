//! One request, in the form that its policy takes, decided on virtual time.

use std::time::Duration;

use serde::Serialize;
use tollgate::Outcome;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::engine::DescriptorVerdict;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts, Policy, Verdict};

use super::PolicyFailure;
use super::facts::{Entries, Fact, facts};

/// An engine whose time is set by hand.
pub(crate) type Virtual = Engine<Memory<Manual, Manual>>;

/// What is asked of a policy.
#[derive(Debug)]
pub(crate) enum Request<'a> {
    /// Of one in our form.
    Facts(Box<Facts<'a>>),
    /// Of one in envoyproxy/ratelimit's form.
    Descriptors {
        domain: &'a str,
        entries: Vec<Vec<(&'a str, &'a str)>>,
    },
}

impl<'a> Request<'a> {
    /// Fails if the arguments are for the other form.
    pub(crate) fn new(
        policy: &Policy,
        known: &'a [Fact],
        domain: Option<&'a str>,
        descriptors: &'a [Entries],
    ) -> Result<Self, PolicyFailure> {
        let usage = |message: &str| Err(PolicyFailure::Usage(message.to_owned()));
        match (policy.domains.is_empty(), domain) {
            (true, None) => Ok(Self::Facts(Box::new(facts(known)))),
            (false, Some(_)) if !known.is_empty() => {
                usage("the file has domains: a request to it has a --descriptor, and no --fact")
            }
            (false, Some(domain)) => Ok(Self::Descriptors {
                domain,
                entries: descriptors.iter().map(Entries::pairs).collect(),
            }),
            (true, Some(_)) => {
                usage("the file has no domains: say what is known of the request with --fact")
            }
            (false, None) => usage(
                "the file has domains: say which with --domain, and what the proxy sends with --descriptor",
            ),
        }
    }

    /// Decides it, at what the engine's clock shows.
    pub(crate) fn decide(&self, engine: &Virtual, at: Duration) -> Step {
        match self {
            Self::Facts(facts) => Step::new(at, &engine.decide(facts)),
            Self::Descriptors { domain, entries } => {
                let descriptors: Vec<_> = entries.iter().map(|it| Descriptor::new(it)).collect();
                Step::of(at, &engine.decide_descriptors(domain, &descriptors, 1))
            }
        }
    }
}

const ALLOWED: &str = "allowed";
const DENIED: &str = "denied";

/// One request, decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    pub(crate) at_ms: f64,
    pub(crate) outcome: &'static str,
    /// What decided.
    pub(crate) rule: Option<String>,
    pub(crate) remaining: Option<u64>,
    /// None if it never passes.
    pub(crate) retry_after_ms: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) shadow: Vec<String>,
}

impl Step {
    /// Whether it passes.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcome == ALLOWED
    }

    fn new(at: Duration, verdict: &Verdict<'_>) -> Self {
        let decision = verdict.decision();
        let retry_after = match (verdict.is_allowed(), decision.outcome) {
            (true, _) => Some(Duration::ZERO),
            (false, Outcome::Never) => None,
            (false, _) => Some(decision.retry_after),
        };
        Self {
            at_ms: millis(at),
            outcome: if verdict.is_allowed() {
                ALLOWED
            } else {
                DENIED
            },
            rule: cause_name(verdict.cause()),
            remaining: (decision.limit < u64::MAX).then_some(decision.remaining),
            retry_after_ms: retry_after.map(millis),
            shadow: verdict
                .shadow_refusals()
                .filter_map(|refusal| cause_name(refusal.cause))
                .collect(),
        }
    }

    /// A request of descriptors: what is told is of the one that decided.
    fn of(at: Duration, verdict: &DescriptorVerdict) -> Self {
        let told = verdict.decider.map(|decider| &verdict.statuses[decider]);
        let shadow = verdict.statuses.iter().filter(|status| status.would_refuse);
        Self {
            at_ms: millis(at),
            outcome: match verdict.is_allowed() {
                true => ALLOWED,
                false => DENIED,
            },
            rule: match verdict.too_much {
                Some(what) => Some(what.to_string()),
                None => told.and_then(|status| status.limit.clone()),
            },
            remaining: told
                .and_then(|status| status.decision)
                .map(|it| it.remaining),
            retry_after_ms: match verdict.retry_after {
                Duration::MAX => None,
                wait => Some(millis(wait)),
            },
            shadow: shadow.filter_map(|status| status.limit.clone()).collect(),
        }
    }
}

/// What to call what decided; nothing if no rule did.
pub(crate) fn cause_name(cause: Cause<'_>) -> Option<String> {
    match cause {
        Cause::Nothing => None,
        Cause::Rule(name) => Some(name.to_owned()),
        other => Some(other.to_string()),
    }
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1e3
}

/// An engine on virtual time that begins at the origin.
pub(crate) fn engine(policy: Policy) -> Result<(Virtual, Manual), PolicyFailure> {
    let clock = Manual::new();
    let memory = Memory::builder()
        .clock(clock.clone())
        .wall(clock.clone())
        .build();
    Ok((Engine::new(policy, memory)?, clock))
}
