//! The answer to a request, on its way.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use pin_project_lite::pin_project;
use tollgate_http::guard::{Admission, Fields, Refused};

use crate::body::Body;

type Answer<O, E, H> = Result<Response<Body<O, H>>, E>;

pin_project! {
    /// The answer to a request, on its way.
    pub struct ResponseFuture<F, O, E, H> {
        #[pin]
        state: State<F, O, E, H>,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State<F, O, E, H> {
        /// The service answers, and these fields go along.
        Called { #[pin] future: F, fields: Fields, held: Option<H> },
        /// It was refused.
        Refused { response: Option<Response<Body<O, H>>> },
        /// Somebody else is asked first.
        Later { future: Pin<Box<dyn Future<Output = Answer<O, E, H>> + Send>> },
    }
}

impl<F, O, E, H> ResponseFuture<F, O, E, H> {
    /// The answer to a request of which this becomes.
    #[inline]
    pub(crate) fn by(admission: Admission<H>, call: impl FnOnce() -> F) -> Self {
        let state = match admission {
            Admission::Exempt => State::Called {
                future: call(),
                fields: Fields::new(),
                held: None,
            },
            Admission::Passed { held, fields } => State::Called {
                future: call(),
                fields,
                held: Some(held),
            },
            Admission::Refused(refused) => State::Refused {
                response: Some(refusal(refused)),
            },
            Admission::Failed(why) => State::Refused {
                response: Some(failure(why)),
            },
        };
        Self { state }
    }

    pub(crate) fn later(future: impl Future<Output = Answer<O, E, H>> + Send + 'static) -> Self {
        let future = Box::pin(future);
        Self {
            state: State::Later { future },
        }
    }
}

impl<F, O, E, H> Future for ResponseFuture<F, O, E, H>
where
    F: Future<Output = Result<Response<O>, E>>,
{
    type Output = Answer<O, E, H>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjected::Called {
                future,
                fields,
                held,
            } => {
                let response = ready!(future.poll(context))?;
                let fields = std::mem::take(fields);
                Poll::Ready(Ok(answer(response, fields, held.take())))
            }
            StateProjected::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => panic!("polled after it was ready"),
            },
            StateProjected::Later { future } => future.as_mut().poll(context),
        }
    }
}

/// The same for a request of which became known later what becomes of it.
pub(crate) async fn by<F, O, E, H>(
    admission: Admission<H>,
    call: impl FnOnce() -> F,
) -> Answer<O, E, H>
where
    F: Future<Output = Result<Response<O>, E>>,
{
    let (fields, held) = match admission {
        Admission::Exempt => (Fields::new(), None),
        Admission::Passed { held, fields } => (fields, Some(held)),
        Admission::Refused(refused) => return Ok(refusal(refused)),
        Admission::Failed(why) => return Ok(failure(why)),
    };
    Ok(answer(call().await?, fields, held))
}

/// The service's answer, with what it says of the limit.
#[inline]
fn answer<O, H>(
    mut response: Response<O>,
    fields: Fields,
    held: Option<H>,
) -> Response<Body<O, H>> {
    write(fields, response.headers_mut());
    response.map(|body| Body::of_service(body, held))
}

#[cold]
fn refusal<O, H>(refused: Refused) -> Response<Body<O, H>> {
    let mut response = Response::new(Body::of_refusal(refused.body));
    *response.status_mut() =
        StatusCode::from_u16(refused.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    write(refused.fields, response.headers_mut());
    response
}

#[cold]
fn failure<O, H>(why: &'static str) -> Response<Body<O, H>> {
    tracing::error!("{why}");
    let mut response = Response::new(Body::of_refusal(Vec::new()));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// Writes the fields; those that lists are made of are added to.
fn write(fields: Fields, headers: &mut http::HeaderMap) {
    for (name, value) in fields {
        let name = HeaderName::from_static(name);
        // All are made of printable signs.
        let Ok(value) = HeaderValue::try_from(value) else {
            continue;
        };
        if name == header::ACCESS_CONTROL_EXPOSE_HEADERS {
            headers.append(name, value);
        } else {
            headers.insert(name, value);
        }
    }
}

impl<F, O, E, H> fmt::Debug for ResponseFuture<F, O, E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
