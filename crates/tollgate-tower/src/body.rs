//! Response bodies: the service's own type if it can hold any body, or else a wrapper for the service's body or a
//! denial's.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate::concurrency::{Permit, PermitSource};
use tollgate_http::guard::{BodyPermit, HoldRequest, RequestPermit};

use crate::response_head::write_limit_fields;

/// A body type that can hold any other body, such as the boxed bodies of frameworks. A denial can then have the
/// service's own body type, so no wrapper is needed.
///
/// axum's body (feature `axum`) and tonic's (feature `tonic`) implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the body of a denial",
    note = "axum's and tonic's own bodies can, with the feature `axum` or `tonic` of tollgate-tower",
    note = "for others, and if an inner layer has changed the body, call `wrap_body()` on the layer: responses then have a wrapper around that body"
)]
pub trait FromBytesBody: http_body::Body<Data = Bytes> + Sized {
    /// A body with these bytes.
    fn of(bytes: Bytes) -> Self;

    /// This body, which keeps the permit of a request until it has ended or is dropped.
    #[must_use]
    fn holding<H: HoldRequest>(self, rest: BodyPermit<H>) -> Self;
}

/// Keeps the service's body type, which is a [`FromBytesBody`]. For a request that passes and holds nothing, the body
/// is neither moved nor boxed.
#[derive(Clone, Copy, Debug)]
pub struct KeepBody;

/// Wraps the service's body, of any type, in a [`HoldingBody`].
#[derive(Clone, Copy, Debug)]
pub struct WrapBody;

/// How the body type of a service becomes that of its layer: [`KeepBody`] or [`WrapBody`].
pub trait BodyMode<O, H: HoldRequest>: sealed::Sealed + 'static {
    /// The body type of responses.
    type Body;

    /// The body of a denial.
    fn refusal(bytes: Bytes) -> Self::Body;

    /// Converts a response that gets no fields and holds nothing.
    fn plain<E>(polled: PolledResponse<O, E>) -> PolledResponse<Self::Body, E>;

    /// Converts the response of a request with this permit, and takes the permit when the response is ready.
    ///
    /// # Panics
    /// If the permit was taken before.
    fn ticketed<E>(
        polled: PolledResponse<O, E>,
        ticket: &mut Option<RequestPermit<H>>,
    ) -> PolledResponse<Self::Body, E>;
}

/// The result of polling a service's response.
pub type PolledResponse<B, E> = Poll<Result<Response<B>, E>>;

impl<O: FromBytesBody, H: HoldRequest> BodyMode<O, H> for KeepBody {
    type Body = O;

    fn refusal(bytes: Bytes) -> O {
        O::of(bytes)
    }

    #[inline(always)]
    fn plain<E>(polled: PolledResponse<O, E>) -> PolledResponse<O, E> {
        polled
    }

    #[inline(always)]
    fn ticketed<E>(
        mut polled: PolledResponse<O, E>,
        ticket: &mut Option<RequestPermit<H>>,
    ) -> PolledResponse<O, E> {
        if let Poll::Ready(result) = &mut polled
            && let Some(rest) = write_limit_fields(result, take_ticket(ticket))
            && let Ok(response) = result
        {
            hold_until_end(response, rest);
        }
        polled
    }
}

impl<O, H: HoldRequest> BodyMode<O, H> for WrapBody {
    type Body = Body<O, H>;

    fn refusal(bytes: Bytes) -> Body<O, H> {
        Body::of_refusal(bytes)
    }

    #[inline(always)]
    fn plain<E>(polled: PolledResponse<O, E>) -> PolledResponse<Body<O, H>, E> {
        polled.map_ok(|response| response.map(|body| Body::of_service(body, None)))
    }

    #[inline(always)]
    fn ticketed<E>(
        mut polled: PolledResponse<O, E>,
        ticket: &mut Option<RequestPermit<H>>,
    ) -> PolledResponse<Body<O, H>, E> {
        // Changed in place and moved once: a response is large enough for a second move to be measurable.
        let rest = match &mut polled {
            Poll::Ready(result) => write_limit_fields(result, take_ticket(ticket)),
            Poll::Pending => return Poll::Pending,
        };
        polled.map_ok(|response| response.map(|body| Body::of_service(body, rest)))
    }
}

#[inline(always)]
fn take_ticket<H: HoldRequest>(ticket: &mut Option<RequestPermit<H>>) -> RequestPermit<H> {
    match ticket.take() {
        Some(ticket) => ticket,
        None => panic!("polled after it was ready"),
    }
}

