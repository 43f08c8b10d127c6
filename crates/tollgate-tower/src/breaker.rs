//! A layer for clients that stops calling what fails, and tries it again later with a few calls.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use tollgate::clock::{Clock, Monotonic};
use tollgate::concurrency::PermitOutcome;
use tollgate_adaptive::breaker::CircuitBreaker;
use tower_layer::Layer;
use tower_service::Service;

use crate::BoxError;
use crate::client_layer::{
    CallPolicy, ClientLayer, LayeredService, ReadyCall, ResponseBoxFuture, ending_of_error,
    status_of,
};

/// Makes no call while a [`Breaker`] is open: it fails at once with [`Open`](tollgate_adaptive::breaker::Open).
///
/// An answer of 500 or above, and an error of the client, are failures. 429 says nothing, as the one that is called works and
/// only wants fewer calls, and so does an error of a layer inside that kept the call back; all other answers are successes. [`classify_status`](Self::classify_status) says otherwise. What counts is the head of the
/// answer. To make the client ready is part of the call, as it may connect then.
///
/// A call that is dropped says nothing, so a layer that times calls out belongs inside of this one.
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use http::{Request, Response};
/// use tollgate_adaptive::breaker::{CircuitBreaker, Thresholds};
/// use tollgate_tower::BreakerLayer;
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// # let executor = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # executor.block_on(async {
/// // In place of a client of hyper:
/// let client = service_fn(|_: Request<()>| async {
///     Ok::<_, Infallible>(Response::builder().status(500).body("down").expect("a status"))
/// });
/// let breaker = Arc::new(CircuitBreaker::new(Thresholds { min_calls: 3, ..Thresholds::default() }));
/// let mut client = ServiceBuilder::new().layer(BreakerLayer::with_breaker(breaker)).service(client);
/// for _ in 0..3 {
///     assert_eq!(client.call(Request::new(())).await?.status(), 500);
/// }
/// let error = client.call(Request::new(())).await.unwrap_err();
/// assert!(error.is::<tollgate_adaptive::breaker::CircuitOpen>());
/// # Ok::<(), tollgate_tower::BoxError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[derive_where::derive_where(Clone)]
pub struct BreakerLayer<C: Clock = Monotonic> {
    breaker: Arc<CircuitBreaker<C>>,
    #[debug(skip)]
    ending_of: fn(StatusCode) -> PermitOutcome,
}

impl<C: Clock> BreakerLayer<C> {
    /// By this breaker, which others may share: all that call the same backend should.
    pub fn with_breaker(breaker: Arc<CircuitBreaker<C>>) -> Self {
        Self {
            breaker,
            ending_of: default_ending,
        }
    }

    /// What an answer of a status means.
    #[must_use]
    pub fn classify_status(mut self, means: fn(StatusCode) -> PermitOutcome) -> Self {
        self.ending_of = means;
        self
    }
}

fn default_ending(status: StatusCode) -> PermitOutcome {
    match status {
        StatusCode::TOO_MANY_REQUESTS => PermitOutcome::Ignored,
        status if status.is_server_error() => PermitOutcome::Dropped,
        _ => PermitOutcome::Success,
    }
}

impl<S, C: Clock> Layer<S> for BreakerLayer<C> {
    type Service = LayeredService<S, ClientLayer<Self>>;

    fn layer(&self, inner: S) -> Self::Service {
        LayeredService::new(inner, ClientLayer(self.clone()))
    }
}

impl<S, I, O, C> CallPolicy<S, I, O> for BreakerLayer<C>
where
    S: Service<Request<I>, Response = Response<O>, Error: Into<BoxError>, Future: Send>
        + Send
        + 'static,
    I: Send + 'static,
    C: Clock + 'static,
{
    fn send(self, client: S, request: Request<I>) -> ResponseBoxFuture<O> {
        Box::pin(async move {
            let call = self.breaker.try_call()?;
            let answer = ReadyCall::new(client, request).await.map_err(Into::into);
            let ending = match &answer {
                Ok(answer) => (self.ending_of)(status_of(answer)),
                Err(error) => ending_of_error(error),
            };
            match ending {
                PermitOutcome::Success => call.success(),
                PermitOutcome::Dropped => call.failure(),
                PermitOutcome::Ignored => call.ignored(),
            }
            answer
        })
    }
}
