//! What all protocols share, in parts: what decides, what is told, who may ask, and what is known of it.

use std::sync::Arc;

use tollgate_engine::{Policy, PolicyError};

use crate::credentials::Credentials;
use crate::decision_service::{CounterStore, Decider, InitialLimits};
use crate::drain::ShutdownSignal;
use crate::policy_reload::{Reloadable, Reloader};
use crate::settings::Settings;
use crate::state::SaveProgress;
use crate::telemetry::Telemetry;

/// A service that runs.
pub(crate) struct Service<B: CounterStore> {
    pub(crate) decider: Decider<B>,
    pub(crate) settings: Settings,
    pub(crate) credentials: Credentials,
    pub(crate) monitor: Telemetry,
    /// Whether clients' connections end.
    pub(crate) closing: ShutdownSignal,
    /// Where the policy comes from.
    pub(crate) reloader: Reloader,
    /// How saving goes, if it is saved.
    pub(crate) state: Arc<SaveProgress>,
}

impl<B: CounterStore> Service<B> {
    pub(crate) fn new(
        limits: InitialLimits<B>,
        credentials: Credentials,
        monitor: Telemetry,
        settings: Settings,
    ) -> Self {
        let (log, health) = (monitor.log.clone(), monitor.health.clone());
        Self {
            decider: Decider::new(limits, &settings, &monitor.denials),
            credentials,
            monitor,
            closing: ShutdownSignal::default(),
            reloader: Reloader::new(settings.policy_path.clone(), log, health),
            settings,
            state: Arc::default(),
        }
    }
}

impl<B: CounterStore> Reloadable for Service<B> {
    fn put_in_force(&self, policy: Policy) -> Result<(), PolicyError> {
        for note in self.decider.apply_policy(policy)? {
            // As at the start: who shares limits hears what is lost by that.
            self.monitor.log.warn(&note, &[]);
        }
        Ok(())
    }

    fn policy(&self) -> Arc<Policy> {
        self.decider.engine.policy()
    }

    fn whole_policy(&self) -> Arc<Policy> {
        self.decider.undivided_policy()
    }

    fn reloader(&self) -> &Reloader {
        &self.reloader
    }
}
