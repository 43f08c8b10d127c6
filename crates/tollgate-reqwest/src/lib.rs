//! A middleware of [reqwest](reqwest_middleware) that paces the calls of a program: host by host at a rate of one's own, and no
//! faster than each host says.
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
//! * [`PaceMiddleware`] is the middleware; clones count together.
//! * [`Pacer`] says how long calls wait and how far hosts are believed.
//! * [`stalled`] tells a call that wasn't made, because it would have waited for too long, from one that failed.

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
/// A call waits until its host may be asked, and what each answer says of the host's limit (`Retry-After`, `RateLimit` and its
/// relatives) counts for the next. Calls that would wait for too long fail at once; [`MaxWait`] says what that is for one
/// of them (`request.with_extension(MaxWait(…))`). A call that is dropped frees its place.
///
/// Answers are handed on as they are, unless [`retries`](Self::retries) says to ask again when one is a refusal.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::Rate;
/// use tollgate_reqwest::{PaceMiddleware, HostPacer};
///
/// let pacer = HostPacer::builder(Rate::per_second(100)).longest_wait(Duration::from_secs(5)).build()?;
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
    /// Each host is asked at this rate, and no faster than it wants.
    ///
    /// # Panics
    /// If the rate can't be kept: [`HostPacer::builder`] has an error in place of that.
    pub fn new(rate: Rate) -> Self {
        Self::with_pacer(Arc::new(HostPacer::new(rate)))
    }
}

impl<C: Clock, W: Clock> PaceMiddleware<C, W> {
    /// By a pacer that others may share.
    pub const fn with_pacer(pacer: Arc<HostPacer<C, W>>) -> Self {
        Self { pacer, retries: 0 }
    }

    /// Calls that a limit refuses are made again, this often at most, when the host wants them: such calls did nothing
    /// yet, whatever their method. One whose body is a stream isn't, as it can't be sent twice; and one that would wait for too
    /// long is answered with the refusal.
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
                // What the host said is more than what this one could say.
                Err(_) => return Ok(response),
            };
        }
    }
}

/// Who is asked: host and port.
fn host_of(url: &Url) -> String {
    // Addresses without a host have none to be paced by: they share one.
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

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
