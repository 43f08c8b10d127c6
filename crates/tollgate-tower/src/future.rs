//! The answer to a request, on its way.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::Entry;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use pin_project_lite::pin_project;
use tollgate_http::guard::{Failed, Fields, Held, Refused, Reply, Rest, Ticket, Used};

use crate::bodies::Bodies;
use crate::names;

pin_project! {
    /// The answer to a request, on its way. Dropping it gives back what the request holds.
    pub struct ResponseFuture<F, B, E, H: Held, M> {
        #[pin]
        state: State<F, B, E, H>,
        bodies: PhantomData<fn() -> M>,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State<F, B, E, H: Held> {
        /// The service answers, and nothing is to be said or held.
        Plain { #[pin] future: F },
        /// The service answers.
        Ticketed { #[pin] future: F, ticket: Option<Ticket<H>> },
        /// It was refused.
        Refused { response: Option<Response<B>> },
        /// Somebody else is asked first.
        Later { future: Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>> },
    }
}

impl<F, B, E, H: Held, M> ResponseFuture<F, B, E, H, M> {
    #[inline(always)]
    pub(crate) const fn plain(future: F) -> Self {
        Self::of(State::Plain { future })
    }

    #[inline]
    pub(crate) const fn ticketed(future: F, ticket: Ticket<H>) -> Self {
        let ticket = Some(ticket);
        Self::of(State::Ticketed { future, ticket })
    }

    pub(crate) const fn refused(response: Response<B>) -> Self {
        let response = Some(response);
        Self::of(State::Refused { response })
    }

    pub(crate) fn later(
        future: impl Future<Output = Result<Response<B>, E>> + Send + 'static,
    ) -> Self {
        let future = Box::pin(future);
        Self::of(State::Later { future })
    }

    #[inline(always)]
    const fn of(state: State<F, B, E, H>) -> Self {
        let bodies = PhantomData;
        Self { state, bodies }
    }
}

impl<F, O, E, H: Held, M> Future for ResponseFuture<F, M::Body, E, H, M>
where
    F: Future<Output = Result<Response<O>, E>>,
    M: Bodies<O, H>,
{
    type Output = Result<Response<M::Body>, E>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project().state.project() {
            StateProjected::Plain { future } => M::plain(future.poll(context)),
            _ => self.poll_closely(context),
        }
    }
}

impl<F, O, E, H: Held, M> ResponseFuture<F, M::Body, E, H, M>
where
    F: Future<Output = Result<Response<O>, E>>,
    M: Bodies<O, H>,
{
    /// Apart, so that nothing is made ready for it where there is nothing to be said.
    #[inline(never)]
    fn poll_closely(
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

/// Writes what is to be said of the limit, and says what is held until the body has ended.
#[inline(always)]
pub(crate) fn replied<O, E, H: Held>(
    result: &mut Result<Response<O>, E>,
    ticket: Ticket<H>,
) -> Option<Rest<H>> {
    let Ok(response) = result else {
        ticket.failed();
        return None;
    };
    let (fields, rest) = ticket.replied(&ReplyHead {
        status: response.status(),
        headers: response.headers(),
        extensions: response.extensions(),
    });
    if !fields.is_empty() {
        write(fields, response.headers_mut(), add);
    }
    rest
}

/// The answer to a refused request.
pub(crate) fn refusal<O, H: Held, M: Bodies<O, H>>(refused: Refused) -> Response<M::Body> {
    let mut response = Response::new(M::refusal(refused.body));
    *response.status_mut() =
        StatusCode::from_u16(refused.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let headers = response.headers_mut();
    headers.reserve(refused.fields.len());
    write(refused.fields, headers, replace);
    response
}

/// The answer to a request of which nothing can be said.
#[cold]
pub(crate) fn failure<O, H: Held, M: Bodies<O, H>>(failed: Failed) -> Response<M::Body> {
    let mut response = Response::new(M::refusal(Bytes::new()));
    *response.status_mut() =
        StatusCode::from_u16(failed.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    write(failed.fields, response.headers_mut(), replace);
    response
}

/// Writes the fields by one of the ways below.
fn write(
    fields: Fields,
    headers: &mut HeaderMap,
    put: impl Fn(&mut HeaderMap, HeaderName, HeaderValue),
) {
    fields.into_each(|name, value| {
        // Ours are made of printable signs; of those that a handler added, what can't be written isn't.
        let Ok(value) = HeaderValue::from_maybe_shared(value) else {
            return;
        };
        match names::known(name) {
            Some(name) => put(headers, name, value),
            None => other(name, value, headers),
        }
    });
}

/// In an answer of the service, what a layer inside has told stays: that one knows better why it refused. Lists of limits
/// (draft 8, whose items begin with a quote) grow by ours.
fn add(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let is_list = |value: &HeaderValue| value.as_bytes().starts_with(b"\"");
    match headers.entry(name) {
        Entry::Vacant(place) => {
            place.insert(value);
        }
        Entry::Occupied(mut told) if is_list(told.get()) && is_list(&value) => told.append(value),
        Entry::Occupied(_) => {}
    }
}

/// In a refusal the last counts.
fn replace(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.insert(name, value);
}

#[cold]
fn other(name: &'static str, value: HeaderValue, headers: &mut HeaderMap) {
    let Ok(name) = HeaderName::try_from(name) else {
        return;
    };
    if name == http::header::ACCESS_CONTROL_EXPOSE_HEADERS {
        headers.append(name, value);
    } else {
        headers.insert(name, value);
    }
}

/// The head of an answer, as a guard looks at it.
struct ReplyHead<'r> {
    status: StatusCode,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
}

impl Reply for ReplyHead<'_> {
    fn status(&self) -> u16 {
        self.status.as_u16()
    }

    fn line(&self, field: &str) -> Option<&[u8]> {
        self.headers.get(field).map(HeaderValue::as_bytes)
    }

    fn used(&self) -> Option<u64> {
        self.extensions.get::<Used>().map(|used| used.0)
    }
}

impl<F, B, E, H: Held, M> fmt::Debug for ResponseFuture<F, B, E, H, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
