//! The state that all protocols share: decisions, settings, credentials and telemetry.

use std::sync::Arc;

use tollgate_engine::{Policy, PolicyError};

use crate::credentials::Credentials;
use crate::decision_service::{CounterStore, Decider, InitialLimits};
use crate::drain::ShutdownSignal;
use crate::policy_reload::{Reloadable, Reloader};
use crate::settings::Settings;
use crate::state::SaveProgress;
use crate::telemetry::Telemetry;

/// A running service.
pub(crate) struct Service<B: CounterStore> {
    pub(crate) decider: Decider<B>,
    pub(crate) settings: Settings,
    pub(crate) credentials: Credentials,
    pub(crate) monitor: Telemetry,
    /// The shutdown signal of the clients' connections.
    pub(crate) closing: ShutdownSignal,
    /// Reads the policy again from its file.
    pub(crate) reloader: Reloader,
    /// The outcome of saving state; empty without a state folder.
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
            // Replicas that share limits log what the division rounds off, as at the start.
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
