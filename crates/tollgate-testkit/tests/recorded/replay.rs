//! Plays a story on an engine in memory, and writes each answer as a line that depends on no name of a type.

use std::fmt::Write;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::engine::DescriptorDecision;
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::verdict::{DecisionDetails, Permits};
use tollgate_engine::{Engine, Facts, Policy, RequestDecision};

use crate::inputs::{Action, Asked, Pair, Step, Story};

/// The engine of a story, and the requests that run.
struct Play {
    clock: Manual,
    engine: Engine<Memory<Manual, Manual>>,
    /// Each with the step at which it ends.
    running: Vec<(usize, Permits)>,
}

/// The answer to each step of a story.
pub(crate) fn answers(story: &Story) -> Vec<String> {
    let clock = Manual::starting_at(Timestamp::from_secs(7_200));
    let memory = Memory::builder().capacity(1_000).clock(clock.clone());
    let memory = memory.wall(clock.clone()).build();
    let policies: Vec<_> = story.policies.iter().map(|text| read(text)).collect();
    let first = policies[0].clone().unwrap_or_default();
    let engine = Engine::new(first, memory).unwrap_or_else(|_| {
        let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
        Engine::new(Policy::default(), memory.build()).expect("an empty policy")
    });
    let mut play = Play {
        clock,
        engine: engine.with_seed(7),
        running: Vec::new(),
    };
    let steps = story.steps.iter().enumerate();
    steps
        .map(|(number, step)| play.step(number, step, &policies))
        .collect()
}

fn read(text: &str) -> Option<Policy> {
    let read = Policy::from_text(text, Format::Yaml).ok()?;
    Some(read.policy)
}

impl Play {
    fn step(&mut self, number: usize, step: &Step, policies: &[Option<Policy>]) -> String {
        self.clock.advance(Duration::from_millis(step.after_millis));
        self.running.retain(|(until, _)| *until > number);
        match &step.action {
            Action::Decide {
                facts,
                is_async,
                runs,
            } => self.decide(facts, *is_async, number + runs),
            Action::Peek(facts) => {
                let facts = known(facts);
                format!("peek {}", findings(&self.engine.peek(&facts)))
            }
            Action::Left(facts) => {
                let mut text = "left".to_owned();
                for one in self.engine.remaining(&known(facts)) {
                    let _ = write!(text, " | {} {}", one.rule, decision(&one.decision));
                }
                text
            }
            Action::Refund(facts) => {
                let facts = known(facts);
                let refunded = ready(self.engine.refund_async(&facts)).is_ok();
                format!("refund {refunded}")
            }
            Action::Forget(facts) => {
                self.engine.reset_request(&known(facts));
                "forget".to_owned()
            }
            Action::Descriptors {
                descriptors,
                hits,
                runs,
            } => self.decide_descriptors(descriptors, *hits, number + runs),
            Action::Reload(policy) => match &policies[*policy] {
                Some(policy) => {
                    format!("reload {}", self.engine.reload(policy.clone()).is_ok())
                }
                None => "reload of a rejected policy".to_owned(),
            },
        }
    }

    fn decide(&mut self, facts: &[Pair], is_async: bool, until: usize) -> String {
        let facts = known(facts);
        let verdict = if is_async {
            let Ok(verdict) = ready(self.engine.decide_async(&facts));
            verdict
        } else {
            self.engine.decide(&facts)
        };
        let text = findings(&verdict);
        match verdict {
            RequestDecision::Allowed(passed) => {
                self.running.push((until, passed.into_permits()));
                format!("passed {text}")
            }
            RequestDecision::Denied(_) => format!("denied {text}"),
        }
    }

    fn decide_descriptors(&mut self, asked: &[Asked], hits: u32, until: usize) -> String {
        let descriptors: Vec<_> = asked.iter().map(descriptor).collect();
        let verdict = self.engine.decide_descriptors("edge", &descriptors, hits);
        let mut text = format!("{:?} {:?}", verdict.decider, verdict.retry_after);
        for status in &verdict.statuses {
            let is_over = status.code == StatusCode::OverLimit;
            let _ = write!(
                text,
                " | {is_over} {} {} {} {}",
                status.limit.as_deref().unwrap_or("-"),
                status.remaining,
                status.would_deny,
                status.charged
            );
            if let Some(told) = &status.decision {
                let _ = write!(text, " {}", decision(told));
            }
        }
        if let Some(reason) = verdict.reason {
            let _ = write!(text, " because {reason}");
        }
        match verdict {
            DescriptorDecision::Allowed(passed) => {
                self.running.push((until, passed.into_permits()));
                format!("descriptors passed {text}")
            }
            DescriptorDecision::Denied(_) => format!("descriptors denied {text}"),
        }
    }
}

fn descriptor(asked: &Asked) -> Descriptor<'_> {
    Descriptor {
        limit: asked.limit.map(|requests| (requests, Unit::Hour)),
        cost: asked.cost,
        refund: asked.refund,
        ..Descriptor::new(&asked.entries)
    }
}

fn known<'a>(facts: &[Pair]) -> Facts<'a> {
    facts.iter().copied().collect()
}

/// The answer to a request by rules.
fn findings(findings: &DecisionDetails<'_>) -> String {
    let mut text = format!("{} {}", findings.cause(), decision(findings.decision()));
    if let Some(reason) = findings.reason() {
        let _ = write!(text, " because {reason}");
    }
    if let Some(key) = findings.key() {
        let _ = write!(text, " key {key}");
    }
    if findings.is_near_limit() {
        text.push_str(" near");
    }
    for shadow in findings.shadow_denials() {
        let _ = write!(
            text,
            " | shadow {} {}",
            shadow.cause,
            decision(&shadow.decision)
        );
    }
    text
}

fn decision(decision: &Decision) -> String {
    let Decision {
        outcome,
        limit,
        remaining,
        retry_after,
        reset_after,
        ..
    } = decision;
    let wait = retry_after.map_or(-1, |wait| i128::try_from(wait.as_nanos()).unwrap_or(-1));
    let limit = if decision.is_unlimited() { &0 } else { limit };
    let (outcome, reset) = (format!("{outcome:?}"), reset_after.as_nanos());
    format!("{} {limit} {remaining} {wait} {reset}", &outcome[..1])
}

/// What a future of a backend in memory comes to, which never waits.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}
