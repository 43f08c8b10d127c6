//! One request, in the form that its policy takes, decided on virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tollgate::clock::Manual;
use tollgate::{Decision, Outcome};
use tollgate_engine::backend::Memory;
use tollgate_engine::engine::{DescriptorStatus, DescriptorVerdict, DescriptorsPassed, Left};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::Charging;
use tollgate_engine::verdict::{Cause, Passed, Permits};
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
        charging: Charging,
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
                charging: policy
                    .domains
                    .get(domain)
                    .map_or(Charging::default(), |domain| domain.charging),
            }),
            (true, Some(_)) => {
                usage("the file has no domains: say what is known of the request with --fact")
            }
            (false, None) => usage(
                "the file has domains: say which with --domain, and what the proxy sends with --descriptor",
            ),
        }
    }

    /// Decides it, at what the engine's clock shows. Who passes is among those who run from then on.
    pub(crate) fn decide(&self, engine: &Virtual, at: Duration, running: &mut Running) -> Step {
        running.end_until(at);
        match self {
            Self::Facts(facts) => {
                let verdict = engine.decide(facts);
                let mut step = Step::new(at, &verdict);
                let left = engine.left(facts);
                if left.len() > 1 {
                    step.left = left.into_iter().map(LeftOf::new).collect();
                }
                running.begin(at, verdict.passed().map(Passed::into_permits));
                step
            }
            Self::Descriptors {
                domain,
                entries,
                charging,
            } => {
                let descriptors: Vec<_> = entries.iter().map(|it| Descriptor::new(it)).collect();
                let verdict = engine.decide_descriptors(domain, &descriptors, 1);
                let mut step = Step::of(at, &verdict);
                // All or none is told by the outcome.
                if *charging == Charging::Each {
                    let each = entries.iter().zip(&verdict.statuses);
                    step.descriptors = each
                        .map(|(entries, said)| Charged::of(entries, said))
                        .collect();
                }
                running.begin(at, verdict.passed().map(DescriptorsPassed::into_permits));
                step
            }
        }
    }
}

/// Requests that passed and still run, each for as long: they hold their slots.
#[derive(Debug)]
pub(crate) struct Running {
    hold: Duration,
    /// When each ends, in that order.
    ends: VecDeque<(Duration, Permits)>,
}

impl Running {
    pub(crate) fn new(hold: Duration) -> Self {
        Self {
            hold,
            ends: VecDeque::new(),
        }
    }

    fn end_until(&mut self, at: Duration) {
        while self.ends.front().is_some_and(|(end, _)| *end <= at) {
            self.ends.pop_front();
        }
    }

    fn begin(&mut self, at: Duration, permits: Option<Permits>) {
        if let Some(permits) = permits.filter(|_| !self.hold.is_zero()) {
            self.ends.push_back((at + self.hold, permits));
        }
    }
}

const ALLOWED: &str = "allowed";
const DENIED: &str = "denied";

/// One request, decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    #[serde(rename = "at_ms", serialize_with = "in_millis")]
    pub(crate) at: Duration,
    pub(crate) outcome: &'static str,
    /// What decided.
    pub(crate) rule: Option<String>,
    pub(crate) remaining: Option<u64>,
    /// None if it never passes.
    #[serde(rename = "retry_after_ms", serialize_with = "in_millis_or_never")]
    pub(crate) retry_after: Option<Duration>,
    /// The limit of that rule that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<String>,
    /// What is left of each limit that the request meets, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<LeftOf>,
    /// What it has more of than is taken, in which case no rule was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) too_much: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) shadow: Vec<String>,
    /// What came of each descriptor, where they are charged one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) descriptors: Vec<Charged>,
}

/// What is left of one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LeftOf {
    pub(crate) rule: String,
    pub(crate) limit: String,
    pub(crate) remaining: Option<u64>,
}

/// What came of one descriptor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Charged {
    pub(crate) descriptor: String,
    /// The limit that it meets.
    pub(crate) limit: Option<String>,
    pub(crate) charged: u64,
    pub(crate) remaining: Option<u64>,
}

