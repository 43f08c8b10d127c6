//! A layer for clients that tries calls again: those that may be, as often as a budget allows, and when servers want it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode};
use tollgate::clock::{Clock, Monotonic, Wall};
use tollgate_adaptive::protect::{Retry, RetryAdvice};
use tollgate_http::outgoing::{ResetMeaning, ServerAdvice as Said};
use tower_layer::Layer;
use tower_service::Service;

use crate::BoxError;
use crate::client_layer::{CallPolicy, ClientLayer, LayeredService, ReadyCall, ResponseBoxFuture};

/// Tries calls again by a [`Retry`], which says how often, after how long, within which time and by which budget.
///
/// * Only methods that may be done twice: `GET`, `FILE_HEADER`, `OPTIONS`, `TRACE`, `PUT` and `DELETE`
///   ([`methods`](Self::retry_methods) says otherwise).
/// * Only answers of 429, 502, 503 and 504 ([`statuses`](Self::statuses)), and only errors of the client that
///   [`errors`](Self::errors) names: none unless it is given.
/// * Never before the time that `Retry-After` says. If that is longer than a minute ([`longest_stop`](Self::max_retry_after)) it isn't
///   tried again.
/// * Only as often as its [budget](tollgate_adaptive::protect::RetryBudget) allows, if it has one: one of 10 % is empty until ten calls were made.
///
/// What isn't tried again is handed on as it is: the last answer, or the last error. A request is cloned for each try, so its
/// body has to be one that can be, as bytes that are there already.
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use http::{Request, Response};
/// use tollgate_adaptive::protect::{Backoff, RetryBudget, Retry};
/// use tollgate_tower::RetryLayer;
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// # let executor = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # executor.block_on(async {
/// // In place of a client of hyper:
/// let client = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new("hello")) });
/// let retry = Retry::new(Backoff::new()).budget(Arc::new(RetryBudget::percent(10)));
/// let mut client = ServiceBuilder::new().layer(RetryLayer::with_retry(Arc::new(retry))).service(client);
/// assert_eq!(*client.call(Request::new(String::new())).await?.body(), "hello");
/// # Ok::<(), tollgate_tower::BoxError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[derive_where::derive_where(Clone)]
#[must_use]
pub struct RetryLayer<C: Clock = Monotonic> {
    #[debug(skip)]
    retry: Arc<Retry<C>>,
    #[debug(skip)]
    terms: RetryTerms,
}

/// What may be tried again.
#[derive(Clone, Copy)]
struct RetryTerms {
    methods: fn(&Method) -> bool,
    statuses: fn(StatusCode) -> bool,
    errors: fn(&BoxError) -> bool,
    longest_stop: Duration,
}

/// What a try came to that isn't what was hoped for.
enum TryFailure<O> {
    Answer(Response<O>),
    Error(BoxError),
}

impl<C: Clock> RetryLayer<C> {
    /// By these terms. All clients of one backend should share them, as they share the budget then.
    pub fn with_retry(retry: Arc<Retry<C>>) -> Self {
        let terms = RetryTerms {
            methods: Method::is_idempotent,
            statuses: |status| matches!(status.as_u16(), 429 | 502..=504),
            errors: |_| false,
            longest_stop: Duration::from_secs(60),
        };
        Self { retry, terms }
    }

    /// Which methods may be done twice.
    pub fn retry_methods(mut self, methods: fn(&Method) -> bool) -> Self {
        self.terms.methods = methods;
        self
    }

    /// Which answers are to be tried again.
    pub fn retry_statuses(mut self, statuses: fn(StatusCode) -> bool) -> Self {
        self.terms.statuses = statuses;
        self
    }

    /// Which errors of the client are to be tried again.
    pub fn retry_errors(mut self, errors: fn(&BoxError) -> bool) -> Self {
        self.terms.errors = errors;
        self
    }

    /// The longest `Retry-After` that is waited for: a minute unless said otherwise.
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.terms.longest_stop = longest;
        self
    }
}

impl RetryTerms {
    /// What a try that came to this is to be done about.
    fn advise<O>(&self, method: &Method, failed: &TryFailure<O>) -> RetryAdvice {
        if !(self.methods)(method) {
            return RetryAdvice::Stop;
        }
        match failed {
            TryFailure::Error(error) if (self.errors)(error) => RetryAdvice::Retry,
            TryFailure::Error(_) => RetryAdvice::Stop,
            TryFailure::Answer(answer) => match retry_after(answer) {
                Some(said) if said > self.longest_stop => RetryAdvice::Stop,
                Some(said) => RetryAdvice::RetryAfter(said),
                None => RetryAdvice::Retry,
            },
        }
    }
}

/// What an answer says of when to come back.
fn retry_after<O>(answer: &Response<O>) -> Option<Duration> {
    let (status, fields) = (answer.status().as_u16(), answer.headers());
    let unix_now = Wall.now().as_nanos() / 1_000_000_000;
    let said = Said::read(status, unix_now, ResetMeaning::Guess, |name| {
        fields.get_all(name).into_iter().map(HeaderValue::as_bytes)
    });
    said.retry_after
}

impl<S, C: Clock> Layer<S> for RetryLayer<C> {
    type Service = LayeredService<S, ClientLayer<Self>>;

    fn layer(&self, inner: S) -> Self::Service {
        LayeredService::new(inner, ClientLayer(self.clone()))
    }
}

impl<S, I, O, C> CallPolicy<S, I, O> for RetryLayer<C>
where
    S: Service<Request<I>, Response = Response<O>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    I: Clone + Send + Sync + 'static,
    O: Send + Sync + 'static,
    C: Clock + 'static,
{
    fn send(self, client: S, request: Request<I>) -> ResponseBoxFuture<O> {
        Box::pin(async move {
            let Self { retry, terms } = self;
            let tries = || try_once(client.clone(), request.clone(), terms.statuses);
            let method = request.method();
            let answer = retry.call(tries, |failed| terms.advise(method, failed));
            answer.await.or_else(|gave_up| match gave_up.error {
                TryFailure::Answer(answer) => Ok(answer),
                TryFailure::Error(error) => Err(error),
            })
        })
    }
}

async fn try_once<S, I, O>(
    client: S,
    request: Request<I>,
    statuses: fn(StatusCode) -> bool,
) -> Result<Response<O>, TryFailure<O>>
where
    S: Service<Request<I>, Response = Response<O>>,
    S::Error: Into<BoxError>,
{
    let answer = ReadyCall::new(client, request).await;
    let answer = answer.map_err(|error| TryFailure::Error(error.into()))?;
    if statuses(answer.status()) {
        Err(TryFailure::Answer(answer))
    } else {
        Ok(answer)
    }
}
