//! One HTTP/1 connection: requests are parsed, routed, decided and answered where they are read.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tollgate::Timestamp;
use tollgate_engine::backend::RefundResult;

use super::body::{self, CheckRequest};
use super::request::{self, ParsedRequest, Request, RequestBounds};
use super::response::HttpResponse;
use super::routes::{self, Route};
use crate::address::{Peer, Protocol};
use crate::connection::{ByteProtocol, InputProgress, TimeLimits};
use crate::decision_answer::STORE_UNREACHABLE;
use crate::decision_service::CounterStore;
use crate::drain::SHUTTING_DOWN;
use crate::metrics::{self, MetricsFormat};
use crate::protocol_errors::{ErrorKind, ErrorSource};
use crate::secret::Secret;
use crate::service::Service;
use crate::settings::DateHeader;
use crate::wrong_secrets::MAX_TRIES;

#[cfg(test)]
mod tests;

/// The OpenAPI description of the clients' API.
const OPENAPI: &[u8] = include_bytes!("openapi.json");

/// One client's connection.
pub(crate) struct HttpSession<B: CounterStore> {
    pub(crate) service: Arc<Service<B>>,
    /// The listener of the connection: for clients, for operators and health checks, or for Prometheus and health
    /// checks.
    protocol: Protocol,
    errors: ErrorSource,
    pub(super) peer: Peer,
    /// The client's certificate, if one was requested.
    pub(super) certificate: Option<Box<[u8]>>,
    wrong_tokens: u8,
    pub(crate) answer: HttpResponse,
    /// The interim response `100 Continue` was sent.
    has_sent_continue: bool,
    /// The service stops: the response that leaves no input behind announces the close.
    is_closing: bool,
}

/// A status, and the reason.
pub(crate) type HttpError = (u16, String);

impl<B: CounterStore> HttpSession<B> {
    pub(crate) fn new(
        service: Arc<Service<B>>,
        protocol: Protocol,
        from: Peer,
        errors: ErrorSource,
    ) -> Self {
        Self {
            service,
            protocol,
            peer: from,
            certificate: None,
            wrong_tokens: 0,
            errors,
            answer: HttpResponse::default(),
            has_sent_continue: false,
            is_closing: false,
        }
    }

    /// Answers one request.
    async fn request(&mut self, request: &Request<'_>) {
        self.answer.clear();
        let operated = match self.protocol {
            // Boxed, as connections are many and operators few.
            Protocol::Admin => Box::pin(self.answer_operator(request)).await,
            _ => None,
        };
        let is_operated = operated.is_some();
        let done = match operated {
            Some(done) => done,
            None => self.respond(request).await,
        };
        if let Err(wrong) = done {
            if wrong.0 == 405 {
                let methods = routes::allowed_methods(request.path, self.protocol);
                self.answer.field("allow", &methods);
            }
            self.write_error(&wrong);
        }
        if is_operated {
            self.answer.field("x-content-type-options", "nosniff");
        }
    }

    /// Answers a request that isn't an operator's.
    async fn respond(&mut self, request: &Request<'_>) -> Result<(), HttpError> {
        let route = Route::of(request, self.protocol);
        if !route.as_ref().is_ok_and(|route| route.is_open()) {
            self.authorize_client(request)?;
        }
        let route = route?;
        if request.method == "POST" {
            check_post(request)?;
        }
        match route {
            Route::Health => {
                self.answer.content_type = "text/plain";
                self.write_text(b"OK\n")
            }
            Route::Ready => self.write_readiness(),
            // Boxed: the future of every request would be as large as this.
            Route::Metrics => Box::pin(self.metrics(request.accept)).await,
            Route::Check => self.check(&request.body).await,
            Route::Peek => self.peek(&request.body).await,
            Route::Refund => self.refund(request).await,
            Route::Reserve => self.begin_hold(request).await,
            Route::Renew => self.renew_hold(request),
            Route::Release => self.release_hold(request),
            Route::Settle => self.settle_hold(request),
            Route::Envoy => self.envoy(&request.body).await,
            Route::Usage => self.usage(request.query).await,
            Route::OpenApi => self.write_text(OPENAPI),
        }
    }

    /// Writes an error as the last response on the connection.
    fn write_last(&mut self, wrong: HttpError, out: &mut Vec<u8>) {
        self.answer.clear();
        self.write_error(&wrong);
        self.answer.write(out, false, false);
    }

