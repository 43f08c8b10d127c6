//! A layer that paces outgoing calls, host by host, and follows the limits of each host.

use std::sync::Arc;

use http::{HeaderValue, Request, Response, header};
use tollgate::Rate;
use tollgate::clock::{Clock, Monotonic, Wall};
use tollgate_http::outgoing::{HostPacer, MaxWait};
use tower_layer::Layer;
use tower_service::Service;

use crate::client_layer::{
    BoxError, CallPolicy, ClientLayer, LayeredService, ReadyCall, ResponseBoxFuture,
};

/// A layer that paces the calls of a client. Its clones, and all clients that it wraps, share their rates.
///
/// A call waits until its host may be called. Each response updates the host's limits (`Retry-After`, `RateLimit` and
/// its variants) for the next calls. Calls that would wait too long fail immediately with a
/// [`PaceError`](crate::outgoing::PaceError); a [`MaxWait`] in a request's extensions sets the maximum for that
/// request. The client is made ready after the wait.
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tollgate::Rate;
/// use tollgate_tower::PaceLayer;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # let executor = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # executor.block_on(async {
/// // Instead of a hyper client:
/// let client = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new("hello")) });
/// let client = ServiceBuilder::new().layer(PaceLayer::new(Rate::per_second(50))).service(client);
/// let request = Request::get("http://api.example.com/").body(String::new())?;
/// assert_eq!(*client.oneshot(request).await?.body(), "hello");
/// # Ok::<(), tollgate_tower::BoxError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[derive_where::derive_where(Clone)]
pub struct PaceLayer<C: Clock = Monotonic, W: Clock = Wall> {
    pacer: Arc<HostPacer<C, W>>,
}

impl PaceLayer {
    /// Calls each host at this rate, and never faster than the host allows.
    ///
    /// # Panics
    /// If the rate is invalid. [`HostPacer::builder`] returns an error instead.
    pub fn new(rate: Rate) -> Self {
        Self::with_pacer(Arc::new(HostPacer::new(rate)))
    }
}

impl<C: Clock, W: Clock> PaceLayer<C, W> {
    /// Uses a pacer that others may share.
    pub const fn with_pacer(pacer: Arc<HostPacer<C, W>>) -> Self {
        Self { pacer }
    }
}

impl<S, C: Clock, W: Clock> Layer<S> for PaceLayer<C, W> {
    type Service = LayeredService<S, ClientLayer<Self>>;

    fn layer(&self, inner: S) -> Self::Service {
        LayeredService::new(inner, ClientLayer(self.clone()))
    }
}

impl<S, I, O, C, W> CallPolicy<S, I, O> for PaceLayer<C, W>
where
    S: Service<Request<I>, Response = Response<O>, Error: Into<BoxError>, Future: Send>
        + Send
        + 'static,
    I: Send + 'static,
    C: Clock + 'static,
    W: Clock + 'static,
{
    fn send(self, client: S, request: Request<I>) -> ResponseBoxFuture<O> {
        Box::pin(async move {
            let host = host_of(&request);
            let patience = request.extensions().get().copied();
            let call = match patience {
                Some(MaxWait(patience)) => self.pacer.acquire_within(&host, patience).await?,
                None => self.pacer.acquire(&host).await?,
            };
            let response = ReadyCall::new(client, request).await.map_err(Into::into)?;
            let headers = response.headers();
            self.pacer
                .record_response(&call, response.status().as_u16(), |name| {
                    headers.get_all(name).into_iter().map(HeaderValue::as_bytes)
                });
            Ok(response)
        })
    }
}

/// The host to call, with its port. Names in upper and lower case are one host, and so are a host with its default
/// port and without it.
fn host_of<B>(request: &Request<B>) -> String {
    let authority = request.uri().authority().map(|host| host.as_str());
    let field = || request.headers().get(header::HOST)?.to_str().ok();
    let host = authority.or_else(field).unwrap_or_default();
    // Strips the user info, which may have a password.
    let host = host.rsplit('@').next().unwrap_or_default();
    let mut host = host.to_ascii_lowercase();
    // The colons of an IPv6 address are between brackets.
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let usual = match request.uri().scheme_str() {
        Some("http") => ":80",
        Some("https") => ":443",
        _ => "",
    };
    if !has_port {
        host.push_str(usual);
    }
    host
}
