//! `POST /json`: Envoy's question and answer as JSON, as envoyproxy/ratelimit has it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tollgate_http::json::seconds;

use super::body;
use super::descriptors::{self, AskedDescriptor};
use super::session::{Session, Wrong, bad};
use crate::decider::Store;
use crate::rls::{Decided, Question, Status, decide};

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'b> {
    #[serde(borrow, default)]
    domain: Cow<'b, str>,
    #[serde(borrow, default)]
    descriptors: Vec<AskedDescriptor<'b>>,
    #[serde(alias = "hitsAddend", default)]
    hits_addend: u32,
}

impl<B: Store> Session<B> {
    pub(super) async fn envoy(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Asked<'_> = body::read(body).map_err(bad)?;
        let entries = asked.descriptors.iter().map(AskedDescriptor::entries);
        let entries: Vec<_> = entries.collect();
        let question = Question {
            domain: &asked.domain,
            descriptors: &descriptors::of(&asked.descriptors, &entries)?,
            hits_addend: asked.hits_addend,
        };
        let decided = Box::pin(decide(&self.service, &question)).await?;
        self.answer.status = if decided.is_allowed { 200 } else { 429 };
        self.tell(&shown(&decided))
    }
}

const fn code(is_allowed: bool) -> &'static str {
    if is_allowed { "OK" } else { "OVER_LIMIT" }
}

/// Fields that are zero or empty are left out, as this form of JSON wants it.
fn shown(decided: &Decided) -> Value {
    let statuses: Vec<_> = decided.statuses.iter().map(status).collect();
    let headers = decided.headers.iter();
    let headers: Vec<_> = headers
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect();
    let metadata = decided.metadata().into_iter();
    let metadata = metadata.map(|(name, text)| (name.to_owned(), Value::from(text)));
    let metadata: Map<_, _> = metadata.collect();
    let mut told = json!({"overallCode": code(decided.is_allowed), "statuses": statuses});
    if !headers.is_empty() {
        told["responseHeadersToAdd"] = headers.into();
    }
    if !metadata.is_empty() {
        told["dynamicMetadata"] = metadata.into();
    }
    told
}

fn status(status: &Status) -> Value {
    let mut told = json!({"code": code(status.is_allowed)});
    if status.remaining > 0 {
        told["limitRemaining"] = status.remaining.into();
    }
    let Some(limit) = &status.limit else {
        return told;
    };
    let current = &mut told["currentLimit"];
    *current = json!({});
    if limit.requests > 0 {
        current["requestsPerUnit"] = limit.requests.into();
    }
    if let Some(unit) = limit.unit {
        current["unit"] = unit.name().to_uppercase().into();
    }
    if let Some(name) = &limit.name {
        current["name"] = name.as_str().into();
    }
    let mut time = Vec::new();
    seconds(&mut time, limit.reset_after);
    told["durationUntilReset"] = format!("{}s", String::from_utf8_lossy(&time)).into();
    told
}
