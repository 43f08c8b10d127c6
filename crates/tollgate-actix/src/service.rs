//! The service behind limits: requests to the guard, answers back.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap, HeaderName, HeaderValue};
use actix_web::{Error, HttpMessage, HttpResponse};
use tollgate_http::guard::{
    Admission, Asked, Fields, Guard, Held, Limits, Refused, Reply, Ticket, Used,
};

use crate::body::Body;
use crate::head::Head;

/// An app, a scope or a resource behind limits.
pub struct Limited<S, L> {
    inner: Rc<S>,
    guard: Arc<Guard<Head, L>>,
}

impl<S, L> Limited<S, L> {
    pub(crate) const fn new(inner: Rc<S>, guard: Arc<Guard<Head, L>>) -> Self {
        Self { inner, guard }
    }
}

type Answer<B, H> = Result<ServiceResponse<Body<B, H>>, Error>;

impl<S, B, L> Service<ServiceRequest> for Limited<S, L>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    S::Future: 'static,
    B: MessageBody + 'static,
    L: Limits<Head>,
{
    type Response = ServiceResponse<Body<B, L::Held>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Answer<B, L::Held>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let head = Head::new(request);
        let asked = self.guard.ask(&head);
        let (inner, guard) = (Rc::clone(&self.inner), Arc::clone(&self.guard));
        Box::pin(async move {
            let admission = match asked {
                Asked::Now(admission) => admission,
                Asked::Later(later) => guard.answer(later).await,
            };
            let ticket = match admission {
                Admission::Passed(ticket) => ticket,
                Admission::Refused(denial) => {
                    let refused = guard.tell(&head, &denial);
                    return Ok(refusal(head, refused));
                }
                Admission::Failed(_) => return Ok(failure(head)),
            };
            let request = head.into_request();
            if let Some(usage) = ticket.usage() {
                request.extensions_mut().insert(usage.clone());
            }
            answer(inner.call(request).await, ticket)
        })
    }
}

/// The app's answer, with what it says of the limit.
fn answer<B: MessageBody, H: Held>(
    result: Result<ServiceResponse<B>, Error>,
    ticket: Ticket<H>,
) -> Answer<B, H> {
    match result {
        Ok(mut response) => {
            let used = response.response().extensions().get().copied();
            let (fields, rest) = ticket.replied(&ReplyHead {
                status: response.status(),
                headers: response.headers(),
                used,
            });
            write(&fields, response.headers_mut());
            Ok(response.map_body(|_, body| Body::of_service(body, rest)))
        }
        Err(error) => {
            // What actix-web makes of it: an answer with this status, which other middleware may still write.
            let _ = ticket.replied(&ReplyHead {
                status: error.as_response_error().status_code(),
                headers: &HeaderMap::new(),
                used: None,
            });
            Err(error)
        }
    }
}

/// The answer to a refused request.
fn refusal<B: MessageBody, H: Held>(head: Head, refused: Refused) -> ServiceResponse<Body<B, H>> {
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = HttpResponse::with_body(status, Body::of_refusal(refused.body));
    write(&refused.fields, response.headers_mut());
    head.into_request().into_response(response)
}

/// The answer to a request of which nothing can be said.
#[cold]
fn failure<B: MessageBody, H: Held>(head: Head) -> ServiceResponse<Body<B, H>> {
    let body = Body::of_refusal(Vec::new());
    let response = HttpResponse::with_body(StatusCode::INTERNAL_SERVER_ERROR, body);
    head.into_request().into_response(response)
}

/// The head of an answer.
struct ReplyHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    used: Option<Used>,
}

impl Reply for ReplyHead<'_> {
    fn status(&self) -> u16 {
        self.status.as_u16()
    }

    fn line(&self, field: &str) -> Option<&[u8]> {
        self.headers.get(field).map(HeaderValue::as_bytes)
    }

    fn used(&self) -> Option<u64> {
        self.used.map(|used| used.0)
    }
}

/// Writes the fields; those that lists are made of are added to.
fn write(fields: &Fields, headers: &mut HeaderMap) {
    for (name, value) in fields.iter() {
        // Ours are made of printable signs; of those that a handler added, what can't be written isn't.
        let written = (HeaderName::try_from(name), HeaderValue::from_str(value));
        let (Ok(name), Ok(value)) = written else {
            continue;
        };
        if name == ACCESS_CONTROL_EXPOSE_HEADERS {
            headers.append(name, value);
        } else {
            headers.insert(name, value);
        }
    }
}

impl<S, L: fmt::Debug> fmt::Debug for Limited<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited")
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
