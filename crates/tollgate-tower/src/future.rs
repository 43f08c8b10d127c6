//! The response future of a rate-limited service.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode};
use pin_project_lite::pin_project;
use tollgate_http::guard::{DeniedResponse, HoldRequest, RequestPermit};

use crate::body::BodyMode;
use crate::response_head::{replace, write};

pin_project! {
    /// The response to a request. Dropping it refunds and releases what the request holds.
    pub struct ResponseFuture<F, B, E, H: HoldRequest, M> {
        #[pin]
        state: State<F, B, E, H>,
        bodies: PhantomData<fn() -> M>,
    }
}

pin_project! {
    #[project = StateProjected]
    pub(crate) enum State<F, B, E, H: HoldRequest> {
        /// The request passed, holds nothing, and its response gets no fields.
        Plain { #[pin] future: F },
        /// The request passed, and has a permit.
        Ticketed { #[pin] future: F, ticket: Option<RequestPermit<H>> },
        /// The request was denied.
        Refused { response: Option<Response<B>> },
        /// The decision takes time.
        Later { future: Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>> },
    }
}

impl<F, B, E, H: HoldRequest, M> ResponseFuture<F, B, E, H, M> {
    #[inline(always)]
    pub(crate) const fn of(state: State<F, B, E, H>) -> Self {
        let bodies = PhantomData;
        Self { state, bodies }
    }

    pub(crate) fn later(
        future: impl Future<Output = Result<Response<B>, E>> + Send + 'static,
    ) -> Self {
        let future = Box::pin(future);
        Self::of(State::Later { future })
    }
}

impl<F, O, E, H: HoldRequest, M> Future for ResponseFuture<F, M::Body, E, H, M>
where
    F: Future<Output = Result<Response<O>, E>>,
    M: BodyMode<O, H>,
{
    type Output = Result<Response<M::Body>, E>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project().state.project() {
            StateProjected::Plain { future } => M::plain(future.poll(context)),
            _ => self.poll_slow(context),
        }
    }
}

impl<F, O, E, H: HoldRequest, M> ResponseFuture<F, M::Body, E, H, M>
where
    F: Future<Output = Result<Response<O>, E>>,
    M: BodyMode<O, H>,
{
    /// Not inlined, so that the common case doesn't set up a frame for it.
    #[inline(never)]
    fn poll_slow(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<M::Body>, E>> {
        match self.project().state.project() {
            StateProjected::Plain { future } => M::plain(future.poll(context)),
            StateProjected::Ticketed { future, ticket } => {
                M::ticketed(future.poll(context), ticket)
            }
            StateProjected::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => panic!("polled after it was ready"),
            },
            StateProjected::Later { future } => future.as_mut().poll(context),
        }
    }
}

/// The response to a denied request; `body` converts its bytes.
pub(crate) fn denial_response<B>(
    refused: DeniedResponse,
    body: impl FnOnce(Bytes) -> B,
) -> Response<B> {
    let mut response = Response::new(body(refused.body));
    *response.status_mut() =
        StatusCode::from_u16(refused.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let headers = response.headers_mut();
    headers.reserve(refused.fields.len());
    write(refused.fields, headers, replace);
    response
}

impl<F, B, E, H: HoldRequest, M> fmt::Debug for ResponseFuture<F, B, E, H, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
