//! Reloads the policy: when its file changes, on a signal, or on an operator's request.
//!
//! A failed reload changes nothing: the previous policy stays in force, and the reason is logged, counted and reported
//! as a concern. Reading and compiling block, so reloads never run on a thread that serves.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate_engine::diff::PolicyDiff;
use tollgate_engine::source::fingerprint;
use tollgate_engine::watch::{FileWatcher, POLL_INTERVAL, read_when_stable};
use tollgate_engine::{LoadError, LoadedPolicy, Policy, PolicyError};

use crate::health::{Concern, Health};
use crate::log::Log;

/// Whether the policy file is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyWatch {
    /// A change is put in force immediately.
    #[default]
    On,
    /// The file is read again only on request.
    Off,
}

/// A service whose policy can be replaced, whatever its backend.
pub(crate) trait Reloadable: Send + Sync {
    /// Puts another policy in force; with several replicas, this one's share.
    fn put_in_force(&self, policy: Policy) -> Result<(), PolicyError>;

    /// The policy in force; with several replicas, this one's share.
    fn policy(&self) -> Arc<Policy>;

    /// The policy in force, before it was divided among replicas.
    fn whole_policy(&self) -> Arc<Policy>;

    fn reloader(&self) -> &Reloader;
}

/// The policy's file, and the outcome of reloads.
#[derive(Debug)]
pub(crate) struct Reloader {
    log: Log,
    health: Health,
    /// `None` if the policy is from no file.
    path: Option<PathBuf>,
    /// The fingerprint of the latest read. Locked during a reload, so that the policy in force is the latest one read.
    last: Mutex<Option<u64>>,
    counts: Mutex<ReloadCounts>,
}

/// The number of reloads, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct ReloadCounts {
    /// Another policy was put in force.
    pub(crate) ok: u64,
    /// The previous policy stayed in force, because of an error.
    pub(crate) rejected: u64,
    /// The file has the policy that is in force already.
    pub(crate) unchanged: u64,
}

impl Reloader {
    pub(crate) fn new(path: Option<PathBuf>, log: Log, health: Health) -> Self {
        Self {
            log,
            health,
            path,
            last: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// The number of reloads, by outcome.
    pub(crate) fn counts(&self) -> ReloadCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a reload would change.
    ///
    /// # Errors
    /// Why the file can't be put in force, as far as that is known before.
    pub(crate) fn preview(&self, service: &dyn Reloadable) -> Result<PolicyDiff, String> {
        let read = self.read_policy()?.map_err(|rejected| rejected.summary())?;
        Ok(PolicyDiff::new(&service.whole_policy(), &read.policy))
    }

    /// Reads the file and puts it in force. `from` names the caller in the log.
    ///
    /// # Errors
    /// Why the previous policy stays in force.
    pub(crate) fn reload(
        &self,
        service: &dyn Reloadable,
        from: &str,
    ) -> Result<PolicyDiff, String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.read_policy().inspect_err(|why| {
            let fields: [(&str, &dyn Display); 2] = [("from", &from), ("why", why)];
            self.log.warn("nothing to reload", &fields);
        })?;
        *last = Some(fingerprint(&read));
        self.apply_reload(service, from, read)
    }

    /// Watches the file from now on, if there is one.
    ///
    /// # Errors
    /// The system can't start a thread.
    pub(crate) fn watch(service: &Arc<dyn Reloadable>) -> std::io::Result<Option<FileWatcher>> {
        let Some(root) = service.reloader().path.clone() else {
            return Ok(None);
        };
        let (own, log) = (Arc::downgrade(service), service.reloader().log.clone());
        let first = vec![root.clone()];
        let read = move |polled: Option<&str>| {
            if let Some(why) = polled {
                let seconds = POLL_INTERVAL.as_secs();
                let event = format!(
                    "the system can't tell of changes: files are looked at every {seconds} s"
                );
                log.warn(&event, &[("why", &why)]);
            }
            loop {
                let looked = own
                    .upgrade()
                    .map(|own| own.reloader().reload_if_changed(&*own));
                match looked {
                    // Nothing notifies of a free file descriptor, so the read is repeated after a while.
                    Some(Err(OutOfDescriptors)) => std::thread::park_timeout(RETRY_AFTER),
                    Some(Ok(files)) => return [vec![root.clone()], files].concat(),
                    None => return vec![root.clone()],
                }
            }
        };
        FileWatcher::start(first, read).map(Some)
    }

    /// Puts the file in force if it differs from the latest read. Returns the files to watch.
    fn reload_if_changed(
        &self,
        service: &dyn Reloadable,
    ) -> Result<Vec<PathBuf>, OutOfDescriptors> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &self.path else {
            return Ok(Vec::new());
        };
        let read = read_when_stable(path);
        let now = fingerprint(&read);
        let sources = match &read {
            Ok(checked) => &checked.sources,
            Err(rejected) => &rejected.sources,
        };
        let files = sources.iter().map(|source| PathBuf::from(source.name()));
        let files = files.collect();
        let before = last.replace(now);
        // Before the first read nobody knows whether the file has changed since it was put in force.
        let is_same = |read: &LoadedPolicy| {
            let diff = PolicyDiff::new(&service.whole_policy(), &read.policy);
            diff.is_empty()
        };
        let is_known = match (before, &read) {
            (None, Ok(read)) => is_same(read),
            (before, _) => before == Some(now),
        };
        if !is_known {
            // The error is in the log.
            let is_retryable = read.as_ref().is_err_and(LoadError::is_retryable);
            let _ = self.apply_reload(service, "file watch", read);
            if is_retryable {
                *last = None;
                return Err(OutOfDescriptors);
            }
        }
        Ok(files)
    }

    /// Puts a policy in force, and records the outcome.
    fn apply_reload(
        &self,
        service: &dyn Reloadable,
        from: &str,
        read: Result<LoadedPolicy, LoadError>,
    ) -> Result<PolicyDiff, String> {
        let read = read.map_err(|rejected| rejected.summary());
        let put = read.and_then(|read| {
            let diff = PolicyDiff::new(&service.whole_policy(), &read.policy);
            // Also if the policy is unchanged: positions in the new file replace the old ones.
            let put = service.put_in_force(read.policy);
            put.map_err(|error| error.to_string())?;
            Ok((diff, read.warnings.len()))
        });
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match &put {
            Ok((diff, _)) if diff.is_empty() => {
                counts.unchanged += 1;
                self.health.clear_concern(Concern::Reload);
                self.log.info("policy unchanged", &[("from", &from)]);
            }
            Ok((diff, warnings)) => {
                counts.ok += 1;
                self.health.clear_concern(Concern::Reload);
                let summary = diff.summary();
                let said: [(&str, &dyn Display); 3] = [
                    ("from", &from),
                    ("changes", &summary),
                    ("warnings", warnings),
                ];
                self.log.info("policy reloaded", &said);
            }
            Err(why) => {
                counts.rejected += 1;
                self.health.raise_concern(Concern::Reload, why.as_str());
                let event = "policy not reloaded, the one before stays in force";
                self.log.error(event, &[("from", &from), ("why", why)]);
            }
        }
        put.map(|(diff, _)| diff)
    }

    /// Reads the file.
    fn read_policy(&self) -> Result<Result<LoadedPolicy, LoadError>, String> {
        let Some(path) = &self.path else {
            return Err("the policy in force is from no file".to_owned());
        };
        Ok(Policy::from_path(path))
    }
}

/// The file couldn't be read for want of file descriptors.
struct OutOfDescriptors;

/// The pause before the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
