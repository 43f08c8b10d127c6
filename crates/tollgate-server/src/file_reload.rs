//! Reloads certificates and secrets while the service runs: every few seconds, and on request. If a file can't be used,
//! that is logged, and the previous content stays in force.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;

use crate::health::{Concern, Health};
use crate::log::{Level, Log};
use crate::operators::AdminToken;
use crate::secret::{self, Secret};
use crate::settings::Settings;
use crate::tls::{Certificates, ExpiryWarning};

/// How often files are read. They are small, and a change may show only in their content: Kubernetes swaps a symbolic
/// link above them, other tools rename them, and some file systems don't notify.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The files that are reloaded.
#[derive(Debug)]
pub(crate) struct FileReloader {
    log: Log,
    health: Health,
    certificates: Option<Arc<Certificates>>,
    secrets: Vec<(&'static str, Secret)>,
}

impl FileReloader {
    /// The files that the settings name.
    pub(crate) fn of(
        settings: &Settings,
        certificates: Option<Arc<Certificates>>,
        health: Health,
    ) -> Self {
        let operators = match &settings.admin_token {
            AdminToken::File(secret) => Some(secret.clone()),
            // Nobody else changes a token that this process has generated.
            AdminToken::Disabled | AdminToken::Generated(_) => None,
        };
        let secrets = [
            ("resp-password-file", &settings.resp_operator_password),
            ("resp-client-password-file", &settings.resp_client_password),
            ("http-token-file", &settings.http_operator_token),
            ("http-client-token-file", &settings.http_client_token),
            ("admin-token-file", &operators),
        ];
        let some = |(flag, secret): (_, &Option<Secret>)| Some((flag, secret.clone()?));
        Self {
            log: settings.log.clone(),
            health,
            certificates,
            secrets: secrets.into_iter().filter_map(some).collect(),
        }
    }

    /// When the certificate expires, in seconds of the Unix epoch; `None` without TLS.
    pub(crate) fn certificate_not_after(&self) -> Option<i64> {
        self.certificates.as_ref()?.not_after()
    }

    /// Warns about files that everybody may read.
    pub(crate) fn warn_of_open_files(&self) {
        let keys = self.certificates.iter().map(|own| own.key().as_path());
        let files = self.secrets.iter().map(|(_, secret)| secret.file());
        for open in keys.chain(files).filter_map(secret::open_file_warning) {
            self.log.warn(&open, &[]);
        }
        // The first read changes nothing, but reports expiring certificates.
        let _ = self.reload_files();
    }

    /// Reads all files again.
    ///
    /// # Errors
    /// Which files can't be used; all others are in force.
    pub(crate) fn reload_files(&self) -> Result<(), String> {
        let mut wrong = Vec::new();
        if let Some(certificates) = &self.certificates {
            let renewed = certificates.renew();
            if renewed == Ok(true) {
                let until = certificates.not_after_shown();
                self.log.info("certificates reloaded", &[("until", &until)]);
            }
            let why = renewed.err().map(|why| format!("{why}; those before stay"));
            let concern = Concern::Certificate;
            match (why, certificates.ending()) {
                (Some(why), _) => {
                    self.raise(concern, Level::Error, &why);
                    wrong.push(why);
                }
                (None, Some(ending)) => {
                    let level = match ending {
                        ExpiryWarning::Expired(_) => Level::Error,
                        _ => Level::Warn,
                    };
                    self.raise(concern, level, &ending.to_string());
                }
                (None, None) => {
                    // Not logged: "certificates reloaded" was logged with the files that ended the concern.
                    self.health.clear_concern(concern);
                }
            }
        }
        let mut whys = Vec::new();
        for (flag, secret) in &self.secrets {
            match secret.renew() {
                Ok(false) => {}
                Ok(true) => self.log.info("secret reloaded", &[("flag", flag)]),
                Err(why) => whys.push(format!("--{flag} {why}; what it was before stays")),
            }
        }
        if whys.is_empty() {
            if self.health.clear_concern(Concern::Secret) {
                self.log.info("secrets can be read again", &[]);
            }
        } else {
            let why = whys.join("; ");
            self.raise(Concern::Secret, Level::Error, &why);
            wrong.push(why);
        }
        match wrong.as_slice() {
            [] => Ok(()),
            wrong => Err(wrong.join("; ")),
        }
    }

    /// Raises a concern, and logs it if its reason is new.
    fn raise(&self, concern: Concern, level: Level, why: &str) {
        if self.health.raise_concern(concern, why).as_deref() != Some(why) {
            self.log.log(level, why, &[]);
        }
    }
}

/// Reloads files every few seconds, and on SIGHUP. It ends immediately if there are no files.
pub(crate) async fn watch(own: Arc<FileReloader>) {
    if own.certificates.is_none() && own.secrets.is_empty() {
        return;
    }
    let mut hangup = signal(SignalKind::hangup()).ok();
    loop {
        let told = async {
            match &mut hangup {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = told => {}
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
        }
        // On a blocking thread, as a hanging file system must not block clients. Errors are reported already.
        let own = Arc::clone(&own);
        let _ = spawn_blocking(move || drop(own.reload_files())).await;
    }
}
