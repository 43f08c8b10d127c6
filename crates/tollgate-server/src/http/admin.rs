//! The operators' API: HTTP on the admin listener, with a token.
//!
//! A request with a foreign host name or origin is rejected first, then one for an unknown path, then one without the
//! token. Each change is logged at any log level, with the state before and after, and the peer.

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

/// The errors without a configured token, and for a request that doesn't have it.
const OPERATOR_TOKEN_ERRORS: [&str; 2] = [
    "this is for operators, and the service has none: start it with --admin-token-file",
    "this is for operators: send the token of --admin-token-file, or of the file that the service \
     named when it started, as Authorization: Bearer …",
];

/// Health checks are served without a token, and for any host name: kubelet has none.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

impl<B: CounterStore> HttpSession<B> {
    /// Answers an operator's request; `None` if the request is for another route.
    pub(super) async fn answer_operator(
        &mut self,
        request: &Request<'_>,
    ) -> Option<Result<(), HttpError>> {
        if is_probe(request.path) {
            return None;
        }
        let hosts = &self.service.credentials.admin_hosts;
        // Prometheus may use any host name, unless only this machine reaches the listener.
        if (request.path != "/metrics" || hosts.is_local())
            && let Err(wrong) = hosts.check(request.host, request.origin, request.fetch_site)
        {
            return Some(Err(wrong));
        }
        if !is_for_operators(request.path) {
            return None;
        }
        let done = self.run_operation(request).await;
        // No proxy or browser may cache it.
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

    /// Writes an object with one field.
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

    /// Parses an operator's request, and rejects fields that it doesn't take.
    fn read_request<'b>(
        &self,
        body: &'b [u8],
        takes: RequestKind,
    ) -> Result<AdminRequest<'b>, HttpError> {
        let asked: AdminRequest<'b> = parse_body(body).map_err(bad_request)?;
        asked.check(takes, self.service.decider.bounds.max_arguments)?;
        Ok(asked)
    }

    /// Logs an operator's change.
    fn log_change(&self, what: &str, fields: &[(&str, &dyn Display)]) {
        let from: [(&str, &dyn Display); 1] = [("from", &self.peer)];
        self.service
            .monitor
            .log
            .record(what, &[fields, &from].concat());
    }
}

/// Writes a field of an object.
fn write_field(object: &mut Object<'_>, name: &'static str, value: impl Serialize) {
    // Writing to a `Vec` can't fail.
    let _ = serde_json::to_writer(object.field(name), &value);
}
