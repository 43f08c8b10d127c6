//! The body of an answer: that of the service, or of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate::concurrency::{Permit, PermitHome};
use tollgate_http::guard::{Held, Rest};

/// The body of an answer behind a [`RateLimitLayer`](crate::RateLimitLayer): that of the service, or of a refusal.
pub type Body<B, H> = HoldingBody<B, Rest<H>>;

/// The body of an answer behind a [`ShedLayer`](crate::ShedLayer): that of the service, which keeps the permit of its request, or that
/// of a refusal.
pub type ShedBody<B, H> = HoldingBody<B, Permit<H>>;

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
pub trait Holds {
    /// So many bytes were sent.
    fn sent(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// The body ends with trailers that say this `grpc-status`.
    fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        let _ = grpc_status;
    }
}

impl<H: Held> Holds for Rest<H> {
    fn sent(&mut self, bytes: usize) {
        Self::sent(self, bytes);
    }

    fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        Self::trailer(self, grpc_status);
    }
}

impl<H: PermitHome> Holds for Permit<H> {}

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

impl<B: http_body::Body<Data = Bytes>, T: Holds> http_body::Body for HoldingBody<B, T> {
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
                    let is_last = note(held, frame.as_ref()) || body.is_end_stream();
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
fn note<T: Holds, E>(held: &mut T, frame: Option<&Result<Frame<Bytes>, E>>) -> bool {
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
