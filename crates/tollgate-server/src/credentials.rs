//! What clients and operators tell to be answered, on each listener, and what was told instead.

use std::fmt::Display;
use std::sync::Arc;

use crate::address::{Address, Protocol};
use crate::file_reload::FileReloader;
use crate::health::Health;
use crate::operators::{AdminHosts, AdminToken, Scheme, TokenFile};
use crate::secret::Secret;
use crate::settings::Settings;
use crate::start_error::StartError;
use crate::tls::{Certificates, Tls};
use crate::wrong_secrets::WrongSecrets;

/// Who operates by the admin listener, and which secrets are read again. Those of other listeners are among the settings.
pub(crate) struct Credentials {
    /// What an operator has to tell on the admin listener.
    pub(crate) admin_token: Option<Secret>,
    /// By which names the admin listener is reached.
    pub(crate) admin_hosts: AdminHosts,
    /// What was sent instead of secrets.
    pub(crate) wrong_secrets: WrongSecrets,
    /// All that is kept in files and read again.
    pub(crate) file_reloader: Arc<FileReloader>,
}

/// Whether the admin listener is where only this machine reaches it, or somebody has said who may operate.
pub(crate) fn check_admin_exposure(settings: &Settings) -> Result<(), StartError> {
    let Address::Tcp(address) = settings.admin else {
        return Ok(());
    };
    let shows = |tls: &Tls| tls.listeners.contains(&Protocol::Admin) && tls.client_ca.is_some();
    let is_closed = match settings.admin_token {
        AdminToken::Disabled | AdminToken::File(_) => true,
        AdminToken::Generated(_) => settings.tls.as_ref().is_some_and(shows),
    };
    if is_closed || address.ip().is_loopback() {
        return Ok(());
    }
    Err(StartError::OpenAdmin(settings.admin.clone()))
}

impl Credentials {
    /// Makes the operators' token, once it is known where the service listens for them. A service that can't have one serves on:
    /// nobody is an operator then. The file of a token that was made is removed when that is dropped.
    pub(crate) fn load(
        settings: &Settings,
        admin: Option<&Address>,
        certificates: Option<Arc<Certificates>>,
        health: Health,
    ) -> (Self, Option<TokenFile>) {
        let log = &settings.log;
        let (admin_token, made) = settings.admin_token.resolve(admin).unwrap_or_else(|why| {
            let event = "nobody can operate this service: give a token by --admin-token-file";
            log.warn(event, &[("why", &why)]);
            (None, None)
        });
        if let Some(made) = &made {
            let fields: [(&str, &dyn Display); 1] = [("file", &made.path().display())];
            log.info("admin token made", &fields);
        }
        let is_tls_listener = |tls: &Tls| tls.listeners.contains(&Protocol::Admin);
        let scheme = match &settings.tls {
            Some(tls) if is_tls_listener(tls) => Scheme::Https,
            _ => Scheme::Http,
        };
        let own = Self {
            admin_token,
            admin_hosts: AdminHosts::of(admin, scheme, settings.admin_hosts.clone()),
            wrong_secrets: WrongSecrets::new(settings.max_wrong_secrets, log.clone()),
            file_reloader: Arc::new(FileReloader::of(settings, certificates, health)),
        };
        (own, made)
    }
}
