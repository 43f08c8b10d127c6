//! A [reqwest middleware](reqwest_middleware) that paces outgoing calls: each host at a rate of yours, and never
//! faster than the host allows.
//!
//! ```
//! use reqwest_middleware::ClientBuilder;
//! use tollgate::Rate;
//! use tollgate_reqwest::PaceMiddleware;
//!
//! let client = ClientBuilder::new(reqwest::Client::new())
//!     .with(PaceMiddleware::new(Rate::per_second(50).burst(10)))
//!     .build();
//! # let _ = client;
//! ```
//!
//! * [`PaceMiddleware`] is the middleware. Clones share their rates.
//! * [`HostPacer`] sets how long calls wait and how far the advice of hosts is followed.
//! * [`pace_error`] tells whether a call failed because it would have waited too long, and wasn't made.

#![forbid(unsafe_code)]

use std::sync::Arc;

use http::{Extensions, HeaderValue};
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Error, Middleware, Next};
use tollgate::Rate;
use tollgate::clock::{Clock, Monotonic, Wall};

pub use tollgate_http::outgoing::{
    HostPacer, HostPacerBuilder, MaxWait, PaceError, ResetMeaning, ServerAdvice,
};

/// Paces calls, host by host.
///
/// A call waits until its host may be called. Each response updates the host's limits (`Retry-After`, `RateLimit` and
/// its variants) for the next calls. Calls that would wait too long fail immediately; [`MaxWait`] sets the maximum
/// for one call (`request.with_extension(MaxWait(…))`). A dropped call leaves the queue.
///
/// Responses are returned as they are, unless [`retries`](Self::retries) lets denied calls be repeated.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::Rate;
/// use tollgate_reqwest::{PaceMiddleware, HostPacer};
///
/// let pacer = HostPacer::builder(Rate::per_second(100)).max_wait(Duration::from_secs(5)).build()?;
/// let pace = PaceMiddleware::with_pacer(Arc::new(pacer)).retries(2);
/// # let _ = pace;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(derive_more::Debug)]
#[derive_where::derive_where(Clone)]
pub struct PaceMiddleware<C: Clock = Monotonic, W: Clock = Wall> {
    pacer: Arc<HostPacer<C, W>>,
    retries: u32,
}

impl PaceMiddleware {
    /// Calls each host at this rate, and never faster than the host allows.
    ///
    /// # Panics
    /// If the rate is invalid. [`HostPacer::builder`] returns an error instead.
    pub fn new(rate: Rate) -> Self {
        Self::with_pacer(Arc::new(HostPacer::new(rate)))
    }
}

impl<C: Clock, W: Clock> PaceMiddleware<C, W> {
    /// Uses a pacer that others may share.
    pub const fn with_pacer(pacer: Arc<HostPacer<C, W>>) -> Self {
        Self { pacer, retries: 0 }
    }

    /// Retries denied calls up to this many times, when the host allows it. A denied call has had no effect yet, so
    /// this is safe for every method.
    ///
    /// A call whose body is a stream isn't retried, as it can't be sent twice. If a retry would wait too long, the
    /// denial is returned.
    #[must_use]
    pub const fn retries(mut self, most: u32) -> Self {
        self.retries = most;
        self
    }
}

#[async_trait::async_trait]
impl<C: Clock + 'static, W: Clock + 'static> Middleware for PaceMiddleware<C, W> {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, Error> {
        let (host, patience) = (host_of(request.url()), extensions.get::<MaxWait>().copied());
        let pass = async || match patience {
            Some(MaxWait(patience)) => self.pacer.acquire_within(&host, patience).await,
            None => self.pacer.acquire(&host).await,
        };
        let (mut request, mut retries) = (request, self.retries);
        let mut call = pass().await.map_err(Error::middleware)?;
        loop {
            let again = (retries > 0).then(|| request.try_clone()).flatten();
            let response = next.clone().run(request, extensions).await?;
            let headers = response.headers();
            let advice = self
                .pacer
                .record_response(&call, response.status().as_u16(), |name| {
                    headers.get_all(name).into_iter().map(HeaderValue::as_bytes)
                });
            let Some(again) = again.filter(|_| advice.is_denial) else {
                return Ok(response);
            };
            (request, retries) = (again, retries - 1);
            call = match pass().await {
                Ok(call) => call,
                // The host's denial is more useful to the caller than our own error.
                Err(_) => return Ok(response),
            };
        }
    }
}

/// The host to call, with its port.
fn host_of(url: &Url) -> String {
    // URLs without a host share one entry.
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Why a call wasn't made; none if it failed in another way.
///
/// ```
/// use tollgate_reqwest::pace_error;
///
/// let error = reqwest_middleware::Error::middleware(std::io::Error::other("something else"));
/// assert_eq!(pace_error(&error), None);
/// ```
pub fn pace_error(error: &Error) -> Option<&PaceError> {
    match error {
        Error::Middleware(error) => error.downcast_ref(),
        Error::Reqwest(_) => None,
    }
}

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
