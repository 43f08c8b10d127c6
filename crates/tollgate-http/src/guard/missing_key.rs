//! Finding the key of a request, and handling requests without one: the response, and a warning if no request ever
//! has a key.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use derive_more::Display;
use foldhash::quality::RandomState;
use tollgate::{Decision, OnMissingKey, Outcome};

use super::denial::Denial;
use super::events;
use super::keys::KeyExtractor;
use super::request::Request;
use super::{LimitOutcome, ServerMistake, Terms};
use crate::DenyReason;

/// After this many requests without a single key, a layer is probably missing or in the wrong place.
const WARN_AFTER: u32 = 100;

/// A request had a key, so requests without one aren't counted any more.
const SOME_HAVE_ONE: u32 = u32::MAX;

/// Who has to supply the key that a request lacks. If requests without a key are [denied](OnMissingKey::Deny), this
/// decides how.
///
/// A key that the server has to supply is missing by a mistake of the server: 500, logged as an error. A key that the
/// client has to supply is missing by a mistake of the client: 400 or 401, logged at debug level, so that no client
/// can fill a log.
///
/// ```
/// use tollgate_http::guard::KeySource;
///
/// let statuses = KeySource::ALL.map(KeySource::status);
/// assert_eq!(statuses, [500, 500, 400, 401]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// The server, which knows the address of the connection.
    Connection,
    /// A layer further out, which sets an extension.
    Extension,
    /// The client, by a header, a cookie or a path.
    Request,
    /// The client, by the header `authorization`.
    Credentials,
}

/// What a request without a key lacks.
///
/// ```
/// use tollgate_http::guard::{KeySource, MissingKey};
///
/// let missing = MissingKey::new(KeySource::Request, "exactly one header x-api-key");
/// assert_eq!((missing.source.status(), &*missing.wanted), (400, "exactly one header x-api-key"));
/// ```
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("it lacks {wanted}: {}", self.advice())]
#[non_exhaustive]
pub struct MissingKey {
    /// Who has to supply the key.
    pub source: KeySource,
    /// What is missing, as the end of "it lacks …". Clients read it if they have to supply it.
    pub wanted: Box<str>,
}

/// The setting for requests without a key, and their count before the first request with a key.
#[derive(Debug)]
pub(super) struct MissingKeyHandler {
    pub(super) on_missing: OnMissingKey,
    seen: AtomicU32,
}

/// The key that all requests without a key share. No client can choose a key with the same hash: these numbers aren't
/// lengths, and no text is that long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedKey(u64, u64);

/// The longest time until a cost is settled; a longer response is charged its estimate.
const LONGEST: Duration = Duration::from_secs(600);
/// The only shared key.
const SHARED_KEY: SharedKey = SharedKey(0xf1c6_52d8_0b6f_3a97, 0xd3e1_9c40_77a5_8e2b);

impl KeySource {
    /// Every source.
    pub const ALL: [Self; 4] = [
        Self::Connection,
        Self::Extension,
        Self::Request,
        Self::Credentials,
    ];

    /// The HTTP status of requests that are denied because this source supplied no key.
    pub const fn status(self) -> u16 {
        match self {
            Self::Connection | Self::Extension => 500,
            Self::Request => 400,
            Self::Credentials => 401,
        }
    }

    const fn is_server(self) -> bool {
        matches!(self, Self::Connection | Self::Extension)
    }
}

impl MissingKey {
    /// The request lacks `wanted`, which `source` has to supply.
    pub fn new(source: KeySource, wanted: &str) -> Self {
        Self {
            source,
            wanted: wanted.into(),
        }
    }

    /// What the operator can do about it.
    const fn advice(&self) -> &'static str {
        match self.source {
            KeySource::Connection => {
                "let the server report the address: axum does with into_make_service_with_connect_info::<SocketAddr>() and \
                 the feature \"axum\" of tollgate-tower; elsewhere put a SocketAddr into the request's extensions"
            }
            KeySource::Extension => {
                "put the layer that sets it outside of this one, which in axum means to add it after this one: the layer \
                 that is added last runs first"
            }
            KeySource::Request | KeySource::Credentials => {
                "if clients needn't send it, add another key to fall back to: keys::first_of((…, keys::ClientAddress::new()))"
            }
        }
    }
}

