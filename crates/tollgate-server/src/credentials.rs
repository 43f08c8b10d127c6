//! The credentials of the admin listener, the files of all secrets, and the record of wrong secrets.

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

/// The admin listener's credentials, and the reloaded secrets. The secrets of other listeners are in the settings.
pub(crate) struct Credentials {
    /// The operators' token on the admin listener.
    pub(crate) admin_token: Option<Secret>,
    /// The host names of the admin listener.
    pub(crate) admin_hosts: AdminHosts,
    /// The record of wrong secrets.
    pub(crate) wrong_secrets: WrongSecrets,
    /// The reloader of certificates and secrets.
    pub(crate) file_reloader: Arc<FileReloader>,
}

/// Checks that only this machine reaches the admin listener, or that a given token or client certificates authenticate
/// operators.
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
    /// Loads or generates the operators' token, once the admin listener's address is known. A service without a usable
    /// token still serves clients, but no operators. The file of a generated token is removed on drop.
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
