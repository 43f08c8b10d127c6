//! `GET /v1/usage?tenant=acme`: the usage of each limit that applies to these facts.
//!
//! A fact that is given several times is looked up for each value: `tenant=acme&tenant=umbrella`. With `format=lines`
//! each result is a line of JSON.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use tollgate_engine::Facts;
use tollgate_engine::engine::LimitRemaining;
use tollgate_http::json;

use super::body::normalize_fact_name;
use super::session::{HttpError, HttpSession, bad_request};
use crate::decision_answer::store_unreachable_for;
use crate::decision_service::CounterStore;

/// The most facts of one request: all of them are repeated for each of its limits.
const MAX_FACTS: usize = 64;

/// The most bytes of a response, as a client that doesn't read it makes the service buffer it.
const MAX_BYTES: usize = 8 << 20;

/// The parsed query.
struct UsageRequest<'q> {
    /// The fact with several values; if there is none, no fact or a single one.
    varying: Option<(Cow<'q, str>, Vec<Cow<'q, str>>)>,
    others: Vec<(Cow<'q, str>, Cow<'q, str>)>,
    is_lines: bool,
}

impl<B: CounterStore> HttpSession<B> {
    pub(super) async fn usage(&mut self, query: &str) -> Result<(), HttpError> {
        let asked = UsageRequest::parse(query)?;
        let most = self.service.decider.bounds.max_batch;
        let (name, values) = asked
            .varying
            .unwrap_or((Cow::Borrowed(""), vec![Cow::Borrowed("")]));
        if values.len() > most {
            return Err((
                413,
                format!(
                    "{} values of {name}, more than the {most} that are taken",
                    values.len()
                ),
            ));
        }
        self.answer.content_type = if asked.is_lines {
            "application/x-ndjson"
        } else {
            "application/json"
        };
        let mut between: &[u8] = if asked.is_lines { b"" } else { b"[" };
        for value in &values {
            let mut facts = Facts::new();
            for (name, value) in &asked.others {
                facts.set(name, value);
            }
            if !name.is_empty() {
                facts.set(&name, value);
            }
            let Ok(left) = self.service.decider.engine.remaining_async(&facts).await;
            if let Some(unknown) = left.iter().find(|left| !left.is_available) {
                self.answer.body.clear();
                return Err((503, store_unreachable_for(&unknown.rule)));
            }
            for left in left.iter().filter(|left| !left.is_warm_up) {
                self.answer.body.extend_from_slice(between);
                between = if asked.is_lines { b"\n" } else { b"," };
                write_usage(&mut self.answer.body, &facts, left);
            }
            if self.answer.body.len() > MAX_BYTES {
                let why =
                    format!("more than the {MAX_BYTES} bytes of one response: send fewer values");
                return Err((413, why));
            }
        }
        self.answer
            .body
            .extend_from_slice(match (asked.is_lines, between) {
                (true, _) => b"\n",
                (false, b"[") => b"[]",
                (false, _) => b"]",
            });
        Ok(())
    }
}

impl<'q> UsageRequest<'q> {
    fn parse(query: &'q str) -> Result<Self, HttpError> {
        let mut asked = Self {
            varying: None,
            others: Vec::new(),
            is_lines: false,
        };
        let mut named: Vec<(Cow<'q, str>, Vec<Cow<'q, str>>)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (
                normalize_fact_name(percent_decode(name)?),
                percent_decode(value)?,
            );
            if name == "format" {
                asked.is_lines = match &*value {
                    "lines" => true,
                    "list" => false,
                    _ => return Err(bad_request("format: it is lines or list")),
                };
                continue;
            }
            match named.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => named.push((name, vec![value])),
            }
        }
        if named.len() > MAX_FACTS {
            let found = named.len();
            return Err(bad_request(format!(
                "{found} facts, more than the {MAX_FACTS} that are taken"
            )));
        }
        for (name, mut values) in named {
            if values.len() > 1 && asked.varying.is_some() {
                return Err(bad_request(format!(
                    "{name}: only one fact may have several values"
                )));
            }
            if values.len() > 1 {
                asked.varying = Some((name, values));
            } else if let Some(value) = values.pop() {
                asked.others.push((name, value));
            }
        }
        Ok(asked)
    }
}

/// Decodes a text of a URL, in which `%20` and `+` are spaces.
pub(crate) fn percent_decode(text: &str) -> Result<Cow<'_, str>, HttpError> {
    if !text.contains(['%', '+']) {
        return Ok(Cow::Borrowed(text));
    }
    let is_code = |code: &str| {
        let digits = code.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    let decoded = decoded
        .ok()
        .filter(|_| text.split('%').skip(1).all(is_code));
    let decoded = decoded.map(|text| Cow::Owned(text.into_owned()));
    decoded.ok_or_else(|| bad_request(format!("{text}: it isn't percent-encoded text")))
}

/// Writes the usage of one limit: its facts, rule, limit and counts, and when it will be unused again.
fn write_usage(out: &mut Vec<u8>, facts: &Facts<'_>, left: &LimitRemaining) {
    json::object(out, |object| {
        json::object(object.field("facts"), |known| {
            for (name, value) in facts.iter() {
                json::string(known.member(name), value);
            }
        });
        json::string(object.field("rule"), &left.rule);
        json::string(object.field("limit"), &left.kind.to_string());
        let decision = &left.decision;
        if !decision.is_unlimited() {
            let used = decision.limit.saturating_sub(decision.remaining);
            json::number(object.field("of"), decision.limit);
            json::number(object.field("used"), used);
            json::number(object.field("remaining"), decision.remaining);
        }
        json::seconds(object.field("reset_after"), decision.reset_after);
    });
}