impl LeftOf {
    fn new(left: Left) -> Self {
        Self {
            limit: left.kind.to_string(),
            remaining: self::left(&left.decision),
            rule: left.rule,
        }
    }
}

impl Charged {
    fn of(entries: &[(&str, &str)], said: &DescriptorStatus) -> Self {
        Self {
            descriptor: entries_text(entries),
            limit: said.limit.clone(),
            charged: said.charged,
            remaining: said.decision.as_ref().and_then(left),
        }
    }
}

/// A descriptor as it is given.
pub(super) fn entries_text(entries: &[(&str, &str)]) -> String {
    let entries = entries.iter();
    let entries: Vec<_> = entries
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    entries.join(",")
}

// Serde hands over references.
fn in_millis<S: Serializer>(length: &Duration, out: S) -> Result<S::Ok, S::Error> {
    // From whole nanoseconds, so that 2780 isn't 2780.0000000000005.
    #[expect(
        clippy::cast_precision_loss,
        reason = "waits are shorter than 104 days, or rounded"
    )]
    let nanos = length.as_nanos() as f64;
    out.serialize_f64(nanos / 1e6)
}

fn in_millis_or_never<S: Serializer>(wait: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
    match wait {
        Some(wait) => in_millis(wait, out),
        None => out.serialize_none(),
    }
}

impl Step {
    /// Whether it passes.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcome == ALLOWED
    }

    fn new(at: Duration, verdict: &Verdict<'_>) -> Self {
        let decision = verdict.decision();
        let retry_after = match (verdict.refused().is_none(), decision.outcome) {
            (true, _) => Some(Duration::ZERO),
            (false, Outcome::Never) => None,
            (false, _) => or_never(decision.retry_after),
        };
        let too_much = match verdict.cause() {
            Cause::TooMuch(what) => Some(what.to_string()),
            _ => None,
        };
        Self {
            at,
            outcome: if verdict.refused().is_none() {
                ALLOWED
            } else {
                DENIED
            },
            rule: cause_name(verdict.cause()).filter(|_| too_much.is_none()),
            remaining: left(decision),
            retry_after,
            limit: verdict.limit().map(|limit| limit.kind().to_string()),
            left: Vec::new(),
            too_much,
            shadow: verdict
                .shadow_refusals()
                .filter_map(|refusal| cause_name(refusal.cause))
                .collect(),
            descriptors: Vec::new(),
        }
    }

    /// A request of descriptors: what is told is of the one that decided.
    fn of(at: Duration, verdict: &DescriptorVerdict) -> Self {
        let told = verdict.decider.map(|decider| &verdict.statuses[decider]);
        let shadow = verdict.statuses.iter().filter(|status| status.would_refuse);
        Self {
            at,
            outcome: match verdict {
                DescriptorVerdict::Passed(_) => ALLOWED,
                DescriptorVerdict::Refused(_) => DENIED,
            },
            rule: told.and_then(|status| status.limit.clone()),
            remaining: told.and_then(|status| left(status.decision.as_ref()?)),
            retry_after: or_never(verdict.retry_after),
            limit: None,
            left: Vec::new(),
            too_much: verdict.too_much.map(|what| what.to_string()),
            shadow: shadow.filter_map(|status| status.limit.clone()).collect(),
            descriptors: Vec::new(),
        }
    }
}

/// What is left; nothing if there is no limit to it.
fn left(decision: &Decision) -> Option<u64> {
    (!decision.is_unlimited()).then_some(decision.remaining)
}

/// What to call what decided; nothing if no rule did.
pub(crate) fn cause_name(cause: Cause<'_>) -> Option<String> {
    match cause {
        Cause::Nothing => None,
        Cause::Rule(name) => Some(name.to_owned()),
        other => Some(other.to_string()),
    }
}

/// None of the longest time there is, which stands for never.
fn or_never(wait: Duration) -> Option<Duration> {
    (wait < Duration::MAX).then_some(wait)
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
