//! `POST /v1/check` and `/v1/peek`: what is known of a request, as facts or as descriptors, decided and told.

use std::borrow::Cow;
use std::time::Duration;

use tollgate::Decision;
use tollgate_http::{DenyReason, Refusal, fields, json, retry_after, status_of};

use super::answer::Answer;
use super::body::{self, Asked};
use super::descriptors::{self, AskedDescriptor};
use super::session::{Session, Wrong, bad};
use crate::answers::{Answered, LimitText, answered, limited_by, looked_at, unix_now};
use crate::decider::{LimitsTold, Store};
use crate::rls::{Decided, Question, Undecided, ask};
use crate::settings::{Settings, ShadowAnswers};

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
        let most = self.service.decider.bounds.arguments;
        let facts = asked.checked_facts(most).map_err(bad)?;
        let settings = &self.service.settings;
        let told = LimitsTold::by(&settings.dialects);
        let checked = self.service.decider.check(&facts, told).await;
        let verdict = checked.map_err(|full| (503, full.to_string()))?;
        tell(&mut self.answer, settings, &answered(&verdict));
        Ok(())
    }

    /// Decides a list, in order: each has an answer, and the status is 200 whatever they are.
    async fn check_all(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Vec<Asked<'_>> = body::read(body).map_err(bad)?;
        let (found, most) = (asked.len(), self.service.decider.bounds.batch);
        if found > most {
            let why = format!("{found} requests, more than the {most} that are taken");
            return Err((413, why));
        }
        let mut before = b'[';
        for one in &asked {
            self.answer.body.push(before);
            before = b',';
            if let Err(why) = self.check_one(one).await {
                Told::undecided(&why, None).show(&mut self.answer.body);
            }
        }
        if asked.is_empty() {
            self.answer.body.push(b'[');
        }
        self.answer.body.push(b']');
        Ok(())
    }

    /// One of a list. What it can't be decided for is told as its answer.
    async fn check_one(&mut self, asked: &Asked<'_>) -> Result<(), String> {
        if asked.descriptors.is_some() {
            let decided = self.by_descriptors(asked, Then::Charge).await;
            let decided = decided.map_err(|(_, why)| why)?;
            Told::of_decided(&decided).show(&mut self.answer.body);
            return Ok(());
        }
        let decider = &self.service.decider;
        let facts = asked.checked_facts(decider.bounds.arguments)?;
        let checked = decider.check(&facts, LimitsTold::Decider).await;
        let verdict = checked.map_err(|full| full.to_string())?;
        let (answered, out) = (answered(&verdict), &mut self.answer.body);
        match undecided(&answered) {
            Some((_, why)) => Told::undecided(&why, Some(answered.reason())).show(out),
            None => Told::of(&answered, self.service.settings.shadow_answers).show(out),
        }
        Ok(())
    }

    pub(super) async fn peek(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Asked<'_> = body::read(body).map_err(bad)?;
        if asked.descriptors.is_some() {
            let decided = self.by_descriptors(&asked, Then::Look).await?;
            Told::of_decided(&decided).show(&mut self.answer.body);
            return Ok(());
        }
        let decider = &self.service.decider;
        let facts = asked.checked_facts(decider.bounds.arguments).map_err(bad)?;
        let Ok(findings) = decider.engine.peek_async(&facts).await;
        let answered = looked_at(&findings);
        if let Some(wrong) = undecided(&answered) {
            return Err(wrong);
        }
        let told = Told::of(&answered, self.service.settings.shadow_answers);
        told.show(&mut self.answer.body);
        Ok(())
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
        let most = u32::MAX;
        let hits_addend = u32::try_from(asked.cost.unwrap_or_default())
            .map_err(|_| bad(format!("cost: at most {most} if there are descriptors")))?;
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
        let dialects = &self.service.settings.dialects;
        Ok(Box::pin(ask(&self.service, &question, dialects)).await?)
    }
}

impl From<Undecided> for Wrong {
    fn from(why: Undecided) -> Self {
        match why {
            Undecided::Invalid(why) => bad(why),
            Undecided::Unavailable(_) | Undecided::Full(_) => (503, why.to_string()),
        }
    }
}

