//! Reservations over HTTP: permits, and estimated costs that are settled later. Callers choose an id, so that repeating
//! a call is idempotent.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use tollgate::concurrency::PermitOutcome;
use tollgate::stack::SettlementTiming;
use tollgate_engine::{Facts, RequestDecision};
use tollgate_http::json;

use super::body::{self, CheckRequest, FactPairs};
use super::check::{write_answer, write_response};
use super::request::Request;
use super::session::{HttpError, HttpSession, bad_request};
use crate::address::Peer;
use crate::decision_answer::{DecisionReport, outcome_of_verdict};
use crate::decision_service::{CounterStore, Decider, request_key};
use crate::reservations::{NameLookup, Reservations};
use crate::settings::ShadowVisibility;

/// The longest time to live of a reservation without a renewal.
const MAX_TTL_SECONDS: u64 = 3_600;

/// The body of a call that begins a reservation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldRequest<'b> {
    #[serde(borrow)]
    id: Cow<'b, str>,
    #[serde(borrow, default)]
    facts: FactPairs<'b>,
    cost: Option<u64>,
    ttl: Option<u64>,
}

/// The body of a call about an existing reservation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldUpdate<'b> {
    #[serde(borrow)]
    id: Cow<'b, str>,
    ttl: Option<u64>,
    spent: Option<u64>,
    outcome: Option<Outcome>,
}

/// The outcome of a request, from which adaptive limits learn.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It succeeded.
    Success,
    /// It timed out, or was rejected for overload.
    Dropped,
    /// Neither: the outcome says nothing about capacity.
    Ignored,
}

impl HoldUpdate<'_> {
    fn ending(&self) -> PermitOutcome {
        match self.outcome {
            Some(Outcome::Success) | None => PermitOutcome::Success,
            Some(Outcome::Dropped) => PermitOutcome::Dropped,
            Some(Outcome::Ignored) => PermitOutcome::Ignored,
        }
    }
}

/// An id that is being decided, until this is dropped.
struct NameInProgress<'a>(&'a Reservations, &'a [u8]);

impl Drop for NameInProgress<'_> {
    fn drop(&mut self) {
        self.0.finish_lookup(self.1);
    }
}

impl<B: CounterStore> HttpSession<B> {
    /// Begins a reservation: takes the permits and the estimate that the rules require while the request runs.
    pub(super) async fn begin_hold(&mut self, request: &Request<'_>) -> Result<(), HttpError> {
        let begun: HoldRequest<'_> = body::parse_body(&request.body).map_err(bad_request)?;
        let (name, life) = (self.hold_name(&begun.id, request)?, parse_ttl(begun.ttl)?);
        let service = std::sync::Arc::clone(&self.service);
        let asked = CheckRequest {
            facts: begun.facts,
            cost: begun.cost,
            ..CheckRequest::default()
        };
        let (decider, dialects) = (&service.decider, &service.settings.header_dialects);
        let facts = asked
            .checked_facts(decider.bounds.max_arguments)
            .map_err(bad_request)?;
        let what = request_bytes(&facts);
        match look_up_hold(decider, &name, &what, &facts) {
            NameLookup::Held(answer) => {
                // A repeated call extends the reservation. If that expired just now, the original answer is returned
                // with a ttl of 0.
                let left = decider.reservations.extend(&name, life).unwrap_or_default();
                write_with_ttl(&mut self.answer.body, &answer, left);
                return Ok(());
            }
            NameLookup::Nothing => {}
            // Nothing was decided or charged yet.
            taken => return Err(hold_error(&begun.id, &taken)),
        }
        let _undecided = NameInProgress(&decider.reservations, &name);
        let verdict = B::decide(&decider.engine, &facts, dialects).await;
        let answered = outcome_of_verdict(&verdict);
        if !answered.is_allowed {
            write_response(&mut self.answer, &service.settings, &answered);
            return Ok(());
        }
        let told = DecisionReport::of(&answered, ShadowVisibility::Hidden);
        write_answer(&told, None, &mut self.answer.body);
        let RequestDecision::Allowed(passed) = verdict else {
            return Ok(());
        };
        let answer = std::mem::take(&mut self.answer.body);
        let permits = passed.into_permits();
        (decider.reservations).hold_with_answer(&name, permits, life, &what, &answer);
        write_with_ttl(&mut self.answer.body, &answer, life);
        Ok(())
    }

    /// Renews a reservation.
    pub(super) fn renew_hold(&mut self, request: &Request<'_>) -> Result<(), HttpError> {
        let named: HoldUpdate<'_> = body::parse_body(&request.body).map_err(bad_request)?;
        let name = self.hold_name(&named.id, request)?;
        let life = parse_ttl(named.ttl)?;
        if !self.service.decider.reservations.renew(&name, life) {
            return Err(unknown_hold(&named.id));
        }
        write_with_ttl(&mut self.answer.body, b"{\"renewed\":true}", life);
        Ok(())
    }

