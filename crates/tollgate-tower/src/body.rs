//! The bodies of answers: the service's own type, if that can hold any body, or one around it, which is that of the service or of a
//! refusal.

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

/// A type of body that any other can be put into, as the boxed ones of frameworks: so a refusal can be of the type that the
/// service's own answers have, and nothing is put around those.
///
/// That of axum is one (feature `axum`), and that of tonic (feature `tonic`).
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the body of a refusal",
    note = "axum's and tonic's own bodies can, with the feature of that name of tollgate-tower",
    note = "for others, also where a layer inside has changed the body, call `any_body()` on the layer: answers have a body of tollgate's then, around that one"
)]
pub trait FromBytesBody: http_body::Body<Data = Bytes> + Sized {
    /// A body of these bytes.
    fn of(bytes: Bytes) -> Self;

    /// This body, which keeps what a request holds until it has ended or is dropped.
    #[must_use]
    fn holding<H: HoldRequest>(self, rest: BodyPermit<H>) -> Self;
}

/// Answers have the service's own type of body, which is an [`FromBytesBody`]: nothing is moved or put into a box for a request
/// that passes and holds nothing.
#[derive(Clone, Copy, Debug)]
pub struct KeepBody;

/// Answers have a [`MessageBody`] around the service's own, of whatever type that is.
#[derive(Clone, Copy, Debug)]
pub struct WrapBody;

/// How answers of a service become those of a layer: [`KeepBody`] or [`WrapBody`].
pub trait BodyMode<O, H: HoldRequest>: sealed::Sealed + 'static {
    /// What answers have for a body.
    type Body;

    /// A refusal's.
    fn refusal(bytes: Bytes) -> Self::Body;

    /// An answer of which nothing is to be said.
    fn plain<E>(polled: PolledResponse<O, E>) -> PolledResponse<Self::Body, E>;

    /// An answer to a request with this ticket, which is taken when it is there.
    ///
    /// # Panics
    /// If it was taken before.
    fn ticketed<E>(
        polled: PolledResponse<O, E>,
        ticket: &mut Option<RequestPermit<H>>,
    ) -> PolledResponse<Self::Body, E>;
}

/// What comes of asking a service for its answer.
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
        // Changed where it is, and moved once: an answer is large enough for that to be felt.
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

/// Lets the body of an answer keep this until it has ended.
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

/// The body of an answer behind a [`RateLimitLayer`](crate::RateLimitLayer): that of the service, or of a refusal.
pub type Body<B, H> = HoldingBody<B, BodyPermit<H>>;

/// The body of an answer behind a [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer): that of the service, which keeps the permit of its request, or that
/// of a refusal.
pub type ConcurrencyBody<B, H> = HoldingBody<B, Permit<H>>;

pin_project! {
    /// The body of an answer: that of the service, or of a refusal. What its request holds is released when the body has
    /// ended or is dropped.
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

/// What a body holds, and what it is told of the body.
pub trait ObserveBody {
    /// So many bytes were sent.
    fn sent(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// The body ends with trailers that say this `grpc-status`.
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

/// The service's empty one, for layers outside that answer without the service, as those of CORS and timeouts do.
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

/// Notes what of a body was sent, and says whether it was the last.
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
