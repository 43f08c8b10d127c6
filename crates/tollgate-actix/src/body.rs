//! The body of a response: that of the app, or of a denial.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;
use pin_project_lite::pin_project;
use tollgate_http::guard::{BodyPermit, HoldRequest};

pin_project! {
    /// The body of a response: that of the app, or of a denial. What the request holds is released when the body has
    /// ended or is dropped.
    #[derive(Debug)]
    pub struct Body<B, H: HoldRequest> {
        #[pin]
        of: Of<B>,
        rest: Option<BodyPermit<H>>,
    }
}

pin_project! {
    #[project = OfProjected]
    #[derive(Debug)]
    enum Of<B> {
        App { #[pin] body: B },
        Refusal { bytes: Bytes },
    }
}

impl<B, H: HoldRequest> Body<B, H> {
    pub(crate) const fn of_service(body: B, rest: Option<BodyPermit<H>>) -> Self {
        Self {
            of: Of::App { body },
            rest,
        }
    }

    pub(crate) fn of_refusal(bytes: Bytes) -> Self {
        Self {
            of: Of::Refusal { bytes },
            rest: None,
        }
    }
}

impl<B: MessageBody, H: HoldRequest> MessageBody for Body<B, H> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        match &self.of {
            Of::App { body } => body.size(),
            Of::Refusal { bytes } => bytes.size(),
        }
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, B::Error>>> {
        let this = self.project();
        match this.of.project() {
            OfProjected::App { body } => {
                let part = body.poll_next(context);
                match (&part, this.rest.as_mut()) {
                    (Poll::Ready(Some(Ok(bytes))), Some(rest)) => rest.sent(bytes.len()),
                    (Poll::Ready(None | Some(Err(_))), Some(_)) => *this.rest = None,
                    _ => {}
                }
                part
            }
            OfProjected::Refusal { bytes } if bytes.is_empty() => Poll::Ready(None),
            OfProjected::Refusal { bytes } => Poll::Ready(Some(Ok(std::mem::take(bytes)))),
        }
    }
}
