//! One connection of HTTP/1: requests found, routed, decided and answered where they are read.

use std::sync::Arc;

use super::answer::Answer;
use super::body::{self, Asked};
use super::request::{self, Found, Most, Request};
use crate::connection::{Heard, Speaks, Then};
use crate::service::{Answered, Service, Store, unix_now};
use tollgate_http::{Dialect, Kind, Refusal, fields, json, retry_after};

/// What can be asked, for machines.
const OPENAPI: &[u8] = include_bytes!("openapi.json");

/// One client's connection.
pub(crate) struct Session<B: Store> {
    pub(super) service: Arc<Service<B>>,
    door: Door,
    pub(super) answer: Answer,
    /// The client was told to go on with its body.
    told_to_go_on: bool,
}

/// Which listener a client came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// The one that anybody may ask.
    Public,
    /// The one for operators and probes.
    Admin,
}

/// A status, and why.
pub(super) type Wrong = (u16, String);

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Check,
    Peek,
    Refund,
    Begin,
    Renew,
    Release,
    Settle,
    Envoy,
    Usage,
    OpenApi,
    Health,
}

impl<B: Store> Session<B> {
    pub(crate) fn new(service: Arc<Service<B>>, door: Door) -> Self {
        Self {
            service,
            door,
            answer: Answer::default(),
            told_to_go_on: false,
        }
    }

    /// Answers one request.
    async fn request(&mut self, request: &Request<'_>) {
        self.answer.clear();
        let route = match route(request, self.door) {
            Ok(route) => route,
            Err((status, why)) => return self.answer.problem(status, &why),
        };
        let done = match route {
            Route::Health => {
                self.answer.media = "text/plain";
                self.answer.body.extend(b"OK\n");
                Ok(())
            }
            Route::Check => self.check(&request.body).await,
            Route::Peek => self.peek(&request.body).await,
            Route::Refund => self.refund(request).await,
            Route::Begin => self.begin_hold(&request.body).await,
            Route::Renew => self.renew_hold(&request.body),
            Route::Release => self.release_hold(&request.body),
            Route::Settle => self.settle_hold(&request.body),
            Route::Envoy => self.envoy(&request.body).await,
            Route::Usage => self.usage(request.query).await,
            Route::OpenApi => {
                self.answer.body.extend_from_slice(OPENAPI);
                Ok(())
            }
        };
        if let Err((status, why)) = done {
            self.answer.problem(status, &why);
        }
    }

    async fn check(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let is_list = body.trim_ascii_start().first() == Some(&b'[');
        if is_list {
            return self.check_all(body).await;
        }
        let asked: Asked<'_> = body::read(body).map_err(bad)?;
        let facts = asked.facts();
        let (answer, dialects) = (&mut self.answer, &self.service.dialects);
        let checked = self
            .service
            .check(&facts, |answered| tell(answer, dialects, answered));
        checked.await.map_err(|full| (503, full.to_string()))
    }

    /// Decides a list, in order: each has an answer, and the status is 200 whatever they are.
    async fn check_all(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Vec<Asked<'_>> = body::read(body).map_err(bad)?;
        let most = self.service.bounds.batch;
        if asked.len() > most {
            return Err((
                413,
                format!(
                    "{} requests, more than the {most} that are taken",
                    asked.len()
                ),
            ));
        }
        self.answer.body.push(b'[');
        for (number, one) in asked.iter().enumerate() {
            if number > 0 {
                self.answer.body.push(b',');
            }
            let facts = one.facts();
            let out = &mut self.answer.body;
            let checked = self
                .service
                .check(&facts, |answered| match undecided(answered) {
                    Some(why) => show_undecided(out, &why),
                    None => show(out, answered),
                });
            if let Err(full) = checked.await {
                show_undecided(&mut self.answer.body, &full.to_string());
            }
        }
        self.answer.body.push(b']');
        Ok(())
    }

    async fn peek(&mut self, body: &[u8]) -> Result<(), Wrong> {
        let asked: Asked<'_> = body::read(body).map_err(bad)?;
        let facts = asked.facts();
        let out = &mut self.answer.body;
        self.service
            .peek(&facts, |answered| show(out, answered))
            .await;
        Ok(())
    }

    async fn refund(&mut self, request: &Request<'_>) -> Result<(), Wrong> {
        self.may_operate(request)?;
        let asked: Asked<'_> = body::read(&request.body).map_err(bad)?;
        self.service.refund(&asked.facts()).await;
        self.answer.body.extend(b"{}");
        Ok(())
    }

    fn may_operate(&self, request: &Request<'_>) -> Result<(), Wrong> {
        let Some(token) = &self.service.token else {
            return Err((
                403,
                "this is for operators: start the service with --http-token-file".to_owned(),
            ));
        };
        let told = request
            .authorization
            .and_then(|field| field.strip_prefix(b"Bearer "));
        if told.is_some_and(|told| token.is(told)) {
            return Ok(());
        }
        Err((
            401,
            "this is for operators: send their token as Authorization: Bearer …".to_owned(),
        ))
    }
}

impl<B: Store> Speaks for Session<B> {
    async fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> Heard {
        let bounds = &self.service.bounds;
        let most = Most {
            head: bounds.head_bytes,
            body: bounds.request_bytes,
        };
        let mut used = 0;
        for _ in 0..bounds.pipeline {
            match request::find(&input[used..], &most) {
                Ok(Found::Whole(request, length)) => {
                    self.told_to_go_on = false;
                    self.request(&request).await;
                    used += length;
                    self.answer
                        .write(out, request.keep_alive, request.method == "HEAD");
                    if !request.keep_alive {
                        return Heard {
                            used,
                            then: Then::Close,
                        };
                    }
                }
                Ok(Found::Part { asks_to_go_on }) => {
                    if asks_to_go_on && !self.told_to_go_on {
                        self.told_to_go_on = true;
                        out.extend(b"HTTP/1.1 100 Continue\r\n\r\n");
                    }
                    return Heard {
                        used,
                        then: Then::Read,
                    };
                }
                Err(wrong) => {
                    self.answer.clear();
                    self.answer.problem(wrong.status(), &wrong.to_string());
                    self.answer.write(out, false, false);
                    return Heard {
                        used,
                        then: Then::Close,
                    };
                }
            }
        }
        Heard {
            used,
            then: Then::Answer,
        }
    }

