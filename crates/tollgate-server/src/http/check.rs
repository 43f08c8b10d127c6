//! `POST /v1/check` and `/v1/peek`: decide a request that is described by facts or descriptors.

use std::time::Duration;

use tollgate::Decision;
use tollgate_http::{DenialBody, DenyReason, fields, http_status_of, json, retry_after};

use super::body::{self, CheckRequest};
use super::descriptor_json::{self, DescriptorJson};
use super::response::HttpResponse;
use super::session::{HttpError, HttpSession, bad_request};
use crate::decision_answer::{
    DecisionAnswer, DecisionReport, LimitText, outcome_of_peek, outcome_of_verdict,
    store_unreachable_for, unix_time_for,
};
use crate::decision_service::CounterStore;
use crate::rls::{RlsOutcome, RlsRequest, Undecided, decide_request};
use crate::settings::Settings;

/// Whether a request is charged or only peeked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeMode {
    Charge,
    Peek,
}

impl<B: CounterStore> HttpSession<B> {
    pub(super) async fn check(&mut self, body: &[u8]) -> Result<(), HttpError> {
        let is_list = body.trim_ascii_start().first() == Some(&b'[');
        if is_list {
            return self.check_all(body).await;
        }
        let asked: CheckRequest<'_> = body::parse_body(body).map_err(bad_request)?;
        if asked.descriptors.is_some() {
            let decided = self.decide_descriptors(&asked, ChargeMode::Charge).await?;
            write_rls_response(&mut self.answer, &decided);
            return Ok(());
        }
        let most = self.service.decider.bounds.max_arguments;
        let facts = asked.checked_facts(most).map_err(bad_request)?;
        let settings = &self.service.settings;
        let checked = self
            .service
            .decider
            .check(&facts, &settings.header_dialects)
            .await;
        let verdict = checked.map_err(|full| (503, full.to_string()))?;
        write_response(&mut self.answer, settings, &outcome_of_verdict(&verdict));
        Ok(())
    }

    /// Decides a list in order. Each request has an answer; the status is 200 whatever the decisions are.
    async fn check_all(&mut self, body: &[u8]) -> Result<(), HttpError> {
        let asked: Vec<CheckRequest<'_>> = body::parse_body(body).map_err(bad_request)?;
        let (found, most) = (asked.len(), self.service.decider.bounds.max_batch);
        if found > most {
            let why = format!("{found} requests, more than the {most} that are taken");
            return Err((413, why));
        }
        let mut before = b'[';
        for one in &asked {
            self.answer.body.push(before);
            before = b',';
            if let Err(why) = self.check_one(one).await {
                write_answer(
                    &DecisionReport::default(),
                    Some(&why),
                    &mut self.answer.body,
                );
            }
        }
        if asked.is_empty() {
            self.answer.body.push(b'[');
        }
        self.answer.body.push(b']');
        Ok(())
    }

    /// Decides one request of a list. Its error becomes its answer.
    async fn check_one(&mut self, asked: &CheckRequest<'_>) -> Result<(), String> {
        if asked.descriptors.is_some() {
            let decided = self.decide_descriptors(asked, ChargeMode::Charge).await;
            let decided = decided.map_err(|(_, why)| why)?;
            write_answer(&decided.answer, None, &mut self.answer.body);
            return Ok(());
        }
        let decider = &self.service.decider;
        let facts = asked.checked_facts(decider.bounds.max_arguments)?;
        let checked = decider.check(&facts, &[]).await;
        let verdict = checked.map_err(|full| full.to_string())?;
        let (answered, out) = (outcome_of_verdict(&verdict), &mut self.answer.body);
        match undecided_error(&answered) {
            Some((_, why)) => {
                let reason = Some(answered.reason());
                let report = DecisionReport {
                    reason,
                    ..DecisionReport::default()
                };
                write_answer(&report, Some(&why), out);
            }
            None => write_answer(
                &DecisionReport::of(&answered, self.service.settings.shadow_visibility),
                None,
                out,
            ),
        }
        Ok(())
    }

    pub(super) async fn peek(&mut self, body: &[u8]) -> Result<(), HttpError> {
        let asked: CheckRequest<'_> = body::parse_body(body).map_err(bad_request)?;
        if asked.descriptors.is_some() {
            let decided = self.decide_descriptors(&asked, ChargeMode::Peek).await?;
            write_answer(&decided.answer, None, &mut self.answer.body);
            return Ok(());
        }
        let decider = &self.service.decider;
        let facts = asked
            .checked_facts(decider.bounds.max_arguments)
            .map_err(bad_request)?;
        let Ok(findings) = decider.engine.peek_async(&facts).await;
        let answered = outcome_of_peek(&findings);
        if let Some(wrong) = undecided_error(&answered) {
            return Err(wrong);
        }
        let report = DecisionReport::of(&answered, self.service.settings.shadow_visibility);
        write_answer(&report, None, &mut self.answer.body);
        Ok(())
    }

