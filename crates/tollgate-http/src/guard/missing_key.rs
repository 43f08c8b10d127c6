//! The key of a request, and requests without one: what they lack, how they are answered, and the warning if no request has a key.

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

/// If so many requests come before the first that has a key, a layer is missing or in the wrong place.
const WARN_AFTER: u32 = 100;

/// A request had a key: none are counted any more.
const SOME_HAVE_ONE: u32 = u32::MAX;

/// Who has to supply the key that a request lacks. If requests without a key are [denied](OnMissingKey::Deny), this decides how.
///
/// What the server has to supply is a mistake in the server, so it is 500 and logged as an error. What clients send is their
/// mistake, so it is 400 or 401 and logged at debug: no client can fill a log.
///
/// ```
/// use tollgate_http::guard::KeySource;
///
/// let statuses = KeySource::ALL.map(KeySource::status);
/// assert_eq!(statuses, [500, 500, 400, 401]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// The server, which knows where a connection comes from.
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
    /// Who has to supply it.
    pub source: KeySource,
    /// What it is, as the end of "it lacks …". Clients read it if they have to supply it.
    pub wanted: Box<str>,
}

/// What was chosen for requests without a key, and how many came before the first with one.
#[derive(Debug)]
pub(super) struct MissingKeyHandler {
    pub(super) on_missing: OnMissingKey,
    seen: AtomicU32,
}

/// The key of all requests without one. No key of a client has the same hash: these are no lengths, and no text is as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedKey(u64, u64);

/// An answer that takes longer than this is charged its estimate.
const LONGEST: Duration = Duration::from_secs(600);
/// The only one.
const SHARED_KEY: SharedKey = SharedKey(0xf1c6_52d8_0b6f_3a97, 0xd3e1_9c40_77a5_8e2b);

impl KeySource {
    /// Every source.
    pub const ALL: [Self; 4] = [
        Self::Connection,
        Self::Extension,
        Self::Request,
        Self::Credentials,
    ];

    /// The HTTP status of requests that are denied because it supplied no key.
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
    /// A request lacks this, which that one has to supply.
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
                "let the server tell the address: axum does with into_make_service_with_connect_info::<SocketAddr>() and \
                 the feature \"axum\" of tollgate-tower; elsewhere put a SocketAddr into the request's extensions"
            }
            KeySource::Extension => {
                "put the layer that sets it outside of this one, which in axum means to add it after this one: the layer \
                 that is added last runs first"
            }
            KeySource::Request | KeySource::Credentials => {
                "if clients needn't send it, name another key to fall back to: keys::first((…, keys::Address::new()))"
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
    /// A request has a key.
    #[inline]
    pub(super) fn record_key_found(&self) {
        // Nothing is ordered by the number.
        if self.seen.load(Ordering::Relaxed) != SOME_HAVE_ONE {
            self.seen.store(SOME_HAVE_ONE, Ordering::Relaxed);
        }
    }

    /// The key of a request that has none of its own at the limit of this name, or what becomes of the request.
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
                // Logged as an error at once.
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

    /// Counts the requests before the first that has a key, and warns of the hundredth.
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

/// What is kept in place of a key: two hashes of it with seeds that nobody knows. So no token can be read from memory, and
/// no two keys that a client chooses meet.
pub type Fingerprint = [u64; 2];

/// What the limits by key have in common: where keys are found and what is kept of them, the name that clients are told, and
/// how long a request over the limit waits.
#[derive(Debug)]
pub(crate) struct KeyFinder<K> {
    pub(super) key: K,
    pub(super) keyless: MissingKeyHandler,
    pub(super) name: Arc<str>,
    pub(super) longest_wait: Duration,
    /// For how long a cost is held at most, by limits that settle it.
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

    /// Whether a request that is over the limit waits for its turn.
    #[inline]
    pub(super) fn waits(&self, decision: &Decision, terms: &Terms<'_>) -> bool {
        let is_soon = !self.longest_wait.is_zero() && decision.wait_or_max() <= self.longest_wait;
        terms.may_wait && is_soon && decision.outcome == Outcome::Denied
    }

    /// Why a request of this key is over the limit.
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

/// Limits by key: what counts keys, and where a request's key is found. [`RatePerKey`](super::RatePerKey),
/// [`SettlingRatePerKey`](super::SettlingRatePerKey) and [`ConcurrencyLimit`](super::ConcurrencyLimit) are such.
#[derive(Debug)]
#[must_use]
pub struct KeyedLimits<T, K> {
    pub(super) limiter: Arc<T>,
    pub(super) finder: KeyFinder<K>,
}

impl<T, K> KeyedLimits<T, K> {
    /// What clients are told that it is called: what it limits with the rate or the number that it was made with, as `requests:10/s` and
    /// `requests-at-once:20`, unless this says otherwise. Clients tell limits apart by their names, so name two layers of one rate,
    /// and one whose rate changes.
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

    /// What happens to requests without a key: they are denied, unless this says otherwise. [`KeySource`] says with which status. To
    /// fall back to another key, say [`keys::first`](super::keys::first).
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

    /// A request that is over the limit waits for its turn if that comes within this time, first come first served. One that is over a
    /// rate for longer is refused at once; when a slot comes back nobody knows, so each waits for that. Of an
    /// [`SettlingRatePerKey`](super::SettlingRatePerKey) it holds its cost from its turn on; what others hold may come back at any time, so one that
    /// waits for that may be refused only when its time is over. At most as many wait as the limiter lets
    /// ([`max_waiters`](tollgate::keyed::HostPacerBuilder::max_waiters)). Nobody's turn at a rate comes sooner if a request goes away, but its
    /// place is free.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{SettlingRatePerKey, keys::Header};
    ///
    /// let tokens = SettlingRatePerKey::new(Rate::per_minute(90_000), Header::new("x-api-key"))?.max_wait(Duration::from_secs(5));
    /// # let _ = tokens;
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub const fn max_wait(mut self, longest: Duration) -> Self {
        self.finder.longest_wait = longest;
        self
    }

    /// The limiter, which knows how much is under way, and for what operators do: block a key, forget one, change the rate.
    pub const fn limiter(&self) -> &Arc<T> {
        &self.limiter
    }
}