    /// Writes the response to a request; `rest` is the input behind it. Returns whether the connection is kept.
    fn finish(&mut self, request: &Request<'_>, rest: &[u8], out: &mut Vec<u8>) -> bool {
        let is_last = (self.is_closing && rest.is_empty()) || self.wrong_tokens >= MAX_TRIES;
        let keep_alive = request.keep_alive && !is_last;
        if keep_alive && request.is_http_1_0 {
            self.answer.field("connection", "keep-alive");
        }
        self.answer.write(out, keep_alive, request.method == "HEAD");
        keep_alive
    }

    /// Delays the response to a wrong token after many of them; a connection has only a few tries.
    #[cold]
    async fn delay_wrong_token(&mut self) {
        self.wrong_tokens = self.wrong_tokens.saturating_add(1);
        let guesses = &self.service.credentials.wrong_secrets;
        let delay = guesses.record_wrong_secret(self.protocol, self.peer);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    fn write_error(&mut self, (status, why): &HttpError) {
        self.answer.write_problem(*status, why);
        match status {
            401 => self.answer.field("www-authenticate", "Bearer"),
            415 => self.answer.field("accept-encoding", "identity"),
            // A missing dependency may be back at any time.
            503 => self.answer.field("retry-after", "1"),
            _ => {}
        }
    }

    /// Checks that the client may send requests at all.
    fn authorize_client(&self, request: &Request<'_>) -> Result<(), HttpError> {
        let Some(clients) = self.service.settings.http_client_token.as_ref() else {
            return Ok(());
        };
        let operators = self.service.settings.http_operator_token.as_ref();
        let told = request.bearer();
        let is_known = told.is_some_and(|told| {
            clients.matches(told) | operators.is_some_and(|operators| operators.matches(told))
        });
        if is_known || self.protocol != Protocol::Http {
            return Ok(());
        }
        let why = "requests need a token: send it as Authorization: Bearer …";
        Err((401, why.to_owned()))
    }

    async fn refund(&mut self, request: &Request<'_>) -> Result<(), HttpError> {
        self.authorize_operator(request)?;
        let asked: CheckRequest<'_> = body::parse_body(&request.body).map_err(bad_request)?;
        let decider = &self.service.decider;
        let facts = asked
            .checked_facts(decider.bounds.max_arguments)
            .map_err(bad_request)?;
        if decider.refund(&facts).await == RefundResult::Lost {
            return Err((503, STORE_UNREACHABLE.to_owned()));
        }
        self.write_text(b"{}")
    }

    /// Writes a text as the body.
    #[expect(clippy::unnecessary_wraps, reason = "as all that a route does")]
    pub(super) fn write_text(&mut self, text: &[u8]) -> Result<(), HttpError> {
        self.answer.body.extend_from_slice(text);
        Ok(())
    }

    /// Whether clients may be sent here, and current concerns.
    fn write_readiness(&mut self) -> Result<(), HttpError> {
        let health = &self.service.monitor.health;
        if !health.is_ready() {
            self.answer.status = 503;
        }
        let told = health.to_json();
        self.write_text(told.as_bytes())
    }

    /// Renders all metrics on a blocking thread, as that visits all keys.
    async fn metrics(&mut self, accept: Option<&[u8]>) -> Result<(), HttpError> {
        let form = MetricsFormat::negotiate(accept);
        let service = Arc::clone(&self.service);
        let turn = Arc::clone(&service.monitor.scrape_lock).lock_owned().await;
        // The lock is released when the text is rendered, even if the client has left before: otherwise clients that
        // disconnect early could start any number of concurrent scrapes.
        let render = move || {
            let text = metrics::render(service, form);
            drop(turn);
            text
        };
        let rendered = spawn_blocking(render).await;
        let text = rendered.map_err(|error| (500, format!("metrics weren't read: {error}")))?;
        self.answer.content_type = form.content_type();
        self.answer.body = text.into_bytes();
        Ok(())
    }

    fn authorize_operator(&self, request: &Request<'_>) -> Result<(), HttpError> {
        let told = [
            "this is for operators: start the service with --http-token-file",
            "this is for operators: send their token as Authorization: Bearer …",
        ];
        check_token(
            request,
            self.service.settings.http_operator_token.as_ref(),
            told,
        )
    }
}

impl<B: CounterStore> ByteProtocol for HttpSession<B> {
    fn client_certificate(&mut self, certificate: &[u8]) {
        self.certificate = Some(certificate.into());
    }

    fn time_limits(&self) -> TimeLimits {
        self.service.decider.bounds.patience()
    }

