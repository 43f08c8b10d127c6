//! Requests that passed and wait for the service to become ready: how many there may be.

use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::{Decision, Outcome};

use super::denial::Denial;
use crate::DenyReason;

/// As many as may wait, unless said otherwise.
const MOST: usize = 10_000;

/// Those who wait for the service.
#[derive(Debug)]
pub(super) struct Readying {
    most: usize,
    waiting: AtomicUsize,
}

/// A place among those who wait for the service. Dropping it frees the place.
#[derive(Debug)]
pub struct ServiceWait<'a>(&'a AtomicUsize);

impl Default for Readying {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Readying {
    pub(super) const fn new(most: usize) -> Self {
        let waiting = AtomicUsize::new(0);
        Self { most, waiting }
    }

    pub(super) fn wait(&self) -> Result<ServiceWait<'_>, Box<Denial>> {
        // The count guards no other memory.
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = ServiceWait(&self.waiting);
        if before < self.most {
            return Ok(place);
        }
        drop(place);
        let (most, none) = (self.most as u64, std::time::Duration::ZERO);
        let decision = Decision::new(Outcome::Denied, most, 0, none, none);
        let denial = Denial::new(DenyReason::Shed, "requests-waiting", decision);
        Err(Box::new(denial.showing(None)))
    }
}

impl Drop for ServiceWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
