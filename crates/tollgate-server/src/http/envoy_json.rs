//! `POST /json`: Envoy's request and response as JSON, compatible with envoyproxy/ratelimit.

use std::borrow::Cow;

use serde::Deserialize;
use tollgate_http::json;

use super::body;
use super::descriptor_json::{self, DescriptorJson};
use super::session::{HttpError, HttpSession, bad_request};
use crate::decision_service::CounterStore;
use crate::rls::{CurrentLimit, DescriptorAnswer, RlsOutcome, RlsRequest, decide_or_fail};

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimitRequest<'b> {
    #[serde(borrow, default)]
    domain: Cow<'b, str>,
    #[serde(borrow, default)]
    descriptors: Vec<DescriptorJson<'b>>,
    #[serde(alias = "hitsAddend", default)]
    hits_addend: u32,
}

impl<B: CounterStore> HttpSession<B> {
    pub(super) async fn envoy(&mut self, body: &[u8]) -> Result<(), HttpError> {
        let asked: RateLimitRequest<'_> = body::parse_body(body).map_err(bad_request)?;
        let entries = asked.descriptors.iter().map(DescriptorJson::entries);
        let entries: Vec<_> = entries.collect();
        let question = RlsRequest {
            domain: &asked.domain,
            descriptors: &descriptor_json::to_descriptors(&asked.descriptors, &entries)?,
            hits_addend: asked.hits_addend,
        };
        let decided = Box::pin(decide_or_fail(&self.service, &question)).await?;
        self.answer.status = if decided.answer.is_allowed { 200 } else { 429 };
        write_response(&mut self.answer.body, &decided);
        Ok(())
    }
}

const fn code(is_allowed: bool) -> &'static str {
    if is_allowed { "OK" } else { "OVER_LIMIT" }
}

/// Writes the response. Zero and empty fields are left out, as in protobuf's JSON mapping.
fn write_response(out: &mut Vec<u8>, decided: &RlsOutcome) {
    json::object(out, |object| {
        let told = code(decided.answer.is_allowed);
        json::string(object.field("overallCode"), told);
        json::array(object.field("statuses"), &decided.statuses, write_status);
        if !decided.headers.is_empty() {
            let headers = object.field("responseHeadersToAdd");
            json::array(headers, &decided.headers, |out, (name, value)| {
                json::object(out, |header| {
                    json::string(header.field("key"), name);
                    json::string(header.field("value"), value);
                });
            });
        }
        let metadata = decided.metadata();
        if !metadata.is_empty() {
            json::object(object.field("dynamicMetadata"), |object| {
                for (name, text) in metadata {
                    json::string(object.field(name), &text);
                }
            });
        }
    });
}

fn write_status(out: &mut Vec<u8>, status: &DescriptorAnswer) {
    json::object(out, |object| {
        json::string(object.field("code"), code(status.is_allowed));
        let limit = status.limit.as_ref();
        object.optional("currentLimit", limit, write_limit);
        if status.remaining > 0 {
            let remaining = u64::from(status.remaining);
            json::number(object.field("limitRemaining"), remaining);
        }
        object.optional("durationUntilReset", limit, |out, limit| {
            out.push(b'"');
            json::seconds(out, limit.reset_after);
            out.extend(b"s\"");
        });
    });
}

fn write_limit(out: &mut Vec<u8>, limit: &CurrentLimit) {
    json::object(out, |object| {
        if limit.requests > 0 {
            let requests = u64::from(limit.requests);
            json::number(object.field("requestsPerUnit"), requests);
        }
        if let Some(unit) = limit.unit {
            json::string(object.field("unit"), &unit.name().to_uppercase());
        }
        object.optional("name", limit.name.as_deref(), json::string);
    });
}
