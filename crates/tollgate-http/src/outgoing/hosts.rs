//! The hosts that told something: a bounded number of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::Timestamp;
use tollgate::clock::Clock;

use super::host::Host;

/// The hosts that told something. If there are too many, the one whose word is over soonest is forgotten.
#[derive(Debug)]
pub(super) struct Hosts<C: Clock> {
    known: Mutex<HashMap<Box<str>, Arc<Host<C>>>>,
    most: usize,
}

impl<C: Clock> Hosts<C> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            known: Mutex::default(),
            most: most.max(1),
        }
    }

    /// What is known of a host.
    pub(super) fn get(&self, host: &str) -> Option<Arc<Host<C>>> {
        self.lock().get(host).map(Arc::clone)
    }

    /// What is known of a host, which may be new.
    pub(super) fn get_or_add(&self, host: &str, now: Timestamp) -> Arc<Host<C>> {
        let mut known = self.lock();
        if let Some(found) = known.get(host) {
            return Arc::clone(found);
        }
        if known.len() >= self.most {
            known.retain(|_, host| host.over_at(now).is_some());
        }
        if known.len() >= self.most {
            let soonest = known.iter().min_by_key(|(_, host)| host.over_at(now));
            let soonest = soonest.map(|(name, _)| name.clone());
            soonest.and_then(|name| known.remove(&name));
        }
        let new = Arc::new(Host::new());
        known.insert(host.into(), Arc::clone(&new));
        new
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Host<C>>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