    /// Decides by descriptors, as for Envoy.
    async fn decide_descriptors(
        &self,
        asked: &CheckRequest<'_>,
        then: ChargeMode,
    ) -> Result<RlsOutcome, HttpError> {
        if !asked.facts.0.is_empty() {
            let why = "descriptors: they are the facts of the request, so send one of both";
            return Err(bad_request(why));
        }
        let all = asked.descriptors.as_deref().unwrap_or_default();
        let entries: Vec<_> = all.iter().map(DescriptorJson::entries).collect();
        let mut descriptors = descriptor_json::to_descriptors(all, &entries)?;
        let most = u32::MAX;
        let hits_addend = u32::try_from(asked.cost.unwrap_or_default())
            .map_err(|_| bad_request(format!("cost: at most {most} if there are descriptors")))?;
        for one in &mut descriptors {
            if then == ChargeMode::Peek {
                (one.cost, one.refund) = (Some(0), false);
            } else if asked.cost == Some(0) {
                // Envoy's hits_addend of 0 means 1. Here a cost of 0 means 0.
                one.cost.get_or_insert(0);
            }
        }
        let question = RlsRequest {
            domain: asked.domain.as_deref().unwrap_or_default(),
            descriptors: &descriptors,
            hits_addend,
        };
        // Boxed: nested in the surrounding futures, its type would exceed the compiler's recursion limit.
        let dialects = &self.service.settings.header_dialects;
        Ok(Box::pin(decide_request(&self.service, &question, dialects)).await?)
    }
}

impl From<Undecided> for HttpError {
    fn from(why: Undecided) -> Self {
        match why {
            Undecided::Invalid(why) => bad_request(why),
            Undecided::Unavailable(_) | Undecided::Full(_) => (503, why.to_string()),
        }
    }
}

/// Writes the response to one request, with header fields and status.
pub(super) fn write_response(
    answer: &mut HttpResponse,
    settings: &Settings,
    answered: &DecisionAnswer<'_>,
) {
    let dialects = &settings.header_dialects;
    if let Some(what) = answered.too_much() {
        return answer.write_problem(413, &what.to_string());
    }
    answered.with_limits(|limits| {
        fields::write(dialects, limits, unix_time_for(dialects), |name, value| {
            answer.field(name, value)
        });
    });
    if !answered.is_allowed {
        let (reason, wait) = (
            answered.reason(),
            write_retry_after(answer, &answered.decision),
        );
        answer.status = http_status_of(reason);
        if reason == DenyReason::Store {
            let refusal = DenialBody {
                reason,
                limit: answered.rule().unwrap_or_default(),
                retry_after: wait,
            };
            answer.content_type = DenialBody::PROBLEM_TYPE;
            return refusal.problem_json(&mut answer.body);
        }
    }
    write_answer(
        &DecisionReport::of(answered, settings.shadow_visibility),
        None,
        &mut answer.body,
    );
}

/// Writes the response to a request that was decided by descriptors.
fn write_rls_response(answer: &mut HttpResponse, decided: &RlsOutcome) {
    for (name, value) in &decided.headers {
        answer.field(name, value);
    }
    let report = &decided.answer;
    if !report.is_allowed {
        answer.status = http_status_of(report.reason.unwrap_or(DenyReason::Rate));
        if let Some(decision) = &report.decision {
            write_retry_after(answer, decision);
        }
    }
    write_answer(report, None, &mut answer.body);
}

/// Writes `retry-after`, if a retry can succeed.
fn write_retry_after(answer: &mut HttpResponse, decision: &Decision) -> Option<u64> {
    let wait = retry_after(decision);
    if let Some(seconds) = wait {
        answer.number_field("retry-after", seconds);
    }
    wait
}

/// Writes an answer as JSON; `error` says why nothing was decided.
pub(super) fn write_answer(report: &DecisionReport<'_>, error: Option<&str>, out: &mut Vec<u8>) {
    let decision = report.decision.as_ref();
    let counted = decision.filter(|decision| !decision.is_unlimited());
    let is_time = |time: &Duration| *time < Duration::MAX;
    json::object(out, |object| {
        let is_allowed: &[u8] = if report.is_allowed { b"true" } else { b"false" };
        object.field("allowed").extend_from_slice(is_allowed);
        object.nullable("rule", report.rule.as_deref(), json::string);
        object.nullable("limit", counted.map(|of| of.limit), json::number);
        object.nullable("remaining", counted.map(|of| of.remaining), json::number);
        let (wait, reset) = (
            decision.map(|of| of.wait_or_max()),
            decision.map(|of| of.reset_after),
        );
        object.nullable("retry_after", wait.filter(is_time), json::seconds);
        object.nullable("reset_after", reset.filter(is_time), json::seconds);
        object.optional("reason", report.reason.map(DenyReason::name), json::string);
        let limit = report.limited_by.as_ref().map(LimitText::as_str);
        object.optional("limited_by", limit, json::string);
        object.optional("error", error, json::string);
        if !report.shadow.is_empty() {
            let rules = report.shadow.iter().map(String::as_str);
            json::array(object.field("shadow"), rules, json::string);
        }
    });
}

/// Why a request is undecided, with its status; `None` if it was decided.
fn undecided_error(answered: &DecisionAnswer<'_>) -> Option<HttpError> {
    let too_much = answered.too_much().map(|what| (413, what.to_string()));
    too_much.or_else(|| Some((503, store_unreachable_for(answered.failure()?))))
}
