//! What operators ask and change while the service runs: by HTTP on the admin listener, with a token.
//!
//! Whatever is asked by a name or from a page that isn't this listener's own is refused first, then what
//! there isn't, then whoever doesn't tell the token. Each change is written down, whatever the level of the
//! log is: what was before, what is now, and from where it came.

use std::fmt::Display;

use serde::Serialize;
use tollgate_http::json::{self, Object};

use super::body::parse_body;
use super::request::Request;
use super::routes::{Operation, is_for_operators};
use super::session::{HttpError, HttpSession, bad_request, check_json, check_token};
use crate::decision_service::CounterStore;

mod admin_request;
mod key_lookup;
mod limiters;
mod overrides;
mod policy;

use admin_request::AdminRequest;
pub(super) use admin_request::RequestKind;

/// What is told where there is no operators' token, and to a request that doesn't tell it.
const OPERATOR_TOKEN_ERRORS: [&str; 2] = [
    "this is for operators, and the service has none: start it with --admin-token-file",
    "this is for operators: send the token of --admin-token-file, or of the file that the service \
     named when it started, as Authorization: Bearer …",
];

/// Probes are answered to whoever asks and by whatever name: kubelet knows none.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

impl<B: CounterStore> HttpSession<B> {
    /// Answers what operators ask; whether this is one of those.
    pub(super) async fn answer_operator(
        &mut self,
        request: &Request<'_>,
    ) -> Option<Result<(), HttpError>> {
        if is_probe(request.path) {
            return None;
        }
        let hosts = &self.service.credentials.admin_hosts;
        // Whoever scrapes reaches it by any name, unless it is for this machine alone.
        if (request.path != "/metrics" || hosts.is_local())
            && let Err(wrong) = hosts.check(request.host, request.origin, request.fetch_site)
        {
            return Some(Err(wrong));
        }
        if !is_for_operators(request.path) {
            return None;
        }
        let done = self.run_operation(request).await;
        // Whatever it is, it isn't kept by anybody on the way, and is nothing else than it says.
        if done.is_ok() {
            self.answer.field("cache-control", "no-store");
        }
        Some(done)
    }

    async fn run_operation(&mut self, request: &Request<'_>) -> Result<(), HttpError> {
        let operation = Operation::of(request)?;
        let token = self.service.credentials.admin_token.as_ref();
        check_token(request, token, OPERATOR_TOKEN_ERRORS)?;
        if request.method != "GET" && request.method != "HEAD" {
            check_json(request)?;
        }
        match operation {
            Operation::Rules => self.list_rules(),
            Operation::Key => {
                self.look_up_key(AdminRequest::from_query(request.query)?)
                    .await
            }
            Operation::KeyByBody => {
                self.look_up_key(parse_body(&request.body).map_err(bad_request)?)
                    .await
            }
            Operation::Reset => self.reset(&request.body).await,
            Operation::AddOverride(takes) => self.add_override(takes, &request.body),
            Operation::Unblock => self.remove_block(&request.body),
            Operation::Top => self.top(),
            Operation::Limiters => self.limiters().await,
            Operation::Overrides => self.list_overrides(),
            Operation::RemoveOverride => self.remove_override(request.path),
            Operation::Preview => self.preview_reload().await,
            Operation::Reload => self.reload().await,
            Operation::Log => self.log_level(),
            Operation::SetLog => self.set_log_level(&request.body),
        }
    }

    /// Tells what came of it, as the one field of an object.
    #[expect(clippy::unnecessary_wraps, reason = "as all that a route does")]
    pub(super) fn write_field(
        &mut self,
        name: &'static str,
        said: impl Serialize,
    ) -> Result<(), HttpError> {
        json::object(&mut self.answer.body, |object| {
            write_field(object, name, said)
        });
        Ok(())
    }

    /// What an operator sends, which may say no more than this.
    fn read_request<'b>(
        &self,
        body: &'b [u8],
        takes: RequestKind,
    ) -> Result<AdminRequest<'b>, HttpError> {
        let asked: AdminRequest<'b> = parse_body(body).map_err(bad_request)?;
        asked.check(takes, self.service.decider.bounds.max_arguments)?;
        Ok(asked)
    }

    /// Writes down that somebody has changed something.
    fn log_change(&self, what: &str, fields: &[(&str, &dyn Display)]) {
        let from: [(&str, &dyn Display); 1] = [("from", &self.peer)];
        self.service
            .monitor
            .log
            .record(what, &[fields, &from].concat());
    }
}

/// Writes a field of an answer.
fn write_field(object: &mut Object<'_>, name: &'static str, value: impl Serialize) {
    // Nothing fails to be written to bytes.
    let _ = serde_json::to_writer(object.field(name), &value);
}
