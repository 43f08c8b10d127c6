//! The service behind the middleware: it passes requests to the request limiter, and writes its fields into
//! responses.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap, HeaderName, HeaderValue};
use actix_web::{Error, HttpMessage, HttpResponse, ResponseError};
use derive_more::{Debug, Display};
use tollgate_http::guard::{
    ActualCost, DeniedResponse, HeaderFields, HoldRequest, RequestLimiter, RequestLimits,
    RequestPermit, ResponseHead, UsageReporter,
};

use crate::body::Body;
use crate::head::RequestHead;

/// An app, a scope or a resource behind a [`RateLimit`](crate::RateLimit).
#[derive(Debug)]
pub struct RateLimitService<S, L> {
    #[debug(skip)]
    inner: Rc<S>,
    guard: Arc<RequestLimiter<RequestHead, L>>,
}

impl<S, L> RateLimitService<S, L> {
    pub(crate) const fn new(inner: Rc<S>, guard: Arc<RequestLimiter<RequestHead, L>>) -> Self {
        Self { inner, guard }
    }
}

type Answer<B, H> = Result<ServiceResponse<Body<B, H>>, Error>;

impl<S, B, L> Service<ServiceRequest> for RateLimitService<S, L>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    S::Future: 'static,
    B: MessageBody + 'static,
    L: RequestLimits<RequestHead>,
{
    type Response = ServiceResponse<Body<B, L::Held>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Answer<B, L::Held>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let head = RequestHead::new(request);
        let asked = self.guard.ask(&head);
        let (inner, guard) = (Rc::clone(&self.inner), Arc::clone(&self.guard));
        Box::pin(async move {
            let admission = guard.admission_of(&head, asked).await;
            let mut ticket = match guard.admit(&head, admission) {
                Ok(ticket) => ticket,
                Err(refused) => return Ok(denial_response(head, refused)),
            };
            // The extensions are back in the request from here on, so the app sees them.
            let request = head.into_request();
            attach_usage(&mut ticket, &request);
            write_limit_fields(inner.call(request).await, ticket)
        })
    }
}

/// Puts the usage reporter into the extensions of the request, for the app.
fn attach_usage<H: HoldRequest>(ticket: &mut RequestPermit<H>, request: &ServiceRequest) {
    let Some(usage) = ticket.usage() else { return };
    let mut extensions = request.extensions_mut();
    match extensions.get::<UsageReporter>() {
        Some(outer) => ticket.use_outer_usage(outer.clone()),
        None => {
            extensions.insert(usage.clone());
        }
    }
}

/// The app's response, with the header fields of the limit.
fn write_limit_fields<B: MessageBody, H: HoldRequest>(
    result: Result<ServiceResponse<B>, Error>,
    ticket: RequestPermit<H>,
) -> Answer<B, H> {
    match result {
        Ok(mut response) => {
            let used = response.response().extensions().get().copied();
            let (fields, rest) = ticket.replied(&ActixResponse {
                status: response.status(),
                headers: response.headers(),
                used,
            });
            write(fields, response.headers_mut(), add);
            Ok(response.map_body(|_, body| Body::of_service(body, rest)))
        }
        Err(error) => {
            // actix-web makes a response with this status of the error, and other middleware may still change it.
            let (fields, _) = ticket.replied(&ActixResponse {
                status: error.as_response_error().status_code(),
                headers: &HeaderMap::new(),
                used: None,
            });
            if fields.is_empty() {
                return Err(error);
            }
            Err(ErrorWithFields { error, fields }.into())
        }
    }
}

/// The response to a denied request.
fn denial_response<B: MessageBody, H: HoldRequest>(
    head: RequestHead,
    refused: DeniedResponse,
) -> ServiceResponse<Body<B, H>> {
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = HttpResponse::with_body(status, Body::of_refusal(refused.body));
    write(refused.fields, response.headers_mut(), replace);
    head.into_request().into_response(response)
}

/// The head of a response.
struct ActixResponse<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    used: Option<ActualCost>,
}

impl ResponseHead for ActixResponse<'_> {
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

/// Writes the fields with `put`, which is [`add`] or [`replace`].
fn write(
    fields: HeaderFields,
    headers: &mut HeaderMap,
    put: impl Fn(&mut HeaderMap, HeaderName, HeaderValue),
) {
    fields.for_each_owned(|name, value| {
        // Our own values are printable. A handler may have added a value that isn't: it is skipped.
        let written = (
            HeaderName::try_from(name),
            HeaderValue::from_maybe_shared(value),
        );
        let (Ok(name), Ok(value)) = written else {
            return;
        };
        if name == ACCESS_CONTROL_EXPOSE_HEADERS {
            headers.append(name, value);
        } else {
            put(headers, name, value);
        }
    });
}

/// For a response of the app: fields of an inner limit stay, as that limit knows better why it denied the request.
/// Lists of limits (draft 8, whose items begin with a quote) are extended.
fn add(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let is_list = |value: &HeaderValue| value.as_bytes().starts_with(b"\"");
    match headers.get(&name) {
        Some(own) if !(is_list(own) && is_list(&value)) => {}
        _ => headers.append(name, value),
    }
}

/// For a denial: the last value counts.
fn replace(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.insert(name, value);
}

/// An error of the app. Its response gets the header fields of the limit.
#[derive(Debug, Display)]
#[debug("{error:?}")]
#[display("{error}")]
struct ErrorWithFields {
    error: Error,
    fields: HeaderFields,
}

impl ResponseError for ErrorWithFields {
    fn status_code(&self) -> StatusCode {
        self.error.as_response_error().status_code()
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = self.error.error_response();
        write(self.fields.clone(), response.headers_mut(), add);
        response
    }
}
