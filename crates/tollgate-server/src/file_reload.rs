//! Certificates and secrets that change while the service runs: their files are read again every few seconds, and when
//! somebody says so. What can't be used is told, and what was in force before goes on.

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

/// Files are read so often. They are small, and a change may show nowhere but in what they say: Kubernetes changes a
/// link above them, others rename them, and some file systems tell nobody.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// What is kept in files, and read again.
#[derive(Debug)]
pub(crate) struct FileReloader {
    log: Log,
    health: Health,
    certificates: Option<Arc<Certificates>>,
    secrets: Vec<(&'static str, Secret)>,
}

impl FileReloader {
    /// All that these settings name.
    pub(crate) fn of(
        settings: &Settings,
        certificates: Option<Arc<Certificates>>,
        health: Health,
    ) -> Self {
        let operators = match &settings.admin_token {
            AdminToken::File(secret) => Some(secret.clone()),
            // What this process has made nobody else changes.
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

    /// When the certificate ends, in seconds of the Unix epoch; none if there is none.
    pub(crate) fn certificate_not_after(&self) -> Option<i64> {
        self.certificates.as_ref()?.not_after()
    }

    /// Says once which files everybody may read.
    pub(crate) fn warn_of_open_files(&self) {
        let keys = self.certificates.iter().map(|own| own.key().as_path());
        let files = self.secrets.iter().map(|(_, secret)| secret.file());
        for open in keys.chain(files).filter_map(secret::open_file_warning) {
            self.log.warn(&open, &[]);
        }
        // Nothing has changed yet, and what should be known of it is said.
        let _ = self.reload_files();
    }

    /// Reads all files again.
    ///
    /// # Errors
    /// What can't be used; all else is in force.
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
                    // What ended it is told already: other files are in force.
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

    /// Nothing is logged twice.
    fn raise(&self, concern: Concern, level: Level, why: &str) {
        if self.health.raise_concern(concern, why).as_deref() != Some(why) {
            self.log.log(level, why, &[]);
        }
    }
}

/// Reads them again every few seconds, and on SIGHUP. It ends at once if there are none.
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
        // A file system that doesn't answer mustn't keep clients waiting. The reason is told already.
        let own = Arc::clone(&own);
        let _ = spawn_blocking(move || drop(own.reload_files())).await;
    }
}
