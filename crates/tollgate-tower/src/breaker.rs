//! A circuit breaker for clients.

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

/// A circuit breaker: while the [`CircuitBreaker`] is open, calls fail immediately with
/// [`CircuitOpen`](tollgate_adaptive::breaker::CircuitOpen), and the client isn't called.
///
/// By default the head of a response decides what it counts as, and [`classify_status`](Self::classify_status)
/// changes that:
///
/// * 500 and above, and errors of the client, are failures.
/// * 429 is ignored: the server works, and only wants fewer calls. So is an error of an inner layer that didn't make
///   the call.
/// * All other responses are successes.
///
/// Making the client ready is part of the call, as it may connect then. A dropped call is ignored, so a timeout layer
/// has to be inside this layer.
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
/// // Instead of a hyper client:
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
    /// Uses this breaker, which others may share. All clients of one backend should share it.
    pub fn with_breaker(breaker: Arc<CircuitBreaker<C>>) -> Self {
        Self {
            breaker,
            ending_of: default_ending,
        }
    }

    /// Sets what a response with a status counts as.
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
