//! The body of an answer: that of the service, or of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate_http::guard::{Held, Rest};

pin_project! {
    /// The body of an answer: that of the service, or of a refusal. What its request holds is given back when it has
    /// ended or is dropped.
    #[derive(Debug)]
    pub struct Body<B, H: Held> {
        #[pin]
        of: Of<B>,
        rest: Option<Rest<H>>,
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

impl<B, H: Held> Body<B, H> {
    pub(crate) const fn of_service(body: B, rest: Option<Rest<H>>) -> Self {
        Self {
            of: Of::Service { body },
            rest,
        }
    }

    pub(crate) fn of_refusal(bytes: Bytes) -> Self {
        let bytes = (!bytes.is_empty()).then_some(bytes);
        Self {
            of: Of::Refusal { bytes },
            rest: None,
        }
    }
}

/// The service's empty one, for layers outside that answer without the service, as those of CORS and timeouts do.
impl<B: Default, H: Held> Default for Body<B, H> {
    fn default() -> Self {
        Self::of_service(B::default(), None)
    }
}

impl<B: http_body::Body<Data = Bytes>, H: Held> http_body::Body for Body<B, H> {
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
                if let (Some(rest), Poll::Ready(frame)) = (this.rest.as_mut(), &frame) {
                    let is_last = note(rest, frame.as_ref()) || body.is_end_stream();
                    if is_last {
                        *this.rest = None;
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
fn note<H: Held, E>(rest: &mut Rest<H>, frame: Option<&Result<Frame<Bytes>, E>>) -> bool {
    match frame {
        Some(Ok(frame)) => {
            if let Some(data) = frame.data_ref() {
                rest.sent(data.remaining());
            }
            if let Some(trailers) = frame.trailers_ref() {
                let status = trailers.get("grpc-status");
                rest.trailer(status.map(http::HeaderValue::as_bytes));
            }
            false
        }
        None | Some(Err(_)) => true,
    }
}
