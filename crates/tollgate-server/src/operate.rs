//! What can be done to a service while it runs, whatever keeps its counts: for signals, watchers and operators.

use std::sync::{Arc, PoisonError};

use tollgate_engine::{Policy, PolicyError};

use crate::health::Health;
use crate::log::{Level, Log};
use crate::reload::Reloader;
use crate::service::{Service, Store};
use crate::state::StateTold;

/// A service, to those who don't ask it but change it.
pub(crate) trait Operated: Send + Sync {
    /// Puts another policy in force, a part of it if several share its limits.
    fn put_in_force(&self, policy: Policy) -> Result<(), PolicyError>;

    /// The policy in force: of several that share its limits, this one's part.
    fn policy(&self) -> Arc<Policy>;

    /// The policy in force, as it was given: all of it, if several share its limits.
    fn whole_policy(&self) -> Arc<Policy>;

    fn health(&self) -> &Health;

    fn log(&self) -> &Log;

    fn reloader(&self) -> &Reloader;

    /// Reads certificates and secrets again: why some of them can't be used.
    fn renew(&self) -> Result<(), String>;

    /// When the certificate ends, in seconds of the Unix epoch; none without TLS.
    fn certificate_not_after(&self) -> Option<i64>;

    /// How saving goes; none if no state is kept.
    fn state(&self) -> Option<StateTold>;
}

impl<B: Store> Operated for Service<B> {
    fn put_in_force(&self, policy: Policy) -> Result<(), PolicyError> {
        // Locked until it is in force: of two, the one that is told is the one that came last.
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let divided = policy.divided(self.replicas);
        self.engine.reload(divided.policy)?;
        for note in divided.notes {
            // As at the start: who shares limits hears what is lost by that.
            self.log.say(Level::Warn, &note, &[]);
        }
        *whole = Arc::new(policy);
        Ok(())
    }

    fn policy(&self) -> Arc<Policy> {
        self.engine.policy()
    }

    fn whole_policy(&self) -> Arc<Policy> {
        let whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&whole)
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn reloader(&self) -> &Reloader {
        &self.reloader
    }

    fn renew(&self) -> Result<(), String> {
        self.renewed.renew(&self.log, &self.health)
    }

    fn certificate_not_after(&self) -> Option<i64> {
        self.renewed.certificate_not_after()
    }

    fn state(&self) -> Option<StateTold> {
        self.state.told()
    }
}
