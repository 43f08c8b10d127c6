//! One connection of HTTP/1: requests found, routed, decided and answered where they are read.

use std::net::IpAddr;
use std::sync::Arc;

use tollgate_engine::backend::Gift;

use super::answer::Answer;
use super::body::{self, Asked};
use super::request::{self, Found, Most, Request};
use crate::connection::{ENOUGH, Heard, Speaks, Then};
use crate::service::{LOST, Service, Store};

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
            if status == 503 {
                // What is missing may be there again at any time.
                self.answer.field("retry-after", "1");
            }
        }
    }

    async fn refund(&mut self, request: &Request<'_>) -> Result<(), Wrong> {
        self.may_operate(request)?;
        let asked: Asked<'_> = body::read(&request.body).map_err(bad)?;
        asked
            .check_facts(self.service.bounds.arguments)
            .map_err(bad)?;
        if self.service.refund(&asked.facts()).await == Gift::Lost {
            return Err((503, LOST.to_owned()));
        }
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
        let told = request.authorization.and_then(|field| {
            let (scheme, told) = field.split_at_checked(b"Bearer ".len())?;
            scheme
                .eq_ignore_ascii_case(b"Bearer ")
                .then(|| told.trim_ascii_start())
        });
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
            if out.len() >= ENOUGH {
                break;
            }
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
                    if used == input.len() {
                        self.answer.shrink();
                    }
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

    fn lets_wait(&self) -> bool {
        self.service.engine.lets_wait()
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
        Some(origin)
            if origin.split(|byte| *byte == b'/').nth(2) == Some(own) && is_no_name(own) =>
        {
            Ok(())
        }
        Some(_) => Err((403, "requests of other origins aren't answered".to_owned())),
    }
}

/// Whether a host is an address, or this machine. Whoever has any other name can have it lead here, and then is of the
/// same origin.
fn is_no_name(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    let has_port = |(_, port): &(&str, &str)| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(has_port);
    let name = name.map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}