impl Default for MissingKeyHandler {
    fn default() -> Self {
        Self {
            on_missing: OnMissingKey::Deny,
            seen: AtomicU32::new(0),
        }
    }
}

impl MissingKeyHandler {
    /// Records that a request has a key.
    #[inline]
    pub(super) fn record_key_found(&self) {
        // Only the number itself counts, so relaxed ordering is enough. The load first keeps the cache line shared
        // between cores.
        if self.seen.load(Ordering::Relaxed) != SOME_HAVE_ONE {
            self.seen.store(SOME_HAVE_ONE, Ordering::Relaxed);
        }
    }

    /// The shared key of a request without a key of its own, or what becomes of the request.
    #[cold]
    pub(super) fn substitute_key<R: Request + ?Sized, H>(
        &self,
        key: &impl KeyExtractor<R>,
        request: &R,
        limit: &str,
    ) -> Result<SharedKey, LimitOutcome<H>> {
        if let Some(doubled) = key.ambiguous(request) {
            return Err(LimitOutcome::missing_key(limit, doubled));
        }
        if self.on_missing == OnMissingKey::Deny {
            let missing = key.missing(request);
            if missing.source.is_server() {
                // `Failed` is logged as an error, so it isn't counted for the warning.
                return Err(LimitOutcome::Failed(ServerMistake::NoKey(missing)));
            }
            self.count_missing(|| missing.clone());
            return Err(LimitOutcome::missing_key(limit, missing));
        }
        self.count_missing(|| key.missing(request));
        match self.on_missing {
            OnMissingKey::OneCounter => Ok(SHARED_KEY),
            _ => Err(LimitOutcome::Exempt),
        }
    }

    /// Counts requests before the first one with a key, and warns at the hundredth.
    fn count_missing(&self, missing: impl FnOnce() -> MissingKey) {
        let count = |seen| (seen < WARN_AFTER).then(|| seen + 1);
        let before = self
            .seen
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        if before == Ok(WARN_AFTER - 1) {
            let missing = missing();
            tracing::warn!(
                target: events::TARGET,
                requests = WARN_AFTER,
                on_missing_key = self.on_missing.name(),
                wanted = &*missing.wanted,
                "not one request so far had the key of its limit: {}",
                missing.advice()
            );
        }
    }
}

/// What is kept instead of a key: two hashes of it with secret seeds. So no token can be read from memory, and
/// clients can't construct keys that collide.
pub type Fingerprint = [u64; 2];

/// What all limits by key share: where the key is, the fingerprint that is kept of it, the name that clients read,
/// and how long a request over the limit waits.
#[derive(Debug)]
pub(crate) struct KeyFinder<K> {
    pub(super) key: K,
    pub(super) keyless: MissingKeyHandler,
    pub(super) name: Arc<str>,
    pub(super) longest_wait: Duration,
    /// How long a cost is reserved at most, in limits that settle.
    pub(super) settle_within: Duration,
    seeds: [RandomState; 2],
}

impl<K> KeyFinder<K> {
    pub(super) fn new(key: K, name: String) -> Self {
        Self {
            key,
            keyless: MissingKeyHandler::default(),
            name: name.into(),
            longest_wait: Duration::ZERO,
            settle_within: LONGEST,
            seeds: [RandomState::default(), RandomState::default()],
        }
    }

    /// Whether a request over the limit waits in the queue.
    #[inline]
    pub(super) fn waits(&self, decision: &Decision, terms: &Terms<'_>) -> bool {
        let is_soon = !self.longest_wait.is_zero() && decision.wait_or_max() <= self.longest_wait;
        terms.may_wait && is_soon && decision.outcome == Outcome::Denied
    }

