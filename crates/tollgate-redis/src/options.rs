//! What was chosen of a client: all that its parts are made by.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Clock;

use crate::address::Address;
use crate::fallback::{Breaker, Fallback, OnEvent, RemoteBackend, StoreEvent};
use crate::host::Time;
use crate::lease::Terms;
use crate::local::Local;

/// Long enough for a healthy store in the same data centre whose machine is busy: with twice as many threads
/// as cores it may wait for its turn for some 10 milliseconds, and a call may wait for two others. Short enough
/// that a request whose store is away is hardly late.
const TIMEOUT: Duration = Duration::from_millis(25);

/// What was chosen.
pub(crate) struct Options {
    pub(crate) address: Address,
    pub(crate) timeout: Duration,
    /// What all keys begin with.
    pub(crate) prefix: String,
    /// How many refusals are remembered.
    pub(crate) near: usize,
    pub(crate) terms: Terms,
    pub(crate) slot_life: Duration,
    /// Instead of the store's clock.
    pub(crate) time: Option<Time>,
    /// Unless it is to be learned.
    pub(crate) nodes: Option<u64>,
    pub(crate) breaker: Breaker,
    pub(crate) on_event: Option<Box<OnEvent>>,
}

impl Options {
    /// What is usual.
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            timeout: TIMEOUT,
            prefix: "tollgate".to_owned(),
            near: 10_000,
            terms: Terms {
                life: Duration::from_secs(1),
                part: 10,
                most_keys: 100_000,
            },
            slot_life: Duration::from_secs(60),
            time: None,
            nodes: None,
            breaker: Breaker::default(),
            on_event: None,
        }
    }

    /// Puts what was chosen for failures in front of a store.
    pub(crate) fn put_fallback_before<B, C, W>(
        &mut self,
        store: B,
        local: Arc<Local<C, W>>,
    ) -> Fallback<B, C, W>
    where
        B: RemoteBackend,
        C: Clock + 'static,
        W: Clock + 'static,
    {
        let on_event = self.on_event.take();
        Fallback::with_local(store, local)
            .breaker(self.breaker)
            .on_event(move |event| {
                log(event);
                if let Some(on_event) = &on_event {
                    on_event(event);
                }
            })
    }
}

fn log(event: &StoreEvent<'_>) {
    match event {
        StoreEvent::Failed { error, untold } => {
            tracing::warn!(target: "tollgate", untold, "rate-limit store failed: {error}");
        }
        StoreEvent::KeyFailed { error, untold } => {
            tracing::warn!(target: "tollgate", untold, "rate-limit store: {error}");
        }
        StoreEvent::FallbackBegan => {
            tracing::warn!(target: "tollgate", "deciding without the rate-limit store");
        }
        StoreEvent::FallbackEnded { after } => {
            tracing::info!(target: "tollgate", ?after, "the rate-limit store answers again");
        }
        StoreEvent::CircuitOpened { stays } => {
            tracing::warn!(target: "tollgate", ?stays, "not asking the rate-limit store");
        }
        StoreEvent::CircuitClosed => {
            tracing::info!(target: "tollgate", "asking the rate-limit store again");
        }
    }
}