/// Keeps the permit in the body until it has ended.
fn hold_until_end<O: FromBytesBody, H: HoldRequest>(
    response: &mut Response<O>,
    rest: BodyPermit<H>,
) {
    let body = mem::replace(response.body_mut(), O::of(Bytes::new()));
    *response.body_mut() = body.holding(rest);
}

#[cfg(feature = "axum")]
impl FromBytesBody for axum::body::Body {
    fn of(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::empty();
        }
        bytes.into()
    }

    fn holding<H: HoldRequest>(self, rest: BodyPermit<H>) -> Self {
        Self::new(Body::of_service(self, Some(rest)))
    }
}

#[cfg(feature = "tonic")]
impl FromBytesBody for tonic::body::Body {
    fn of(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::empty();
        }
        Self::new(Body::<Self, ()>::of_refusal(bytes))
    }

    fn holding<H: HoldRequest>(self, rest: BodyPermit<H>) -> Self {
        Self::new(Body::of_service(self, Some(rest)))
    }
}

/// The body of a response behind a [`RateLimitLayer`](crate::RateLimitLayer): that of the service, or of a denial.
pub type Body<B, H> = HoldingBody<B, BodyPermit<H>>;

/// The body of a response behind a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer): that of the service,
/// which keeps the request's permit, or that of a denial.
pub type ConcurrencyBody<B, H> = HoldingBody<B, Permit<H>>;

pin_project! {
    /// The body of a response: that of the service, or of a denial. Its permit is released when the body has ended or
    /// is dropped.
    #[derive(Debug)]
    pub struct HoldingBody<B, T> {
        #[pin]
        of: Of<B>,
        held: Option<T>,
    }
}

pin_project! {
    #[project = OfProjected]
    #[derive(Debug)]
    enum Of<B> {
        Service { #[pin] body: B },
        Refusal { bytes: Option<Bytes> },
    }
}

/// A permit that a body holds, and that observes the body.
pub trait ObserveBody {
    /// Reports that bytes of the body were sent.
    fn sent(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Reports the `grpc-status` in the trailers.
    fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        let _ = grpc_status;
    }
}

impl<H: HoldRequest> ObserveBody for BodyPermit<H> {
    fn sent(&mut self, bytes: usize) {
        Self::sent(self, bytes);
    }

    fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        Self::trailer(self, grpc_status);
    }
}

impl<H: PermitSource> ObserveBody for Permit<H> {}

impl<B, T> HoldingBody<B, T> {
    pub(crate) const fn of_service(body: B, held: Option<T>) -> Self {
        let of = Of::Service { body };
        Self { of, held }
    }

    pub(crate) fn of_refusal(bytes: Bytes) -> Self {
        let bytes = (!bytes.is_empty()).then_some(bytes);
        Self {
            of: Of::Refusal { bytes },
            held: None,
        }
    }
}

/// The service's empty body, for outer layers that respond without the service, such as CORS and timeouts.
impl<B: Default, T> Default for HoldingBody<B, T> {
    fn default() -> Self {
        Self::of_service(B::default(), None)
    }
}

impl<B: http_body::Body<Data = Bytes>, T: ObserveBody> http_body::Body for HoldingBody<B, T> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.of.project() {
            OfProjected::Service { mut body } => {
                let frame = body.as_mut().poll_frame(context);
                if let (Some(held), Poll::Ready(frame)) = (this.held.as_mut(), &frame) {
                    // A server needn't poll again after the last frame, so the permit is released with it.
                    let is_last = record_frame(held, frame.as_ref()) || body.is_end_stream();
                    if is_last {
                        *this.held = None;
                    }
                }
                frame
            }
            OfProjected::Refusal { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.of {
            Of::Service { body } => body.is_end_stream(),
            Of::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.of {
            Of::Service { body } => body.size_hint(),
            Of::Refusal { bytes } => {
                let left = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(left as u64)
            }
        }
    }
}

/// Reports a frame to the permit, and returns whether the body has ended.
fn record_frame<T: ObserveBody, E>(held: &mut T, frame: Option<&Result<Frame<Bytes>, E>>) -> bool {
    let Some(Ok(frame)) = frame else {
        return true;
    };
    if let Some(data) = frame.data_ref() {
        held.sent(data.remaining());
    }
    if let Some(trailers) = frame.trailers_ref() {
        let status = trailers.get("grpc-status");
        held.trailer(status.map(http::HeaderValue::as_bytes));
    }
    false
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::KeepBody {}
    impl Sealed for super::WrapBody {}
}