    /// Releases a reservation. Releasing it again is no error, as the call may be repeated.
    pub(super) fn release_hold(&mut self, request: &Request<'_>) -> Result<(), HttpError> {
        let named: HoldUpdate<'_> = body::parse_body(&request.body).map_err(bad_request)?;
        let name = self.hold_name(&named.id, request)?;
        let holds = &self.service.decider.reservations;
        let is_released = holds.release(&name, named.ending());
        self.write_field("released", is_released)
    }

    /// Settles a reservation with the actual cost. An expired reservation can still be settled for a while.
    pub(super) fn settle_hold(&mut self, request: &Request<'_>) -> Result<(), HttpError> {
        let named: HoldUpdate<'_> = body::parse_body(&request.body).map_err(bad_request)?;
        let spent = named
            .spent
            .ok_or_else(|| bad_request("spent: it is missing: what the request did cost"))?;
        let name = self.hold_name(&named.id, request)?;
        let holds = &self.service.decider.reservations;
        let answer: &[u8] = match holds.settle(&name, spent, named.ending()) {
            Some(SettlementTiming::InTime) => b"{\"settled\":true}",
            Some(SettlementTiming::Late) => b"{\"settled\":true,\"late\":true}",
            None => return Err(unknown_hold(&named.id)),
        };
        self.write_text(answer)
    }

    /// The internal name of an id: different clients have different names for the same id.
    fn hold_name(&self, id: &str, request: &Request<'_>) -> Result<Vec<u8>, HttpError> {
        let id = match id.len() {
            0 => return Err(bad_request("id: it is empty")),
            1..=256 => id.as_bytes(),
            _ => return Err(bad_request("id: it is longer than 256 bytes")),
        };
        // The token identifies the client only if tokens are checked.
        let token = request.bearer();
        let token = token.filter(|_| self.service.settings.http_client_token.is_some());
        let user = match self.peer {
            Peer::Unix { user, .. } => Some(user.to_le_bytes()),
            Peer::Tcp(_) | Peer::Disconnected => None,
        };
        let mut name = b"n".to_vec();
        let user = user.as_ref().map(<[u8; 4]>::as_slice);
        for part in [token, user, self.certificate.as_deref(), Some(id)] {
            // With its length, so that different parts can't make the same name.
            let part = part.unwrap_or_default();
            name.extend(part.len().to_le_bytes());
            name.extend(part);
        }
        Ok(name)
    }
}

/// Looks up an id. A request that needs no permits needs no capacity.
fn look_up_hold<B: CounterStore>(
    decider: &Decider<B>,
    name: &[u8],
    what: &[u8],
    facts: &Facts<'_>,
) -> NameLookup {
    match decider.reservations.look_up(name, what, true) {
        NameLookup::Full(_) if !decider.engine.would_hold(facts) => {
            decider.reservations.look_up(name, what, false)
        }
        known => known,
    }
}

/// Why an id can't be reserved now.
fn hold_error(id: &str, taken: &NameLookup) -> HttpError {
    match taken {
        NameLookup::Full(full) => (503, full.to_string()),
        NameLookup::InProgress => (
            409,
            format!("another call with the id {id:?} is being decided"),
        ),
        _ => {
            let why = format!("id: {id:?} is held by a request of other facts or another cost");
            (409, why)
        }
    }
}

/// Appends the time to live in seconds to an answer, which is a JSON object.
fn write_with_ttl(out: &mut Vec<u8>, answer: &[u8], left: Duration) {
    out.extend_from_slice(answer.strip_suffix(b"}").unwrap_or(answer));
    out.extend(b",\"ttl\":");
    json::seconds(out, left);
    out.push(b'}');
}

/// The request as bytes: the order of facts doesn't matter.
fn request_bytes(facts: &Facts<'_>) -> Vec<u8> {
    let mut what = request_key(facts);
    if let Some(cost) = facts.cost() {
        what.extend(cost.to_le_bytes());
    }
    what
}

fn parse_ttl(seconds: Option<u64>) -> Result<Duration, HttpError> {
    match seconds.unwrap_or(60) {
        seconds @ 1..=MAX_TTL_SECONDS => Ok(Duration::from_secs(seconds)),
        _ => Err(bad_request(format!(
            "ttl: it is a number of seconds from 1 to {MAX_TTL_SECONDS}"
        ))),
    }
}

fn unknown_hold(id: &str) -> HttpError {
    let why = format!(
        "nothing is held by the id {id:?}: it never was, was ended, or wasn't renewed in time"
    );
    (404, why)
}
