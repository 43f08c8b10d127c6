//! Calls that hold something: permits, and costs that are known later. A caller names what it holds, so a call that is
//! repeated isn't a second one.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use tollgate::concurrency::Ending;
use tollgate::stack::Settlement;
use tollgate_engine::{Facts, Verdict};
use tollgate_http::json;

use super::body::{self, Asked, FactPairs};
use super::check::{show, tell};
use super::request::Request;
use super::session::{Session, Wrong, bad};
use crate::address::Peer;
use crate::decision_answer::{Told, answered};
use crate::decision_service::{Decider, Store, name_of};
use crate::reservations::{Holds, Known};
use crate::settings::ShadowAnswers;

/// The longest that something is held without a word.
const LONGEST: u64 = 3_600;

/// What begins to be held.
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

/// What is said of something that is held.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldUpdate<'b> {
    #[serde(borrow)]
    id: Cow<'b, str>,
    ttl: Option<u64>,
    spent: Option<u64>,
    outcome: Option<Outcome>,
}

/// How a request ended, which limits that adapt learn from.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It was served.
    Success,
    /// It timed out, or was rejected for overload.
    Dropped,
    /// Neither: it says nothing about capacity.
    Ignored,
}

impl HoldUpdate<'_> {
    fn ending(&self) -> Ending {
        match self.outcome {
            Some(Outcome::Success) | None => Ending::Success,
            Some(Outcome::Dropped) => Ending::Dropped,
            Some(Outcome::Ignored) => Ending::Ignored,
        }
    }
}

/// A name that is being decided about, until this is dropped.
struct Undecided<'a>(&'a Holds, &'a [u8]);

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        self.0.decided(self.1);
    }
}

impl<B: Store> Session<B> {
    /// Takes what the rules want held while a request runs: its slots, and what it is thought to cost.
    pub(super) async fn begin_hold(&mut self, request: &Request<'_>) -> Result<(), Wrong> {
        let begun: HoldRequest<'_> = body::read(&request.body).map_err(bad)?;
        let (name, life) = (self.name_of(&begun.id, request)?, life(begun.ttl)?);
        let service = std::sync::Arc::clone(&self.service);
        let asked = Asked {
            facts: begun.facts,
            cost: begun.cost,
            ..Asked::default()
        };
        let (decider, dialects) = (&service.decider, &service.settings.dialects);
        let facts = asked.checked_facts(decider.bounds.arguments).map_err(bad)?;
        let what = what_of(&facts);
        match known(decider, &name, &what, &facts) {
            Known::Held(answer) => {
                // Whoever asks again holds it from then on. If its time ended just now, it is told what it was told.
                let left = decider.holds.lengthen(&name, life).unwrap_or_default();
                write_with_ttl(&mut self.answer.body, &answer, left);
                return Ok(());
            }
            Known::Nothing => {}
            // Before anything is decided or charged.
            taken => return Err(hold_error(&begun.id, &taken)),
        }
        let _undecided = Undecided(&decider.holds, &name);
        let verdict = B::decide(&decider.engine, &facts, dialects).await;
        let answered = answered(&verdict);
        if !answered.is_allowed {
            tell(&mut self.answer, &service.settings, &answered);
            return Ok(());
        }
        let told = Told::of(&answered, ShadowAnswers::Hidden);
        show(&told, None, &mut self.answer.body);
        let Verdict::Passed(passed) = verdict else {
            return Ok(());
        };
        let answer = std::mem::take(&mut self.answer.body);
        let permits = passed.into_permits();
        (decider.holds).hold_with_answer(&name, permits, life, &what, &answer);
        write_with_ttl(&mut self.answer.body, &answer, life);
        Ok(())
    }

    /// Holds something for longer.
    pub(super) fn renew_hold(&mut self, request: &Request<'_>) -> Result<(), Wrong> {
        let named: HoldUpdate<'_> = body::read(&request.body).map_err(bad)?;
        let name = self.name_of(&named.id, request)?;
        let life = life(named.ttl)?;
        if !self.service.decider.holds.renew(&name, life) {
            return Err(unknown(&named.id));
        }
        write_with_ttl(&mut self.answer.body, b"{\"renewed\":true}", life);
        Ok(())
    }

