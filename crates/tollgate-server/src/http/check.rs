//! `POST /v1/check` and `/v1/peek`: what is known of a request, as facts or as descriptors, decided and told.

use std::time::Duration;

use tollgate::Decision;
use tollgate_http::{DenyReason, Dialect, Refusal, fields, json, retry_after, status_of};

use super::answer::Answer;
use super::body::{self, Asked};
use super::descriptors::{self, AskedDescriptor};
use super::session::{Session, Wrong, bad};
use crate::answers::{Answered, LimitText, limited_by, unix_now};
use crate::decider::{LimitsTold, Store};
use crate::rls::{Decided, Question, Undecided, ask};
use crate::settings::ShadowAnswers;

/// Whether a request is charged, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Charge,
    Look,
}

impl<B: Store> Session<B> {
    pub(super) async fn check(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let is_list = body.trim_ascii_start().first() == Some(&b'[');
        if is_list {
            return self.check_all(body).await;
        }
        let asked: Asked<'_> = body::read(body).map_err(bad)?;
        if asked.descriptors.is_some() {
            let decided = self.by_descriptors(&asked, Then::Charge).await?;
            tell_decided(&mut self.answer, &decided);
            return Ok(());
        }
        asked
            .check_facts(self.service.decider.bounds.arguments)
            .map_err(bad)?;
        let facts = asked.facts();
        let (answer, dialects) = (&mut self.answer, &self.service.answers.dialects);
        let shadow = self.service.answers.shadow;
        let told = LimitsTold::by(dialects);
        let checked = self.service.decider.check(&facts, told, |answered| {
            tell(answer, dialects, answered);
            show_shadow(&mut answer.body, shadow, answered);
        });
        checked.await.map_err(|full| (503, full.to_string()))
    }

    /// Decides a list, in order: each has an answer, and the status is 200 whatever they are.
    async fn check_all(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Vec<Asked<'_>> = body::read(body).map_err(bad)?;
        let most = self.service.decider.bounds.batch;
        if asked.len() > most {
            return Err((
                413,
                format!(
                    "{} requests, more than the {most} that are taken",
                    asked.len()
                ),
            ));
        }
        self.answer.body.push(b'[');
        for (number, one) in asked.iter().enumerate() {
            if number > 0 {
                self.answer.body.push(b',');
            }
            self.check_one(one).await;
        }
        self.answer.body.push(b']');
        Ok(())
    }

    /// One of a list.
    async fn check_one(&mut self, asked: &Asked<'_>) {
        if asked.descriptors.is_some() {
            let decided = self.by_descriptors(asked, Then::Charge).await;
            let out = &mut self.answer.body;
            return match decided {
                Ok(decided) => Told::of_decided(&decided).show(out),
                Err((_, why)) => show_undecided(out, &why, None),
            };
        }
        if let Err(why) = asked.check_facts(self.service.decider.bounds.arguments) {
            return show_undecided(&mut self.answer.body, &why, None);
        }
        let facts = asked.facts();
        let out = &mut self.answer.body;
        let shadow = self.service.answers.shadow;
        let checked = self
            .service
            .decider
            .check(&facts, LimitsTold::Decider, |answered| {
                match undecided(answered) {
                    Some(why) => show_undecided(out, &why, Some(answered.reason())),
                    None => {
                        show(out, answered);
                        show_shadow(out, shadow, answered);
                    }
                }
            });
        if let Err(full) = checked.await {
            show_undecided(&mut self.answer.body, &full.to_string(), None);
        }
    }

    pub(super) async fn peek(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Asked<'_> = body::read(body).map_err(bad)?;
        if asked.descriptors.is_some() {
            let decided = self.by_descriptors(&asked, Then::Look).await?;
            Told::of_decided(&decided).show(&mut self.answer.body);
            return Ok(());
        }
        asked
            .check_facts(self.service.decider.bounds.arguments)
            .map_err(bad)?;
        let facts = asked.facts();
        let answer = &mut self.answer;
        let shadow = self.service.answers.shadow;
        let look = self.service.decider.peek(&facts, |answered| {
            match (answered.too_much(), undecided(answered)) {
                (Some(what), _) => Err((413, what.to_string())),
                (None, Some(why)) => Err((503, why)),
                (None, None) => {
                    show(&mut answer.body, answered);
                    show_shadow(&mut answer.body, shadow, answered);
                    Ok(())
                }
            }
        });
        look.await
    }

