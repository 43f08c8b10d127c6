//! The body of an answer that keeps the place of its request, or that of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate::concurrency::{Permit, PermitHome};

pin_project! {
    /// The body of an answer, which keeps the place of its request until it has ended or is dropped; or that of a refusal.
    #[derive(Debug)]
    pub struct ShedBody<B, H: PermitHome> {
        #[pin]
        of: Of<B, H>,
    }
}

pin_project! {
    #[project = OfProjected]
    #[derive(Debug)]
    enum Of<B, H: PermitHome> {
        Service { #[pin] body: B, permit: Option<Permit<H>> },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B: http_body::Body, H: PermitHome> ShedBody<B, H> {
    /// A body that has nothing to send keeps no place.
    pub(super) fn of_service(body: B, permit: Permit<H>) -> Self {
        let permit = (!body.is_end_stream()).then_some(permit);
        Self {
            of: Of::Service { body, permit },
        }
    }
}

impl<B, H: PermitHome> ShedBody<B, H> {
    pub(super) fn of_refusal(bytes: Vec<u8>) -> Self {
        let bytes = (!bytes.is_empty()).then(|| bytes.into());
        Self {
            of: Of::Refusal { bytes },
        }
    }
}

/// The service's empty one, for layers outside that answer without the service, as those of CORS and timeouts do.
impl<B: Default, H: PermitHome> Default for ShedBody<B, H> {
    fn default() -> Self {
        let (body, permit) = (B::default(), None);
        Self {
            of: Of::Service { body, permit },
        }
    }
}

impl<B: http_body::Body<Data = Bytes>, H: PermitHome> http_body::Body for ShedBody<B, H> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().of.project() {
            OfProjected::Service { mut body, permit } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                    *permit = None;
                }
                Poll::Ready(frame)
            }
            OfProjected::Refusal { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.of {
            Of::Service { body, .. } => body.is_end_stream(),
            Of::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.of {
            Of::Service { body, .. } => body.size_hint(),
            Of::Refusal { bytes } => {
                let left = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(left as u64)
            }
        }
    }
}
