//! What Envoy asks, decided: by trees of descriptors, by rules, or by both.

use bytes::Bytes;
use tollgate_engine::Facts;
use tollgate_engine::engine::DescriptorVerdict;

use super::answer;
use super::call::{Failed, PREFIX, framed};
use super::request::Request;
use crate::service::{Answered, Service, Store};

/// Answers one message.
pub(crate) async fn decide<B: Store>(
    service: &Service<B>,
    message: &[u8],
) -> Result<Bytes, Failed> {
    let request = Request::read(message).map_err(Failed::invalid)?;
    if request.domain.is_empty() {
        return Err(Failed::invalid("the domain is empty"));
    }
    let descriptors = request.descriptors();
    if descriptors.is_empty() {
        return Err(Failed::invalid("there are no descriptors"));
    }
    let most = service.bounds.descriptors;
    if descriptors.len() > most {
        let found = descriptors.len();
        return Err(Failed::invalid(format_args!(
            "{found} descriptors, more than the {most} that are taken"
        )));
    }
    if descriptors.iter().any(|descriptor| descriptor.refund) {
        drop(service.holds.take(&request.name()));
    }
    let mut out = vec![0; PREFIX];
    out.reserve(128);
    let mut by_rules = None;
    if service.engine.decides_by_facts() {
        let facts = facts(&request);
        if descriptors.iter().all(|descriptor| descriptor.refund) {
            service.refund(&facts).await;
        } else {
            let told = service.check(&facts, |answered| {
                Ok(by_rule(&mut out, descriptors.len(), answered)?)
            });
            let is_allowed: bool = told.await?;
            by_rules = Some(is_allowed);
        }
    }
    if by_rules == Some(false) || !service.engine.decides_by_descriptors() {
        if by_rules.is_none() {
            answer::overall(&mut out, true);
        }
        return Ok(framed(out));
    }
    let asked =
        service
            .engine
            .decide_descriptors_async(request.domain, &descriptors, request.hits_addend);
    let Ok(verdict) = asked.await;
    out.truncate(PREFIX);
    by_tree(&mut out, &verdict)?;
    match verdict {
        DescriptorVerdict::Passed(passed) => {
            service.lend_descriptors(&request, passed.into_permits())
        }
        // Of all limits or of none: what the rules took comes back.
        DescriptorVerdict::Refused(_) if by_rules.is_some() => {
            service.refund(&facts(&request)).await
        }
        DescriptorVerdict::Refused(_) => {}
    }
    Ok(framed(out))
}

/// What is known of a request: the entries of all its descriptors, of which the first of a name counts.
fn facts<'m>(request: &Request<'m>) -> Facts<'m> {
    let mut facts = Facts::new();
    for (name, value) in request.entries().iter().rev() {
        facts.set(name, value);
    }
    let cost = request
        .descriptors()
        .first()
        .and_then(|descriptor| descriptor.cost);
    let whole = u64::from(request.hits_addend.max(1));
    facts.costing(cost.unwrap_or(whole))
}

/// Writes what rules have said. Whether it passes; it fails if nobody could be asked.
fn by_rule(out: &mut Vec<u8>, descriptors: usize, answered: &Answered<'_>) -> Result<bool, Failed> {
    if let Some(rule) = answered.failure() {
        return Err(Failed::unavailable(format_args!(
            "the store can't be asked about {rule:?}, and nothing passes without it"
        )));
    }
    answer::overall(out, answered.is_allowed);
    answer::statuses_by_rule(out, descriptors, answered);
    if let Some(rule) = answered.rule() {
        answer::metadata(out, [("rule", rule)]);
    }
    Ok(answered.is_allowed)
}

/// Writes what trees have said.
fn by_tree(out: &mut Vec<u8>, verdict: &DescriptorVerdict) -> Result<(), Failed> {
    if let Some(what) = verdict.too_much {
        return Err(Failed::invalid(what));
    }
    let is_allowed = verdict.refused().is_none();
    if !is_allowed && verdict.fallback == Some(tollgate_engine::policy::OnStoreFailure::Closed) {
        return Err(Failed::unavailable(
            "the store can't be asked, and nothing passes without it",
        ));
    }
    answer::overall(out, is_allowed);
    answer::statuses(out, verdict);
    let decider = verdict
        .decider
        .and_then(|place| verdict.statuses.get(place));
    if let Some(limit) = decider.and_then(|status| status.limit.as_deref()) {
        answer::metadata(out, [("rule", limit)]);
    }
    Ok(())
}
