//! What operators ask and change while the service runs: by HTTP on the admin listener, with a token.
//!
//! Whatever is asked by a name or from a page that isn't this listener's own is refused first, then what
//! there isn't, then whoever doesn't tell the token. Each change is written down, whatever the level of the
//! log is: what was before, what is now, and from where it came.

use std::fmt::Display;

use serde::Serialize;
use tollgate_http::json::{self, Object};

use super::body::read;
use super::request::Request;
use super::routes::{Operation, is_for_operators};
use super::session::{Session, Wrong, bad, check_token, is_json};
use crate::decision_service::Store;

mod admin_request;
mod keys;
mod limiters;
mod overrides;
mod policy;

use admin_request::Asked;
pub(super) use admin_request::RequestKind;

/// What is told where there is no operators' token, and to a request that doesn't tell it.
const FOR_OPERATORS: [&str; 2] = [
    "this is for operators, and the service has none: start it with --admin-token-file",
    "this is for operators: send the token of --admin-token-file, or of the file that the service \
     named when it started, as Authorization: Bearer …",
];

/// Probes are answered to whoever asks and by whatever name: kubelet knows none.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

impl<B: Store> Session<B> {
    /// Answers what operators ask; whether this is one of those.
    pub(super) async fn administer(&mut self, request: &Request<'_>) -> Option<Result<(), Wrong>> {
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
        let done = self.operate(request).await;
        // Whatever it is, it isn't kept by anybody on the way, and is nothing else than it says.
        if done.is_ok() {
            self.answer.field("cache-control", "no-store");
        }
        Some(done)
    }

    async fn operate(&mut self, request: &Request<'_>) -> Result<(), Wrong> {
        let operation = Operation::of(request)?;
        let token = self.service.credentials.admin_token.as_ref();
        check_token(request, token, FOR_OPERATORS)?;
        if request.method != "GET" && request.method != "HEAD" {
            is_json(request)?;
        }
        match operation {
            Operation::Rules => self.rules(),
            Operation::Key => self.look_up(Asked::of_query(request.query)?).await,
            Operation::KeyBy => self.look_up(read(&request.body).map_err(bad)?).await,
            Operation::Reset => self.reset(&request.body).await,
            Operation::Order(takes) => self.order(takes, &request.body),
            Operation::Unblock => self.unblock(&request.body),
            Operation::Top => self.top(),
            Operation::Limiters => self.limiters().await,
            Operation::Orders => self.orders(),
            Operation::EndOrder => self.end_order(request.path),
            Operation::Preview => self.preview().await,
            Operation::Reload => self.reload().await,
            Operation::Log => self.log_level(),
            Operation::SetLog => self.set_log_level(&request.body),
        }
    }

    /// Tells what came of it, as the one field of an object.
    #[expect(clippy::unnecessary_wraps, reason = "as all that a route does")]
    pub(super) fn tell_as(
        &mut self,
        name: &'static str,
        said: impl Serialize,
    ) -> Result<(), Wrong> {
        json::object(&mut self.answer.body, |object| put(object, name, said));
        Ok(())
    }

    /// What an operator sends, which may say no more than this.
    fn asked<'b>(&self, body: &'b [u8], takes: RequestKind) -> Result<Asked<'b>, Wrong> {
        let asked: Asked<'b> = read(body).map_err(bad)?;
        asked.check(takes, self.service.decider.bounds.arguments)?;
        Ok(asked)
    }

    /// Writes down that somebody has changed something.
    fn record(&self, what: &str, fields: &[(&str, &dyn Display)]) {
        let from: [(&str, &dyn Display); 1] = [("from", &self.from)];
        self.service
            .monitor
            .log
            .record(what, &[fields, &from].concat());
    }
}

/// Writes a field of an answer.
fn put(object: &mut Object<'_>, name: &'static str, value: impl Serialize) {
    // Nothing fails to be written to bytes.
    let _ = serde_json::to_writer(object.field(name), &value);
}
