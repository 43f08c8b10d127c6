//! What operators ask and change while the service runs: by HTTP on the admin listener, with a token.
//!
//! Whatever is asked by a name or from a page that isn't this listener's own is refused first, then what
//! there isn't, then whoever doesn't tell the token. Each change is written down, whatever the level of the
//! log is: what was before, what is now, and from where it came.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::request::Request;
use super::session::{Session, Wrong, is_json};
use crate::address::Peer;
use crate::credentials::Credentials;
use crate::decider::Store;
use crate::log::Log;

mod asked;
mod keys;
mod limiters;
mod orders;
mod policy;
mod routes;

use routes::Route;
pub(super) use routes::methods;

fn may_operate(credentials: &Credentials, request: &Request<'_>) -> Result<(), Wrong> {
    let Some(token) = &credentials.admin_token else {
        return Err((
            403,
            "this is for operators, and the service has none: start it with --admin-token-file"
                .to_owned(),
        ));
    };
    if request.bearer().is_some_and(|told| token.is(told)) {
        return Ok(());
    }
    let why = "this is for operators: send the token of --admin-token-file, or of the file that the service \
         named when it started, as Authorization: Bearer …";
    Err((401, why.to_owned()))
}

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
        if !routes::is_for_operators(request.path) {
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
        let (route, from) = (Route::of(request)?, self.from);
        may_operate(&self.service.credentials, request)?;
        if request.method != "GET" && request.method != "HEAD" {
            is_json(request)?;
        }
        match route {
            Route::Rules => self.rules(),
            Route::Key => self.look_up(request.query).await,
            Route::KeyBy => self.look_up_by(&request.body).await,
            Route::Reset => self.reset(&request.body, from).await,
            Route::Order(ordered) => self.order(ordered, &request.body, from),
            Route::Unblock => self.unblock(&request.body, from),
            Route::Top => self.top(),
            Route::Limiters => self.limiters().await,
            Route::Orders => self.orders(),
            Route::EndOrder => self.end_order(request.path, from),
            Route::Preview => self.preview().await,
            Route::Reload => self.reload(from).await,
            Route::Log => self.log_level(),
            Route::SetLog => self.set_log_level(&request.body, from),
        }
    }

    /// Tells what came of it, as the one field of an object.
    pub(super) fn tell_as(
        &mut self,
        name: &str,
        said: &impl serde::Serialize,
    ) -> Result<(), Wrong> {
        self.tell(&BTreeMap::from([(name, said)]))
    }

    /// Tells what came of it.
    fn tell(&mut self, said: &impl serde::Serialize) -> Result<(), Wrong> {
        let written = serde_json::to_writer(&mut self.answer.body, said);
        written.map_err(|error| (500, error.to_string()))
    }
}

/// Writes down that somebody has changed something.
fn record(log: &Log, what: &str, from: Peer, fields: &[(&str, &dyn Display)]) {
    let mut all: Vec<(&str, &dyn Display)> = fields.to_vec();
    all.push(("from", &from));
    log.record(what, &all);
}
