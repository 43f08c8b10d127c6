//! What answers have for a body: the service's own type, if that can hold any body, or one around it.

use std::mem;
use std::task::Poll;

use bytes::Bytes;
use http::Response;
use tollgate_http::guard::{Held, Rest, Ticket};

use crate::body::Body;
use crate::reply::replied;

/// A type of body that any other can be put into, as the boxed ones of frameworks: so a refusal can be of the type that the
/// service's own answers have, and nothing is put around those.
///
/// That of axum is one (feature `axum`), and that of tonic (feature `tonic`).
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the body of a refusal",
    note = "axum's and tonic's own bodies can, with the feature of that name of tollgate-tower",
    note = "for others, also where a layer inside has changed the body, call `any_body()` on the layer: answers have a body of tollgate's then, around that one"
)]
pub trait OpenBody: http_body::Body<Data = Bytes> + Sized {
    /// A body of these bytes.
    fn of(bytes: Bytes) -> Self;

    /// This body, which keeps what a request holds until it has ended or is dropped.
    #[must_use]
    fn holding<H: Held>(self, rest: Rest<H>) -> Self;
}

/// Answers have the service's own type of body, which is an [`OpenBody`]: nothing is moved or put into a box for a request
/// that passes and holds nothing.
#[derive(Clone, Copy, Debug)]
pub struct SameBody;

/// Answers have a [`Body`] around the service's own, of whatever type that is.
#[derive(Clone, Copy, Debug)]
pub struct AnyBody;

/// How answers of a service become those of a layer: [`SameBody`] or [`AnyBody`].
pub trait Bodies<O, H: Held>: sealed::Sealed + 'static {
    /// What answers have for a body.
    type Body;

    /// A refusal's.
    fn refusal(bytes: Bytes) -> Self::Body;

    /// An answer of which nothing is to be said.
    fn plain<E>(polled: Polled<O, E>) -> Polled<Self::Body, E>;

    /// An answer to a request with this ticket, which is taken when it is there.
    ///
    /// # Panics
    /// If it was taken before.
    fn ticketed<E>(polled: Polled<O, E>, ticket: &mut Option<Ticket<H>>) -> Polled<Self::Body, E>;
}

/// What comes of asking a service for its answer.
pub type Polled<B, E> = Poll<Result<Response<B>, E>>;

impl<O: OpenBody, H: Held> Bodies<O, H> for SameBody {
    type Body = O;

    fn refusal(bytes: Bytes) -> O {
        O::of(bytes)
    }

    #[inline(always)]
    fn plain<E>(polled: Polled<O, E>) -> Polled<O, E> {
        polled
    }

    #[inline(always)]
    fn ticketed<E>(mut polled: Polled<O, E>, ticket: &mut Option<Ticket<H>>) -> Polled<O, E> {
        if let Poll::Ready(result) = &mut polled
            && let Some(rest) = replied(result, take(ticket))
            && let Ok(response) = result
        {
            keep(response, rest);
        }
        polled
    }
}

impl<O, H: Held> Bodies<O, H> for AnyBody {
    type Body = Body<O, H>;

    fn refusal(bytes: Bytes) -> Body<O, H> {
        Body::of_refusal(bytes)
    }

    #[inline(always)]
    fn plain<E>(polled: Polled<O, E>) -> Polled<Body<O, H>, E> {
        polled.map_ok(|response| response.map(|body| Body::of_service(body, None)))
    }

    #[inline(always)]
    fn ticketed<E>(
        mut polled: Polled<O, E>,
        ticket: &mut Option<Ticket<H>>,
    ) -> Polled<Body<O, H>, E> {
        // Changed where it is, and moved once: an answer is large enough for that to be felt.
        let rest = match &mut polled {
            Poll::Ready(result) => replied(result, take(ticket)),
            Poll::Pending => return Poll::Pending,
        };
        polled.map_ok(|response| response.map(|body| Body::of_service(body, rest)))
    }
}

#[inline(always)]
fn take<H: Held>(ticket: &mut Option<Ticket<H>>) -> Ticket<H> {
    match ticket.take() {
        Some(ticket) => ticket,
        None => panic!("polled after it was ready"),
    }
}

/// Lets the body of an answer keep this until it has ended.
fn keep<O: OpenBody, H: Held>(response: &mut Response<O>, rest: Rest<H>) {
    let body = mem::replace(response.body_mut(), O::of(Bytes::new()));
    *response.body_mut() = body.holding(rest);
}

#[cfg(feature = "axum")]
impl OpenBody for axum::body::Body {
    fn of(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::empty();
        }
        bytes.into()
    }

    fn holding<H: Held>(self, rest: Rest<H>) -> Self {
        Self::new(Body::of_service(self, Some(rest)))
    }
}

#[cfg(feature = "tonic")]
impl OpenBody for tonic::body::Body {
    fn of(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            return Self::empty();
        }
        Self::new(Body::<Self, ()>::of_refusal(bytes))
    }

    fn holding<H: Held>(self, rest: Rest<H>) -> Self {
        Self::new(Body::of_service(self, Some(rest)))
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::SameBody {}
    impl Sealed for super::AnyBody {}
}
