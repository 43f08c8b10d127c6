//! The body of an answer: that of the service, or of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of an answer: that of the service, or of a refusal. What its request holds is given back when it has
    /// ended or is dropped.
    #[derive(Debug)]
    pub struct Body<B, H = ()> {
        #[pin]
        of: Of<B>,
        held: Option<H>,
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

impl<B, H> Body<B, H> {
    pub(crate) const fn of_service(body: B, held: Option<H>) -> Self {
        Self {
            of: Of::Service { body },
            held,
        }
    }

    pub(crate) fn of_refusal(bytes: Vec<u8>) -> Self {
        let bytes = (!bytes.is_empty()).then(|| bytes.into());
        Self {
            of: Of::Refusal { bytes },
            held: None,
        }
    }
}

impl<B: http_body::Body<Data = Bytes>, H> http_body::Body for Body<B, H> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.of.project() {
            OfProjected::Service { body } => {
                let frame = body.poll_frame(context);
                if let Poll::Ready(None | Some(Err(_))) = frame {
                    *this.held = None;
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