    /// Decides by descriptors, as Envoy would be answered.
    async fn by_descriptors(&self, asked: &Asked<'_>, then: Then) -> Result<Decided, Wrong> {
        if !asked.facts.0.is_empty() {
            let why = "descriptors: they are the facts of the request, so send one of both";
            return Err(bad(why.to_owned()));
        }
        let all = asked.descriptors.as_deref().unwrap_or_default();
        let entries: Vec<_> = all.iter().map(AskedDescriptor::entries).collect();
        let mut descriptors = descriptors::of(all, &entries)?;
        let hits_addend = u32::try_from(asked.cost.unwrap_or_default()).map_err(|_| {
            bad(format!(
                "cost: at most {} if there are descriptors",
                u32::MAX
            ))
        })?;
        for one in &mut descriptors {
            if then == Then::Look {
                (one.cost, one.refund) = (Some(0), false);
            } else if asked.cost == Some(0) {
                // Envoy says zero and means one; here it is what it says.
                one.cost.get_or_insert(0);
            }
        }
        let question = Question {
            domain: asked.domain.as_deref().unwrap_or_default(),
            descriptors: &descriptors,
            hits_addend,
        };
        // In a place of its own: nested in all that is around it, its type would be more than the compiler reads.
        let decided = Box::pin(ask(
            &self.service,
            &question,
            &self.service.answers.dialects,
        ))
        .await;
        decided.map_err(|why| match why {
            Undecided::Invalid(why) => bad(why),
            Undecided::Unavailable(_) | Undecided::Full(_) => (503, why.to_string()),
        })
    }
}

/// One answer, with its fields and status.
pub(super) fn tell(answer: &mut Answer, dialects: &[Dialect], answered: &Answered<'_>) {
    if let Some(what) = answered.too_much() {
        return answer.problem(413, &what.to_string());
    }
    answered.show_limits(|limits| {
        fields::write(dialects, limits, unix_now(dialects), |name, value| {
            answer.field(name, value)
        });
    });
    if answered.is_allowed {
        return show(&mut answer.body, answered);
    }
    let wait = tell_wait(answer, &answered.decision);
    let reason = answered.reason();
    answer.status = status_of(reason);
    if reason == DenyReason::Store {
        let limit = answered.rule().unwrap_or_default();
        let refusal = Refusal {
            reason,
            limit,
            retry_after: wait,
        };
        answer.media = Refusal::PROBLEM_TYPE;
        return refusal.problem_json(&mut answer.body);
    }
    show(&mut answer.body, answered);
}

/// The same of what was decided by descriptors.
fn tell_decided(answer: &mut Answer, decided: &Decided) {
    for (name, value) in &decided.headers {
        answer.field(name, value);
    }
    if !decided.is_allowed {
        answer.status = status_of(decided.reason.unwrap_or(DenyReason::Rate));
        if let Some(decision) = &decided.decision {
            tell_wait(answer, decision);
        }
    }
    Told::of_decided(decided).show(&mut answer.body);
}

/// Tells when to come back, if that helps.
fn tell_wait(answer: &mut Answer, decision: &Decision) -> Option<u64> {
    let wait = retry_after(decision);
    if let Some(seconds) = wait {
        answer.count_field("retry-after", seconds);
    }
    wait
}

/// One answer as JSON.
pub(super) fn show(out: &mut Vec<u8>, answered: &Answered<'_>) {
    let told = Told {
        is_allowed: answered.is_allowed,
        rule: answered.rule(),
        decision: answered.decision,
        reason: (!answered.is_allowed).then(|| answered.reason()),
        limited_by: limited_by(answered),
        shadow: &[],
    };
    told.show(out);
}