/// One answer, with its fields and status.
pub(super) fn tell(answer: &mut Answer, settings: &Settings, answered: &Answered<'_>) {
    let dialects = &settings.dialects;
    if let Some(what) = answered.too_much() {
        return answer.problem(413, &what.to_string());
    }
    answered.show_limits(|limits| {
        fields::write(dialects, limits, unix_now(dialects), |name, value| {
            answer.field(name, value)
        });
    });
    if !answered.is_allowed {
        let (reason, wait) = (answered.reason(), tell_wait(answer, &answered.decision));
        answer.status = status_of(reason);
        if reason == DenyReason::Store {
            let refusal = Refusal {
                reason,
                limit: answered.rule().unwrap_or_default(),
                retry_after: wait,
            };
            answer.media = Refusal::PROBLEM_TYPE;
            return refusal.problem_json(&mut answer.body);
        }
    }
    Told::of(answered, settings.shadow_answers).show(&mut answer.body);
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

/// What an answer tells, as JSON.
pub(super) struct Told<'a> {
    is_allowed: bool,
    rule: Option<&'a str>,
    /// None if there is none.
    decision: Option<Decision>,
    reason: Option<DenyReason>,
    limited_by: Option<LimitText>,
    /// Rules in shadow that would have refused, if an operator wants clients to see them.
    shadow: Cow<'a, [String]>,
    /// Why nothing was decided.
    error: Option<&'a str>,
}

impl<'a> Told<'a> {
    pub(super) fn of(answered: &'a Answered<'_>, shadow: ShadowAnswers) -> Self {
        let is_allowed = answered.is_allowed;
        let is_shown = is_allowed && shadow == ShadowAnswers::Shown;
        let shadow = is_shown.then(|| answered.shadow_rules().collect());
        Self {
            is_allowed,
            rule: answered.rule(),
            decision: Some(answered.decision),
            reason: (!is_allowed).then(|| answered.reason()),
            limited_by: limited_by(answered),
            shadow: Cow::Owned(shadow.unwrap_or_default()),
            error: None,
        }
    }

    fn of_decided(decided: &'a Decided) -> Self {
        Self {
            is_allowed: decided.is_allowed,
            rule: decided.rule.as_deref(),
            decision: Some(decided.decision.unwrap_or(Decision::UNLIMITED)),
            reason: decided.reason,
            limited_by: decided.limited_by.clone(),
            shadow: Cow::Borrowed(&decided.shadow),
            error: None,
        }
    }

    /// Of a request that nothing was decided about.
    fn undecided(why: &'a str, reason: Option<DenyReason>) -> Self {
        Self {
            is_allowed: false,
            rule: None,
            decision: None,
            reason,
            limited_by: None,
            shadow: Cow::Borrowed(&[]),
            error: Some(why),
        }
    }

    pub(super) fn show(&self, out: &mut Vec<u8>) {
        let counted = self.decision.filter(|decision| !decision.is_unlimited());
        out.extend(b"{\"allowed\":");
        out.extend_from_slice(if self.is_allowed { b"true" } else { b"false" });
        out.extend(b",\"rule\":");
        show_or_null(out, self.rule, json::string);
        out.extend(b",\"limit\":");
        show_or_null(out, counted.map(|of| of.limit), json::number);
        out.extend(b",\"remaining\":");
        show_or_null(out, counted.map(|of| of.remaining), json::number);
        let is_time = |time: &Duration| *time < Duration::MAX;
        let (wait, reset) = (
            self.decision.map(|of| of.wait()).filter(is_time),
            self.decision.map(|of| of.reset_after).filter(is_time),
        );
        out.extend(b",\"retry_after\":");
        show_or_null(out, wait, json::seconds);
        out.extend(b",\"reset_after\":");
        show_or_null(out, reset, json::seconds);
        for (name, text) in [
            (&b",\"reason\":"[..], self.reason.map(DenyReason::name)),
            (
                b",\"limited_by\":",
                self.limited_by.as_ref().map(LimitText::as_str),
            ),
            (b",\"error\":", self.error),
        ] {
            if let Some(text) = text {
                out.extend_from_slice(name);
                json::string(out, text);
            }
        }
        let mut before: &[u8] = b",\"shadow\":[";
        for rule in self.shadow.iter() {
            out.extend_from_slice(before);
            json::string(out, rule);
            before = b",";
        }
        out.extend_from_slice(if self.shadow.is_empty() { b"}" } else { b"]}" });
    }
}

fn show_or_null<T>(out: &mut Vec<u8>, value: Option<T>, show: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => show(out, value),
        None => out.extend(b"null"),
    }
}

/// Why nothing could be decided, and with which status; none if something was.
fn undecided(answered: &Answered<'_>) -> Option<Wrong> {
    let too_much = answered.too_much().map(|what| (413, what.to_string()));
    too_much.or_else(|| Some((503, unavailable(answered.failure()?))))
}

pub(super) fn unavailable(limit: &str) -> String {
    format!("the store can't be asked about {limit:?}, and nothing passes without it")
}