    /// The denial of a request with this key.
    pub(super) fn denial(&self, reason: DenyReason, key: u64, decision: &Decision) -> Denial {
        Denial::new(reason, Arc::clone(&self.name), *decision).key(key)
    }

    /// The fingerprint of a request's key, or what becomes of a request without one.
    pub(super) fn find<R: Request + ?Sized, H>(
        &self,
        request: &R,
    ) -> Result<Fingerprint, LimitOutcome<H>>
    where
        K: KeyExtractor<R>,
    {
        if let Some(key) = self.key.key(request) {
            self.keyless.record_key_found();
            return Ok(self.fingerprint(&key));
        }
        let shared = self
            .keyless
            .substitute_key(&self.key, request, &self.name)?;
        Ok(self.fingerprint(&shared))
    }

    fn fingerprint(&self, key: &impl Hash) -> Fingerprint {
        let [one, other] = &self.seeds;
        [one.hash_one(key), other.hash_one(key)]
    }
}

/// Limits by key: a limiter, and a key extractor. [`RatePerKey`](super::RatePerKey),
/// [`SettlingRatePerKey`](super::SettlingRatePerKey) and [`ConcurrencyLimit`](super::ConcurrencyLimit) are of this
/// type.
#[derive(Debug)]
#[must_use]
pub struct KeyedLimits<T, K> {
    pub(super) limiter: Arc<T>,
    pub(super) finder: KeyFinder<K>,
}

impl<T, K> KeyedLimits<T, K> {
    /// Sets the name that clients read. By default it has the configured rate or number in it, such as
    /// `requests:10/s` or `requests-at-once:20`.
    ///
    /// Clients distinguish limits by name, so name two layers of the same rate, and a layer whose rate changes.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{RatePerKey, keys::ClientAddress};
    ///
    /// let limits = RatePerKey::new(Rate::per_second(10), ClientAddress::new())?.named("api");
    /// # let _ = limits;
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn named(mut self, name: &str) -> Self {
        self.finder.name = name.into();
        self
    }

    /// Sets what happens to requests without a key: by default they are denied. [`KeySource`] decides the status. To
    /// use another key instead, see [`keys::first_of`](super::keys::first_of).
    ///
    /// ```
    /// use tollgate::{OnMissingKey, Rate};
    /// use tollgate_http::guard::{RatePerKey, keys::Header};
    ///
    /// // All clients that send no API key share one counter of 100 a minute.
    /// let limits = RatePerKey::new(Rate::per_minute(100), Header::new("x-api-key"))?
    ///     .on_missing_key(OnMissingKey::OneCounter);
    /// # let _ = limits;
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub const fn on_missing_key(mut self, choice: OnMissingKey) -> Self {
        self.finder.keyless.on_missing = choice;
        self
    }

    /// Lets a request over the limit wait in a queue, in order of arrival, if it can pass within this time.
    ///
    /// * Over a rate, a request that would wait longer is denied immediately.
    /// * Over a concurrency limit, the time until a permit is released is unknown, so every request waits for it.
    /// * In a [`SettlingRatePerKey`](super::SettlingRatePerKey), a request reserves its cost when it leaves the
    ///   queue. Other reservations may be refunded at any time, so a request that waits for a refund may be denied
    ///   only at its timeout.
    ///
    /// The limiter bounds the number of waiters ([`max_waiters`](tollgate::keyed::Builder::max_waiters)).
    /// If a waiting request is dropped, its queue position is free, but the other requests don't pass any sooner.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{SettlingRatePerKey, keys::Header};
    ///
    /// let tokens = SettlingRatePerKey::new(Rate::per_minute(90_000), Header::new("x-api-key"))?
    ///     .max_wait(Duration::from_secs(5));
    /// # let _ = tokens;
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub const fn max_wait(mut self, longest: Duration) -> Self {
        self.finder.longest_wait = longest;
        self
    }

    /// The limiter, for its counters and for operators: block a key, forget a key, or change the rate.
    pub const fn limiter(&self) -> &Arc<T> {
        &self.limiter
    }
}
