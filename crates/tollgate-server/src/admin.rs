//! What operators ask and change while the service runs: by HTTP on the admin listener, with a token.
//!
//! Whatever is asked by a name or from a page that isn't this listener's own is refused first ([`hosts`]), then what
//! there isn't, then whoever doesn't tell the token ([`token`]). Each change is written down, whatever the level of the
//! log is: what was before, what is now, and from where it came.

use std::fmt::Display;

use crate::http::{Request, Session, Wrong, is_json};
use crate::listen::{Address, Peer};
use crate::log::Level;
use crate::secret::Secret;
use crate::service::{Service, Store};
use crate::settings::Settings;
use crate::start_error::StartError;
use crate::tls::{Tls, TlsOn};

mod asked;
mod hosts;
mod keys;
mod limiters;
mod orders;
mod policy;
mod routes;
mod token;

pub use hosts::AdminHost;
pub use token::{AdminToken, admin_token_files};

use hosts::{Hosts, Scheme};
pub(crate) use orders::date;
use routes::Route;
pub(crate) use routes::methods;
pub(crate) use token::{Made, keep};

/// Who may operate a service, and by which names it is reached.
#[derive(Debug)]
pub(crate) struct Admin {
    token: Option<Secret>,
    hosts: Hosts,
}

/// What has begun with a service.
pub(crate) struct Begun {
    pub(crate) admin: Admin,
    /// The file of a token that was made: removed when this is dropped.
    pub(crate) made: Option<Made>,
}

impl Admin {
    /// Whether the listener is where only this machine reaches it, or somebody has said who may.
    pub(crate) fn check(settings: &Settings) -> Result<(), StartError> {
        let Address::Tcp(address) = settings.admin else {
            return Ok(());
        };
        let shows = |tls: &Tls| tls.on.contains(&TlsOn::Admin) && tls.client_authority.is_some();
        let is_closed = match settings.admin_token {
            AdminToken::Nobody | AdminToken::Given(_) => true,
            AdminToken::Made(_) => settings.tls.as_ref().is_some_and(shows),
        };
        if is_closed || address.ip().is_loopback() {
            return Ok(());
        }
        Err(StartError::OpenAdmin(settings.admin.clone()))
    }

    /// Makes the token, once it is known where the service listens. A service that can't have one serves on: nobody
    /// is an operator then.
    pub(crate) fn begin(settings: &Settings, address: Option<&Address>) -> Begun {
        let (token, made) = settings.admin_token.begin(address).unwrap_or_else(|why| {
            let event = "nobody can operate this service: give a token by --admin-token-file";
            settings.log.say(Level::Warn, event, &[("why", &why)]);
            (None, None)
        });
        if let Some(made) = &made {
            let said: [(&str, &dyn Display); 1] = [("file", &made.path().display())];
            settings.log.say(Level::Info, "admin token made", &said);
        }
        let has_tls = |tls: &Tls| tls.on.contains(&TlsOn::Admin);
        let scheme = match &settings.tls {
            Some(tls) if has_tls(tls) => Scheme::Https,
            _ => Scheme::Http,
        };
        let hosts = Hosts::of(address, scheme, settings.admin_hosts.clone());
        let admin = Self { token, hosts };
        Begun { admin, made }
    }

    /// Where the token is.
    pub(crate) fn token_file(&self) -> Option<&std::path::Path> {
        self.token.as_ref().map(Secret::file)
    }

    fn may_operate(&self, request: &Request<'_>) -> Result<(), Wrong> {
        let Some(token) = &self.token else {
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
}

/// Probes are answered to whoever asks and by whatever name: kubelet knows none.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

impl<B: Store> Session<B> {
    /// Answers what operators ask; whether this is one of those.
    pub(crate) async fn administer(
        &mut self,
        request: &Request<'_>,
        from: Peer,
    ) -> Option<Result<(), Wrong>> {
        if is_probe(request.path) {
            return None;
        }
        let hosts = &self.service.admin.hosts;
        // Whoever scrapes reaches it by any name, unless it is for this machine alone.
        if (request.path != "/metrics" || hosts.is_local())
            && let Err(wrong) = hosts.check(request)
        {
            return Some(Err(wrong));
        }
        if !routes::is_for_operators(request.path) {
            return None;
        }
        let done = self.operate(request, from).await;
        // Whatever it is, it isn't kept by anybody on the way, and is nothing else than it says.
        if done.is_ok() {
            self.answer.field("cache-control", "no-store");
        }
        Some(done)
    }

    async fn operate(&mut self, request: &Request<'_>, from: Peer) -> Result<(), Wrong> {
        let route = Route::of(request)?;
        self.service.admin.may_operate(request)?;
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

    /// Tells what came of it.
    fn tell(&mut self, said: &impl serde::Serialize) -> Result<(), Wrong> {
        let written = serde_json::to_writer(&mut self.answer.body, said);
        written.map_err(|error| (500, error.to_string()))
    }
}

impl<B: Store> Service<B> {
    /// Writes down that somebody has changed something.
    fn record(&self, what: &str, from: Peer, fields: &[(&str, &dyn Display)]) {
        let mut all: Vec<(&str, &dyn Display)> = fields.to_vec();
        all.push(("from", &from));
        self.log.record(what, &all);
    }
}