    fn too_slow(&mut self, out: &mut Vec<u8>) {
        let seconds = self.service.bounds.request_time.as_secs();
        self.answer.clear();
        self.answer
            .problem(408, &format!("the request wasn't sent within {seconds} s"));
        self.answer.write(out, false, false);
    }
}

pub(super) fn bad(why: String) -> Wrong {
    (400, why)
}

/// What a request is about, if it may ask at all.
fn route(request: &Request<'_>, door: Door) -> Result<Route, Wrong> {
    let is_public = door == Door::Public;
    let (method, route) = match request.path {
        "/v1/check" if is_public => ("POST", Route::Check),
        "/v1/peek" if is_public => ("POST", Route::Peek),
        "/v1/reserve" | "/v1/permits" if is_public => ("POST", Route::Begin),
        "/v1/permits/renew" if is_public => ("POST", Route::Renew),
        "/v1/permits/release" if is_public => ("POST", Route::Release),
        "/v1/settle" if is_public => ("POST", Route::Settle),
        "/v1/usage" if is_public => ("GET", Route::Usage),
        "/json" if is_public => ("POST", Route::Envoy),
        "/v1/refund" if is_public => ("POST", Route::Refund),
        "/openapi.json" if is_public => ("GET", Route::OpenApi),
        "/healthcheck" if is_public => ("GET", Route::Health),
        "/healthz" | "/readyz" if !is_public => ("GET", Route::Health),
        path => return Err((404, format!("nothing is at {path}: see GET /openapi.json"))),
    };
    let is_read = method == "GET" && request.method == "HEAD";
    if request.method != method && !is_read {
        return Err((405, format!("{} takes {method}", request.path)));
    }
    if method == "POST" {
        may_post(request)?;
    }
    Ok(route)
}

/// A page of a browser may send a form to any address, of this machine too. It can't say that it is JSON without asking
/// first, and it tells where it is from.
fn may_post(request: &Request<'_>) -> Result<(), Wrong> {
    let media = request.content_type.unwrap_or_default();
    let media = media.split(|byte| *byte == b';').next().unwrap_or_default();
    if !media.trim_ascii().eq_ignore_ascii_case(b"application/json") {
        return Err((415, "send Content-Type: application/json".to_owned()));
    }
    let own = request.host.unwrap_or_default();
    match request.origin {
        None => Ok(()),
        Some(origin) if origin.split(|byte| *byte == b'/').nth(2) == Some(own) => Ok(()),
        Some(_) => Err((403, "requests of other origins aren't answered".to_owned())),
    }
}

/// One answer, with its fields and status.
pub(super) fn tell(answer: &mut Answer, dialects: &[Dialect], answered: &Answered<'_>) {
    if let Some(shown) = answered.shown() {
        fields::write(dialects, &[shown], unix_now(dialects), |name, value| {
            answer.field(name, value)
        });
    }
    if answered.is_allowed {
        return show(&mut answer.body, answered);
    }
    let wait = retry_after(&answered.decision);
    if let Some(seconds) = wait {
        answer.field("retry-after", &seconds.to_string());
    }
    let kind = answered.kind();
    answer.status = kind.status();
    if kind == Kind::Unavailable {
        let limit = answered.rule().unwrap_or_default();
        let refusal = Refusal {
            kind,
            limit,
            retry_after: wait,
        };
        answer.media = Refusal::PROBLEM_TYPE;
        return refusal.problem_json(&mut answer.body);
    }
    show(&mut answer.body, answered);
}

/// One answer as JSON.
pub(super) fn show(out: &mut Vec<u8>, answered: &Answered<'_>) {
    let decision = &answered.decision;
    out.extend(if answered.is_allowed {
        &b"{\"allowed\":true"[..]
    } else {
        b"{\"allowed\":false"
    });
    out.extend(b",\"rule\":");
    match answered.rule() {
        Some(name) => json::string(out, name),
        None => out.extend(b"null"),
    }
    for (name, count) in [
        (&b",\"limit\":"[..], decision.limit),
        (b",\"remaining\":", decision.remaining),
    ] {
        out.extend_from_slice(name);
        if decision.is_unlimited() {
            out.extend(b"null");
        } else {
            json::number(out, count);
        }
    }
    for (name, time) in [
        (&b",\"retry_after\":"[..], decision.retry_after),
        (b",\"reset_after\":", decision.reset_after),
    ] {
        out.extend_from_slice(name);
        if time == std::time::Duration::MAX {
            out.extend(b"null");
        } else {
            json::seconds(out, time);
        }
    }
    out.push(b'}');
}

/// Why nothing could be decided; none if something was.
fn undecided(answered: &Answered<'_>) -> Option<String> {
    let limit = answered.failure()?;
    Some(format!(
        "the store can't be asked about {limit:?}, and nothing passes without it"
    ))
}

/// One answer of a list, of a request that nothing was decided about.
fn show_undecided(out: &mut Vec<u8>, why: &str) {
    out.extend(b"{\"allowed\":false,\"rule\":null,\"limit\":null,\"remaining\":null");
    out.extend(b",\"retry_after\":null,\"reset_after\":null,\"error\":");
    json::string(out, why);
    out.push(b'}');
}
