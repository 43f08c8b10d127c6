//! Calls that hold something: permits, and costs that are known later. A caller names what it holds, so a call that is
//! repeated isn't a second one.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use tollgate::concurrency::Ending;
use tollgate_engine::{Facts, Verdict};

use super::body::{self, Asked, Pairs};
use super::check::{show, tell};
use super::session::{Session, Wrong, bad};
use crate::holds::Known;
use crate::service::{self, Answered, Store};

/// The longest that something is held without a word.
const LONGEST: u64 = 3_600;

/// What begins to be held.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begun<'b> {
    #[serde(borrow)]
    id: Cow<'b, str>,
    #[serde(borrow, default)]
    facts: Pairs<'b>,
    cost: Option<u64>,
    ttl: Option<u64>,
}

/// What is said of something that is held.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named<'b> {
    #[serde(borrow)]
    id: Cow<'b, str>,
    ttl: Option<u64>,
    spent: Option<u64>,
    outcome: Option<Outcome>,
}

/// How a request ended, which limits that adapt learn from.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It was served.
    #[default]
    Success,
    /// It timed out, or was rejected for overload.
    Dropped,
    /// Neither: it says nothing about capacity.
    Ignored,
}

impl From<Outcome> for Ending {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Dropped => Self::Dropped,
            Outcome::Ignored => Self::Ignored,
        }
    }
}

/// A name that is being decided about, until this is dropped.
struct Undecided<'a, B: Store>(&'a service::Service<B>, &'a [u8]);

impl<B: Store> Drop for Undecided<'_, B> {
    fn drop(&mut self) {
        self.0.holds.decided(self.1);
    }
}

impl<B: Store> Session<B> {
    /// Takes what the rules want held while a request runs: its slots, and what it is thought to cost.
    pub(super) async fn begin_hold(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let Begun {
            id,
            facts,
            cost,
            ttl,
        } = body::read(body).map_err(bad)?;
        let (name, life) = (name_of(&id)?, life(ttl)?);
        let service = std::sync::Arc::clone(&self.service);
        let asked = Asked {
            facts,
            cost,
            ..Asked::default()
        };
        asked.check_facts(service.bounds.arguments).map_err(bad)?;
        let facts = asked.facts();
        let what = what_of(&facts);
        match service.holds.ask_for(&name, &what) {
            Known::Held(answer) => {
                self.answer.body.extend_from_slice(&answer);
                return Ok(());
            }
            Known::Other => {
                return Err((
                    409,
                    format!("id: {id:?} is held by a request of other facts or another cost"),
                ));
            }
            Known::Undecided => {
                return Err((
                    409,
                    format!("another call with the id {id:?} is being decided"),
                ));
            }
            Known::Nothing => {}
        }
        let _undecided = Undecided(&service, &name);
        let verdict = B::decide(&service.engine, &facts).await;
        let is_allowed = verdict.refused().is_none();
        let answered = Answered::of(&verdict, is_allowed);
        if !is_allowed {
            tell(&mut self.answer, &service.dialects, &answered);
            return Ok(());
        }
        show(&mut self.answer.body, &answered);
        let Verdict::Passed(passed) = verdict else {
            return Ok(());
        };
        let told = (what.as_slice(), self.answer.body.as_slice());
        let kept = service
            .holds
            .keep_answered(&name, passed.into_permits(), life, told);
        if let Err(full) = kept {
            service.take_back(&facts).await;
            return Err((503, full.to_string()));
        }
        Ok(())
    }

    /// Holds something for longer.
    pub(super) fn renew_hold(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let named: Named<'_> = body::read(body).map_err(bad)?;
        let name = name_of(&named.id)?;
        if !self.service.holds.renew(&name, life(named.ttl)?) {
            return Err(unknown(&named.id));
        }
        self.answer.body.extend(b"{\"renewed\":true}");
        Ok(())
    }

    /// Ends what is held. To end what isn't held any more is no mistake: the call may be repeated.
    pub(super) fn release_hold(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let named: Named<'_> = body::read(body).map_err(bad)?;
        let held = self.service.holds.take(&name_of(&named.id)?);
        let answer: &[u8] = match held {
            Some(permits) => {
                permits.end(named.outcome.unwrap_or_default().into());
                b"{\"released\":true}"
            }
            None => b"{\"released\":false}",
        };
        self.answer.body.extend_from_slice(answer);
        Ok(())
    }

    /// Tells what a request did cost, and ends what it held.
    pub(super) fn settle_hold(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let named: Named<'_> = body::read(body).map_err(bad)?;
        let spent = named
            .spent
            .ok_or_else(|| bad("spent: it is missing: what the request did cost".to_owned()))?;
        let held = self.service.holds.take(&name_of(&named.id)?);
        let permits = held.ok_or_else(|| unknown(&named.id))?;
        let ending = named.outcome.unwrap_or_default().into();
        self.service.holds.settle(permits, spent, ending);
        self.answer.body.extend(b"{\"settled\":true}");
        Ok(())
    }
}

/// What a call asks for, as bytes: the same call is the same, whatever the order of its facts.
fn what_of(facts: &Facts<'_>) -> Vec<u8> {
    let mut what = service::name_of(facts);
    if let Some(cost) = facts.cost() {
        what.extend(cost.to_le_bytes());
    }
    what
}

fn name_of(id: &str) -> Result<Vec<u8>, Wrong> {
    match id.len() {
        0 => Err(bad("id: it is empty".to_owned())),
        1..=256 => Ok([b"n", id.as_bytes()].concat()),
        _ => Err(bad("id: it is longer than 256 bytes".to_owned())),
    }
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
    (
        404,
        format!(
            "nothing is held by the id {id:?}: it never was, was ended, or wasn't renewed in time"
        ),
    )
}
