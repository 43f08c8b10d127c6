//! What was chosen of a client: all that its parts are made by.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Clock;
use tollgate_engine::backend::{Backend, Breaker, Fallback, Local, StoreEvent};

use crate::address::Address;
use crate::error::StoreError;
use crate::host::Time;
use crate::lease::Terms;
use crate::noted::Noted;

/// Long enough for a healthy store in the same data centre whose machine is busy: with twice as many threads
/// as cores it may wait for its turn for some 10 milliseconds, and a call may wait for two others. Short enough
/// that a request whose store is away is hardly late.
const TIMEOUT: Duration = Duration::from_millis(25);

pub(crate) type Tell = dyn Fn(&StoreEvent<'_>) + Send + Sync;

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
    pub(crate) tell: Option<Box<Tell>>,
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
            tell: None,
        }
    }

    pub(crate) fn guard(&mut self) -> Guard {
        Guard {
            breaker: self.breaker,
            tell: self.tell.take(),
        }
    }
}

/// What was chosen for when the store can't be asked.
pub(crate) struct Guard {
    breaker: Breaker,
    tell: Option<Box<Tell>>,
}

impl Guard {
    /// Puts it in front of a store.
    pub(crate) fn before<B, C, W>(
        self,
        store: Noted<B>,
        local: Arc<Local<C, W>>,
    ) -> Fallback<Noted<B>, C, W>
    where
        B: Backend<Error = StoreError>,
        C: Clock + 'static,
        W: Clock + 'static,
    {
        let tell = self.tell;
        Fallback::with_local(store, local)
            .breaker(self.breaker)
            .on_event(move |event| {
                log(event);
                if let Some(tell) = &tell {
                    tell(event);
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
        other => tracing::info!(target: "tollgate", "{other:?}"),
    }
}
