//! The answer to a request that was admitted or not, on its way.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tollgate::concurrency::{Ending, Permit, PermitHome};
use tower_service::Service;

use crate::body::ShedBody;
use crate::layered::{Call, status_of};

pub(super) type Answer<O, E, H> = Result<Response<ShedBody<O, H>>, E>;

/// What comes of a request means to the limit.
pub(super) struct Means<E> {
    pub(super) answer: fn(StatusCode) -> Ending,
    pub(super) error: fn(&E) -> Ending,
}

pin_project! {
    /// The answer to a request, on its way. Dropping it gives back the place, and tells the limit nothing.
    pub struct ShedFuture<S, I, O, E, H>
    where
        S: Service<Request<I>>,
        H: PermitHome,
    {
        #[pin]
        state: State<S, I, O, E, H>,
    }
}

pin_project! {
    #[project = StateProjected]
    enum State<S, I, O, E, H>
    where
        S: Service<Request<I>>,
        H: PermitHome,
    {
        Admitted { #[pin] call: Call<S, I>, permit: Option<Permit<H>>, means: Means<E> },
        Refused { answer: Option<Answer<O, E, H>> },
    }
}

impl<S: Service<Request<I>>, I, O, E, H: PermitHome> ShedFuture<S, I, O, E, H> {
    pub(super) const fn admitted(
        service: S,
        request: Request<I>,
        permit: Permit<H>,
        means: Means<E>,
    ) -> Self {
        Self {
            state: State::Admitted {
                call: Call::new(service, request),
                permit: Some(permit),
                means,
            },
        }
    }

    pub(super) const fn refused(answer: Answer<O, E, H>) -> Self {
        let answer = Some(answer);
        Self {
            state: State::Refused { answer },
        }
    }
}

impl<S, I, O, E, H> Future for ShedFuture<S, I, O, E, H>
where
    S: Service<Request<I>, Response = Response<O>>,
    S::Error: Into<E>,
    O: http_body::Body,
    H: PermitHome,
{
    type Output = Answer<O, E, H>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match self.project().state.project() {
            StateProjected::Admitted {
                call,
                permit,
                means,
            } => {
                let answer = ready!(call.poll(context));
                permit.take().map(|permit| match answer {
                    Ok(answer) => Ok(answered(answer, permit, means.answer)),
                    Err(error) => {
                        let error = error.into();
                        permit.end((means.error)(&error));
                        Err(error)
                    }
                })
            }
            StateProjected::Refused { answer } => answer.take(),
        };
        match answer {
            Some(answer) => Poll::Ready(answer),
            None => panic!("polled after it was ready"),
        }
    }
}

/// The head is there, and with it how long the request took and how it went; its place is needed until its body has ended.
fn answered<O: http_body::Body, H: PermitHome>(
    answer: Response<O>,
    mut permit: Permit<H>,
    means: fn(StatusCode) -> Ending,
) -> Response<ShedBody<O, H>> {
    permit.tell(means(status_of(&answer)));
    answer.map(|body| {
        // A body that has nothing to send keeps no place.
        let permit = (!body.is_end_stream()).then_some(permit);
        ShedBody::of_service(body, permit)
    })
}

impl<S: Service<Request<I>>, I, O, E, H: PermitHome> fmt::Debug for ShedFuture<S, I, O, E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedFuture").finish_non_exhaustive()
    }
}
