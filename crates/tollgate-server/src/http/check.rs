//! `POST /v1/check` and `/v1/peek`: what is known of a request, as facts or as descriptors, decided and told.

use std::time::Duration;

use tollgate::Decision;
use tollgate_http::{DenyReason, Refusal, fields, json, retry_after, status_of};

use super::answer::HttpResponse;
use super::body::{self, Asked};
use super::descriptors::{self, DescriptorJson};
use super::session::{Session, Wrong, bad};
use crate::decision_answer::{
    Answered, LimitText, Told, answered, looked_at, unavailable, unix_now,
};
use crate::decision_service::Store;
use crate::rls::{RlsOutcome, RlsRequest, Undecided, ask};
use crate::settings::Settings;

/// Whether a request is charged, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeMode {
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
            let decided = self.by_descriptors(&asked, ChargeMode::Charge).await?;
            write_rls_response(&mut self.answer, &decided);
            return Ok(());
        }
        let most = self.service.decider.bounds.arguments;
        let facts = asked.checked_facts(most).map_err(bad)?;
        let settings = &self.service.settings;
        let checked = self.service.decider.check(&facts, &settings.dialects).await;
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
                show(&Told::default(), Some(&why), &mut self.answer.body);
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
            let decided = self.by_descriptors(asked, ChargeMode::Charge).await;
            let decided = decided.map_err(|(_, why)| why)?;
            show(&decided.told, None, &mut self.answer.body);
            return Ok(());
        }
        let decider = &self.service.decider;
        let facts = asked.checked_facts(decider.bounds.arguments)?;
        let checked = decider.check(&facts, &[]).await;
        let verdict = checked.map_err(|full| full.to_string())?;
        let (answered, out) = (answered(&verdict), &mut self.answer.body);
        match undecided(&answered) {
            Some((_, why)) => {
                let reason = Some(answered.reason());
                let told = Told {
                    reason,
                    ..Told::default()
                };
                show(&told, Some(&why), out);
            }
            None => show(
                &Told::of(&answered, self.service.settings.shadow_answers),
                None,
                out,
            ),
        }
        Ok(())
    }

    pub(super) async fn peek(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Asked<'_> = body::read(body).map_err(bad)?;
        if asked.descriptors.is_some() {
            let decided = self.by_descriptors(&asked, ChargeMode::Look).await?;
            show(&decided.told, None, &mut self.answer.body);
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
        show(&told, None, &mut self.answer.body);
        Ok(())
    }

    /// Decides by descriptors, as Envoy would be answered.
    async fn by_descriptors(
        &self,
        asked: &Asked<'_>,
        then: ChargeMode,
    ) -> Result<RlsOutcome, Wrong> {
        if !asked.facts.0.is_empty() {
            let why = "descriptors: they are the facts of the request, so send one of both";
            return Err(bad(why));
        }
        let all = asked.descriptors.as_deref().unwrap_or_default();
        let entries: Vec<_> = all.iter().map(DescriptorJson::entries).collect();
        let mut descriptors = descriptors::of(all, &entries)?;
        let most = u32::MAX;
        let hits_addend = u32::try_from(asked.cost.unwrap_or_default())
            .map_err(|_| bad(format!("cost: at most {most} if there are descriptors")))?;
        for one in &mut descriptors {
            if then == ChargeMode::Look {
                (one.cost, one.refund) = (Some(0), false);
            } else if asked.cost == Some(0) {
                // Envoy says zero and means one; here it is what it says.
                one.cost.get_or_insert(0);
            }
        }
        let question = RlsRequest {
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
pub(super) fn tell(answer: &mut HttpResponse, settings: &Settings, answered: &Answered<'_>) {
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
    show(
        &Told::of(answered, settings.shadow_answers),
        None,
        &mut answer.body,
    );
}

/// The same of what was decided by descriptors.
fn write_rls_response(answer: &mut HttpResponse, decided: &RlsOutcome) {
    for (name, value) in &decided.headers {
        answer.field(name, value);
    }
    let told = &decided.told;
    if !told.is_allowed {
        answer.status = status_of(told.reason.unwrap_or(DenyReason::Rate));
        if let Some(decision) = &told.decision {
            tell_wait(answer, decision);
        }
    }
    show(told, None, &mut answer.body);
}

/// Tells when to come back, if that helps.
fn tell_wait(answer: &mut HttpResponse, decision: &Decision) -> Option<u64> {
    let wait = retry_after(decision);
    if let Some(seconds) = wait {
        answer.number_field("retry-after", seconds);
    }
    wait
}

/// What is told, as JSON; with why nothing was decided, if that is so.
pub(super) fn show(told: &Told<'_>, error: Option<&str>, out: &mut Vec<u8>) {
    let decision = told.decision.as_ref();
    let counted = decision.filter(|decision| !decision.is_unlimited());
    let is_time = |time: &Duration| *time < Duration::MAX;
    json::object(out, |object| {
        let is_allowed: &[u8] = if told.is_allowed { b"true" } else { b"false" };
        object.field("allowed").extend_from_slice(is_allowed);
        object.nullable("rule", told.rule.as_deref(), json::string);
        object.nullable("limit", counted.map(|of| of.limit), json::number);
        object.nullable("remaining", counted.map(|of| of.remaining), json::number);
        let (wait, reset) = (
            decision.map(|of| of.wait()),
            decision.map(|of| of.reset_after),
        );
        object.nullable("retry_after", wait.filter(is_time), json::seconds);
        object.nullable("reset_after", reset.filter(is_time), json::seconds);
        object.optional("reason", told.reason.map(DenyReason::name), json::string);
        let limit = told.limited_by.as_ref().map(LimitText::as_str);
        object.optional("limited_by", limit, json::string);
        object.optional("error", error, json::string);
        if !told.shadow.is_empty() {
            let rules = told.shadow.iter().map(String::as_str);
            json::array(object.field("shadow"), rules, json::string);
        }
    });
}

/// Why nothing could be decided, and with which status; none if something was.
fn undecided(answered: &Answered<'_>) -> Option<Wrong> {
    let too_much = answered.too_much().map(|what| (413, what.to_string()));
    too_much.or_else(|| Some((503, unavailable(answered.failure()?))))
}