    /// Ends what is held. To end what isn't held any more is no mistake: the call may be repeated.
    pub(super) fn release_hold(&mut self, request: &Request<'_>) -> Result<(), Wrong> {
        let named: HoldUpdate<'_> = body::read(&request.body).map_err(bad)?;
        let name = self.name_of(&named.id, request)?;
        let holds = &self.service.decider.holds;
        let is_released = holds.release(&name, named.ending());
        self.tell_as("released", is_released)
    }

    /// Tells what a request did cost, and ends what it held. Of what ended by itself it may still be told, for a while.
    pub(super) fn settle_hold(&mut self, request: &Request<'_>) -> Result<(), Wrong> {
        let named: HoldUpdate<'_> = body::read(&request.body).map_err(bad)?;
        let spent = named
            .spent
            .ok_or_else(|| bad("spent: it is missing: what the request did cost"))?;
        let name = self.name_of(&named.id, request)?;
        let holds = &self.service.decider.holds;
        let answer: &[u8] = match holds.settle(&name, spent, named.ending()) {
            Some(Settlement::InTime) => b"{\"settled\":true}",
            Some(Settlement::Late) => b"{\"settled\":true,\"late\":true}",
            None => return Err(unknown(&named.id)),
        };
        self.tell_text(answer)
    }

    /// What an id stands for: that of another client is another.
    fn name_of(&self, id: &str, request: &Request<'_>) -> Result<Vec<u8>, Wrong> {
        let id = match id.len() {
            0 => return Err(bad("id: it is empty")),
            1..=256 => id.as_bytes(),
            _ => return Err(bad("id: it is longer than 256 bytes")),
        };
        // Only a token that was looked at says who it is.
        let token = request.bearer();
        let token = token.filter(|_| self.service.settings.client_token.is_some());
        let user = match self.from {
            Peer::Unix { user, .. } => Some(user.to_le_bytes()),
            Peer::Tcp(_) | Peer::Gone => None,
        };
        let mut name = b"n".to_vec();
        let user = user.as_ref().map(<[u8; 4]>::as_slice);
        for part in [token, user, self.certificate.as_deref(), Some(id)] {
            // With its length, so that no two lists of parts are one text.
            let part = part.unwrap_or_default();
            name.extend(part.len().to_le_bytes());
            name.extend(part);
        }
        Ok(name)
    }
}

/// What there is by a name, for one that asks this: what holds nothing needs no room.
fn known<B: Store>(decider: &Decider<B>, name: &[u8], what: &[u8], facts: &Facts<'_>) -> Known {
    match decider.holds.ask_for(name, what, true) {
        Known::Full(_) if !decider.engine.would_hold(facts) => {
            decider.holds.ask_for(name, what, false)
        }
        known => known,
    }
}

/// Why an id can't hold anything now.
fn hold_error(id: &str, taken: &Known) -> Wrong {
    match taken {
        Known::Full(full) => (503, full.to_string()),
        Known::Undecided => (
            409,
            format!("another call with the id {id:?} is being decided"),
        ),
        _ => {
            let why = format!("id: {id:?} is held by a request of other facts or another cost");
            (409, why)
        }
    }
}

/// Writes an answer, which is an object, with the time after which what is held ends, in seconds.
fn write_with_ttl(out: &mut Vec<u8>, answer: &[u8], left: Duration) {
    out.extend_from_slice(answer.strip_suffix(b"}").unwrap_or(answer));
    out.extend(b",\"ttl\":");
    json::seconds(out, left);
    out.push(b'}');
}

/// What a call asks for, as bytes: the same call is the same, whatever the order of its facts.
fn what_of(facts: &Facts<'_>) -> Vec<u8> {
    let mut what = name_of(facts);
    if let Some(cost) = facts.cost() {
        what.extend(cost.to_le_bytes());
    }
    what
}

fn life(seconds: Option<u64>) -> Result<Duration, Wrong> {
    match seconds.unwrap_or(60) {
        seconds @ 1..=LONGEST => Ok(Duration::from_secs(seconds)),
        _ => Err(bad(format!(
            "ttl: it is a number of seconds from 1 to {LONGEST}"
        ))),
    }
}

fn unknown(id: &str) -> Wrong {
    let why = format!(
        "nothing is held by the id {id:?}: it never was, was ended, or wasn't renewed in time"
    );
    (404, why)
}