    fn begin_batch(&mut self) -> Timestamp {
        let now = self.service.monitor.measured.now();
        if self.service.settings.http_date == DateHeader::On {
            self.answer.refresh_date(now);
        }
        now
    }

    async fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> InputProgress {
        let bounds = &self.service.decider.bounds;
        let most = RequestBounds {
            head: bounds.head_bytes,
            body: bounds.request_bytes,
        };
        match request::parse_request(input, &most) {
            Ok(ParsedRequest::Complete(request, length)) => {
                self.has_sent_continue = false;
                self.request(&request).await;
                if self.answer.status == 401 && request.authorization.is_some() {
                    Box::pin(self.delay_wrong_token()).await;
                }
                if self.finish(&request, &input[length..], out) {
                    InputProgress::Answered(length)
                } else {
                    InputProgress::Close(1)
                }
            }
            Ok(ParsedRequest::Incomplete { asks_to_go_on }) => {
                if input.is_empty() {
                    self.answer.shrink();
                }
                if asks_to_go_on && !self.has_sent_continue {
                    self.has_sent_continue = true;
                    out.extend(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                InputProgress::Incomplete
            }
            Err(wrong) => {
                self.errors.record_unreadable(wrong.is_too_large(), &wrong);
                self.write_last((wrong.status(), wrong.to_string()), out);
                InputProgress::Close(0)
            }
        }
    }

    fn record_batch(&mut self, since: Timestamp, requests: u64) {
        if self.protocol == Protocol::Http {
            let measured = &self.service.monitor.measured;
            measured.record_requests(Protocol::Http, since, requests);
        }
    }

    fn may_wait(&self) -> bool {
        self.service.decider.engine.has_waiting_rules()
    }

    fn write_timeout(&mut self, out: &mut Vec<u8>) {
        let seconds = self.service.decider.bounds.request_timeout.as_secs();
        let why = format!("the request wasn't sent within {seconds} s");
        self.errors.record(ErrorKind::Timeout, &why);
        self.write_last((408, why), out);
    }

    const ANNOUNCES_CLOSE: bool = true;

    fn announce_close(&mut self) {
        self.is_closing = true;
    }

    fn ends_first(&mut self, out: &mut Vec<u8>) {
        self.write_last((503, SHUTTING_DOWN.to_owned()), out);
    }
}

pub(crate) fn bad_request(why: impl Into<String>) -> HttpError {
    (400, why.into())
}

/// Protects against cross-site requests: a browser's page may send a form to any address, also of this machine. It
/// can't send JSON without a preflight request, and it states its origin.
fn check_post(request: &Request<'_>) -> Result<(), HttpError> {
    check_json(request)?;
    let own = request.host.unwrap_or_default();
    match request.origin {
        None => Ok(()),
        Some(origin)
            if origin.split(|byte| *byte == b'/').nth(2) == Some(own)
                && is_ip_or_localhost(own) =>
        {
            Ok(())
        }
        Some(_) => Err((403, "requests of other origins aren't answered".to_owned())),
    }
}

/// Checks the token of a request; `none` and `wrong` are the errors without a configured token, and for a wrong one.
pub(super) fn check_token(
    request: &Request<'_>,
    token: Option<&Secret>,
    [none, wrong]: [&str; 2],
) -> Result<(), HttpError> {
    match token {
        None => Err((403, none.to_owned())),
        Some(token) if request.bearer().is_some_and(|told| token.matches(told)) => Ok(()),
        Some(_) => Err((401, wrong.to_owned())),
    }
}

/// Checks that the body is declared as uncompressed JSON.
pub(crate) fn check_json(request: &Request<'_>) -> Result<(), HttpError> {
    let encoding = request.content_encoding.unwrap_or(b"identity");
    if !encoding.eq_ignore_ascii_case(b"identity") {
        let why = "send the body as it is: no Content-Encoding is understood";
        return Err((415, why.to_owned()));
    }
    let media = request.content_type.unwrap_or_default();
    let media = media.split(|byte| *byte == b';').next().unwrap_or_default();
    if media.trim_ascii().eq_ignore_ascii_case(b"application/json") {
        return Ok(());
    }
    Err((415, "send Content-Type: application/json".to_owned()))
}

/// Whether a host is an IP address or localhost. Any other name could be pointed here by its owner (DNS rebinding),
/// whose pages would then have the same origin.
fn is_ip_or_localhost(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    let has_port = |(_, port): &(&str, &str)| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(has_port);
    let name = name.map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}
