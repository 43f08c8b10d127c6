//! `POST /json`: Envoy's question and answer as JSON, as envoyproxy/ratelimit has it.

use std::borrow::Cow;

use serde::Deserialize;
use tollgate_http::json;

use super::body;
use super::descriptors::{self, AskedDescriptor};
use super::session::{Session, Wrong, bad};
use crate::decider::Store;
use crate::rls::{Decided, Limit, Question, decide};

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
        show(&mut self.answer.body, &decided);
        Ok(())
    }
}

const fn code(is_allowed: bool) -> &'static str {
    if is_allowed { "OK" } else { "OVER_LIMIT" }
}

/// Fields that are zero or empty are left out, as this form of JSON wants it.
fn show(out: &mut Vec<u8>, decided: &Decided) {
    out.extend(b"{\"overallCode\":");
    json::string(out, code(decided.is_allowed));
    out.extend(b",\"statuses\":[");
    for (place, status) in decided.statuses.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        out.extend(b"{\"code\":");
        json::string(out, code(status.is_allowed));
        if let Some(limit) = &status.limit {
            out.extend(b",\"currentLimit\":{");
            show_limit(out, limit);
            out.push(b'}');
        }
        if status.remaining > 0 {
            out.extend(b",\"limitRemaining\":");
            json::number(out, u64::from(status.remaining));
        }
        if let Some(limit) = &status.limit {
            out.extend(b",\"durationUntilReset\":\"");
            json::seconds(out, limit.reset_after);
            out.extend(b"s\"");
        }
        out.push(b'}');
    }
    out.push(b']');
    show_rest(out, decided);
    out.push(b'}');
}

fn show_limit(out: &mut Vec<u8>, limit: &Limit) {
    let start = out.len();
    let begin = |out: &mut Vec<u8>, name: &[u8]| {
        if out.len() > start {
            out.push(b',');
        }
        out.extend_from_slice(name);
    };
    if limit.requests > 0 {
        begin(out, b"\"requestsPerUnit\":");
        json::number(out, u64::from(limit.requests));
    }
    if let Some(unit) = limit.unit {
        begin(out, b"\"unit\":");
        json::string(out, &unit.name().to_uppercase());
    }
    if let Some(name) = &limit.name {
        begin(out, b"\"name\":");
        json::string(out, name);
    }
}

/// What comes beside the statuses: header fields, and metadata.
fn show_rest(out: &mut Vec<u8>, decided: &Decided) {
    let mut before = &b",\"responseHeadersToAdd\":["[..];
    for (name, value) in &decided.headers {
        out.extend_from_slice(before);
        out.extend(b"{\"key\":");
        json::string(out, name);
        out.extend(b",\"value\":");
        json::string(out, value);
        out.push(b'}');
        before = b",";
    }
    if !decided.headers.is_empty() {
        out.push(b']');
    }
    let mut before = &b",\"dynamicMetadata\":{"[..];
    for (name, text) in decided.metadata() {
        out.extend_from_slice(before);
        json::string(out, name);
        out.push(b':');
        json::string(out, &text);
        before = b",";
    }
    if !decided.metadata().is_empty() {
        out.push(b'}');
    }
}
