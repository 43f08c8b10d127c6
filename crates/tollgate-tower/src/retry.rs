//! A layer for clients that retries calls: only idempotent ones, within a budget, and when servers allow it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode};
use tollgate::clock::{Clock, Monotonic, Wall};
use tollgate_adaptive::protect::{Retry, RetryAdvice};
use tollgate_http::outgoing::{ResetMeaning, ServerAdvice};
use tower_layer::Layer;
use tower_service::Service;

use crate::BoxError;
use crate::client_layer::{CallPolicy, ClientLayer, LayeredService, ReadyCall, ResponseBoxFuture};

/// Retries calls by a [`Retry`], which sets the number of tries, the backoff, the total time and the retry budget.
///
/// * Only idempotent methods: `GET`, `HEAD`, `OPTIONS`, `TRACE`, `PUT` and `DELETE`
///   ([`retry_methods`](Self::retry_methods) changes that).
/// * Only responses with 429, 502, 503 and 504 ([`retry_statuses`](Self::retry_statuses)), and only errors of the
///   client that [`retry_errors`](Self::retry_errors) selects: by default none.
/// * Never before the time in `Retry-After`. If that is longer than a minute
///   ([`max_retry_after`](Self::max_retry_after)), the call isn't retried.
/// * Only as often as the [budget](tollgate_adaptive::protect::RetryBudget) allows, if there is one. A budget of 10 %
///   is empty until ten calls were made.
///
/// When retries stop, the last response or error is returned as it is. A request is cloned for each try, so its body
/// must be cloneable, such as bytes in memory.
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
/// // Instead of a hyper client:
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

/// Which calls may be retried.
#[derive(Clone, Copy)]
struct RetryTerms {
    methods: fn(&Method) -> bool,
    statuses: fn(StatusCode) -> bool,
    errors: fn(&BoxError) -> bool,
    longest_stop: Duration,
}

/// A try that may be repeated.
enum TryFailure<O> {
    Answer(Response<O>),
    Error(BoxError),
}

impl<C: Clock> RetryLayer<C> {
    /// Uses these retry settings. All clients of one backend should share them, to share the budget.
    pub fn with_retry(retry: Arc<Retry<C>>) -> Self {
        let terms = RetryTerms {
            methods: Method::is_idempotent,
            statuses: |status| matches!(status.as_u16(), 429 | 502..=504),
            errors: |_| false,
            longest_stop: Duration::from_secs(60),
        };
        Self { retry, terms }
    }

    /// Sets which methods are retried.
    pub fn retry_methods(mut self, methods: fn(&Method) -> bool) -> Self {
        self.terms.methods = methods;
        self
    }

    /// Sets which responses are retried.
    pub fn retry_statuses(mut self, statuses: fn(StatusCode) -> bool) -> Self {
        self.terms.statuses = statuses;
        self
    }

    /// Sets which errors of the client are retried.
    pub fn retry_errors(mut self, errors: fn(&BoxError) -> bool) -> Self {
        self.terms.errors = errors;
        self
    }

    /// Sets the longest `Retry-After` that is waited for: a minute by default.
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.terms.longest_stop = longest;
        self
    }
}

impl RetryTerms {
    /// Whether a failed try is repeated, and when.
    fn advise<O>(&self, method: &Method, failed: &TryFailure<O>) -> RetryAdvice {
        if !(self.methods)(method) {
            return RetryAdvice::Stop;
        }
        match failed {
            TryFailure::Error(error) if (self.errors)(error) => RetryAdvice::Retry,
            TryFailure::Error(_) => RetryAdvice::Stop,
            TryFailure::Answer(answer) => match retry_after(answer) {
                Some(delay) if delay > self.longest_stop => RetryAdvice::Stop,
                Some(delay) => RetryAdvice::RetryAfter(delay),
                None => RetryAdvice::Retry,
            },
        }
    }
}

/// The retry delay that a response states.
fn retry_after<O>(answer: &Response<O>) -> Option<Duration> {
    let (status, fields) = (answer.status().as_u16(), answer.headers());
    let unix_now = Wall.now().as_nanos() / 1_000_000_000;
    let advice = ServerAdvice::read(status, unix_now, ResetMeaning::Guess, |name| {
        fields.get_all(name).into_iter().map(HeaderValue::as_bytes)
    });
    advice.retry_after
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
