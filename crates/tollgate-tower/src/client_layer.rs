//! The common parts of the layers for clients and for load: a service behind a layer, and a call that first waits for
//! the service.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tollgate::concurrency::{PermitDenied, PermitOutcome};
use tollgate_adaptive::breaker::CircuitOpen;
use tollgate_http::grpc;
use tollgate_http::outgoing::PaceError;
use tower_service::Service;

/// The error of a call: a [`PaceError`](crate::outgoing::PaceError) or the like if it wasn't made, or else the
/// client's own error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A service behind the layer `L`, such as a [`BreakerLayer`](crate::BreakerLayer). Clones share the state of the
/// layer.
#[derive(Clone, derive_more::Debug)]
pub struct LayeredService<S, L> {
    #[debug(skip)]
    pub(crate) inner: S,
    pub(crate) layer: L,
}

impl<S, L> LayeredService<S, L> {
    pub(crate) const fn new(inner: S, layer: L) -> Self {
        Self { inner, layer }
    }
}

/// A layer around a client, such as a [`BreakerLayer`](crate::BreakerLayer).
#[derive(Clone, Debug)]
pub struct ClientLayer<L>(pub(crate) L);

/// The response to a call behind a client layer.
pub(crate) type ResponseBoxFuture<O> =
    Pin<Box<dyn Future<Output = Result<Response<O>, BoxError>> + Send>>;

/// What a client layer does with each call: make it, reject it, or repeat it.
pub trait CallPolicy<S, I, O>: Clone {
    /// Makes a call, or not. Making the client ready is part of it.
    fn send(self, client: S, request: Request<I>) -> ResponseBoxFuture<O>;
}

impl<S, I, O, L> Service<Request<I>> for LayeredService<S, ClientLayer<L>>
where
    S: Service<Request<I>, Response = Response<O>> + Clone,
    L: CallPolicy<S, I, O>,
{
    type Response = Response<O>;
    type Error = BoxError;
    type Future = ResponseBoxFuture<O>;

    /// Always ready: the call itself makes the client ready, and only if it is made.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let ClientLayer(layer) = self.layer.clone();
        layer.send(self.inner.clone(), request)
    }
}

pin_project! {
    /// Makes a service ready and calls it.
    ///
    /// Layers that may deny a call are always ready themselves. If they waited for the service in `poll_ready`,
    /// callers would queue where no limit counts them.
    pub(crate) struct ReadyCall<S, I>
    where
        S: Service<Request<I>>,
    {
        #[pin]
        state: State<S, I>,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State<S, I>
    where
        S: Service<Request<I>>,
    {
        Readying { service: S, request: Option<Request<I>> },
        Called { #[pin] future: S::Future },
    }
}

impl<S: Service<Request<I>>, I> ReadyCall<S, I> {
    pub(crate) const fn new(service: S, request: Request<I>) -> Self {
        let request = Some(request);
        Self {
            state: State::Readying { service, request },
        }
    }
}

impl<S: Service<Request<I>>, I> Future for ReadyCall<S, I> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let future = match state.as_mut().project() {
                StateProjected::Called { future } => return future.poll(context),
                StateProjected::Readying { service, request } => {
                    ready!(service.poll_ready(context))?;
                    let Some(request) = request.take() else {
                        panic!("polled after it was ready");
                    };
                    service.call(request)
                }
            };
            state.set(State::Called { future });
        }
    }
}

/// The status in the head of a response, also for gRPC calls.
pub(crate) fn status_of<O>(answer: &Response<O>) -> StatusCode {
    let code = answer.headers().get("grpc-status");
    let status = grpc::http_status(answer.status().as_u16(), code.map(HeaderValue::as_bytes));
    StatusCode::from_u16(status).unwrap_or(answer.status())
}

/// What an error means for the server. Errors of inner layers that didn't make the call mean nothing, as nothing was
/// sent.
pub(crate) fn ending_of_error(error: &BoxError) -> PermitOutcome {
    if error.is::<PermitDenied>() || error.is::<CircuitOpen>() || error.is::<PaceError>() {
        PermitOutcome::Ignored
    } else {
        PermitOutcome::Dropped
    }
}