/// Adds the rules in shadow that would have refused, if an operator wants clients to see them.
fn show_shadow(out: &mut Vec<u8>, wanted: ShadowAnswers, answered: &Answered<'_>) {
    if wanted == ShadowAnswers::Hidden || !answered.is_allowed || out.last() != Some(&b'}') {
        return;
    }
    out.pop();
    shadow_list(out, answered.shadow_rules());
    out.push(b'}');
}

fn shadow_list(out: &mut Vec<u8>, rules: impl Iterator<Item = impl AsRef<str>>) {
    let mut before: &[u8] = b",\"shadow\":[";
    for rule in rules {
        out.extend_from_slice(before);
        json::string(out, rule.as_ref());
        before = b",";
    }
    if before == b"," {
        out.push(b']');
    }
}

/// What an answer tells.
struct Told<'a> {
    is_allowed: bool,
    rule: Option<&'a str>,
    decision: Decision,
    reason: Option<DenyReason>,
    limited_by: Option<LimitText>,
    /// Rules in shadow that would have refused.
    shadow: &'a [String],
}

impl<'a> Told<'a> {
    fn of_decided(decided: &'a Decided) -> Self {
        Self {
            is_allowed: decided.is_allowed,
            rule: decided.rule.as_deref(),
            decision: decided.decision.unwrap_or(Decision::UNLIMITED),
            reason: decided.reason,
            limited_by: decided.limited_by.clone(),
            shadow: &decided.shadow,
        }
    }

    fn show(&self, out: &mut Vec<u8>) {
        let decision = &self.decision;
        out.extend(if self.is_allowed {
            &b"{\"allowed\":true"[..]
        } else {
            b"{\"allowed\":false"
        });
        out.extend(b",\"rule\":");
        match self.rule {
            Some(name) => json::string(out, name),
            None => out.extend(b"null"),
        }
        for (name, count) in [
            (&b",\"limit\":"[..], decision.limit),
            (b",\"remaining\":", decision.remaining),
        ] {
            out.extend_from_slice(name);
            if decision.is_unlimited() {
                out.extend(b"null");
            } else {
                json::number(out, count);
            }
        }
        for (name, time) in [
            (&b",\"retry_after\":"[..], decision.wait()),
            (b",\"reset_after\":", decision.reset_after),
        ] {
            out.extend_from_slice(name);
            if time == Duration::MAX {
                out.extend(b"null");
            } else {
                json::seconds(out, time);
            }
        }
        if let Some(reason) = self.reason {
            show_reason(out, reason, self.limited_by.as_ref().map(LimitText::as_str));
        }
        shadow_list(out, self.shadow.iter());
        out.push(b'}');
    }
}

/// Why a request was denied, and by which limit of the rule.
fn show_reason(out: &mut Vec<u8>, reason: DenyReason, limited_by: Option<&str>) {
    out.extend(b",\"reason\":");
    json::string(out, reason.name());
    if let Some(limit) = limited_by {
        out.extend(b",\"limited_by\":");
        json::string(out, limit);
    }
}

/// Why nothing could be decided; none if something was.
fn undecided(answered: &Answered<'_>) -> Option<String> {
    if let Some(what) = answered.too_much() {
        return Some(what.to_string());
    }
    answered.failure().map(unavailable)
}

pub(super) fn unavailable(limit: &str) -> String {
    format!("the store can't be asked about {limit:?}, and nothing passes without it")
}

/// One answer of a list, of a request that nothing was decided about.
fn show_undecided(out: &mut Vec<u8>, why: &str, reason: Option<DenyReason>) {
    out.extend(b"{\"allowed\":false,\"rule\":null,\"limit\":null,\"remaining\":null");
    out.extend(b",\"retry_after\":null,\"reset_after\":null");
    if let Some(reason) = reason {
        show_reason(out, reason, None);
    }
    out.extend(b",\"error\":");
    json::string(out, why);
    out.push(b'}');
}
