//! Blocks for clients that are denied too often, and the tarpit for clients that retry too early.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::RandomState;
use tollgate::clock::sleep_until;
use tollgate::concurrency::{OwnedKeyedPermit, OwnedPermit};
use tollgate::{
    Clock, ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedLimiter, LimitError, Rate,
};

use super::keys::KeyExtractor;
use super::missing_key::MissingKey;
use super::request::Request;

/// The keys with recent denials or retry delays that are sure to be kept: 25 MB at most.
const KEYS: usize = 1_000_000;

/// The clock of a request limiter's own state.
pub(super) type AnyClock = Arc<dyn Clock>;

/// Extracts the hashed key of a client. None if the request has no key. An ambiguous key is an error: a blocked
/// client could add a second value to hide the first.
pub(super) type OffenderKey<R> = Box<dyn Fn(&R) -> Result<Option<u64>, MissingKey> + Send + Sync>;

fn whom<R: Request + ?Sized>(key: impl KeyExtractor<R>) -> OffenderKey<R> {
    let seed = RandomState::default();
    Box::new(move |request| match key.key(request) {
        Some(key) => Ok(Some(seed.hash_one(key))),
        None => key.ambiguous(request).map_or(Ok(None), Err),
    })
}

/// When a key is blocked for its denials, and for how long.
///
/// ```
/// use std::num::NonZero;
/// use std::time::Duration;
/// use tollgate_http::guard::BlockAfter;
///
/// // Ten denials within a minute, then an hour of denials:
/// let ten = NonZero::new(10).expect("more than zero");
/// let block = BlockAfter::after(ten, Duration::from_secs(60)).lasting(Duration::from_secs(3_600));
/// # let _ = block;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAfter {
    refusals: NonZeroU32,
    within: Duration,
    lasting: Duration,
}

impl BlockAfter {
    /// Blocks a key after this many denials within this time. Denials are forgotten one by one over that time. By
    /// default a block lasts as long.
    pub const fn after(refusals: NonZeroU32, within: Duration) -> Self {
        Self {
            refusals,
            within,
            lasting: within,
        }
    }

    /// Sets how long a block lasts.
    #[must_use]
    pub const fn lasting(mut self, time: Duration) -> Self {
        self.lasting = time;
        self
    }
}

/// The denials of each key, and the blocks.
pub(super) struct BlockList<R: ?Sized> {
    pub(super) block: BlockAfter,
    pub(super) whom: OffenderKey<R>,
    /// Has one token for each denial that is tolerated; a block is a block of this limiter.
    refusals: KeyedLimiter<AnyClock>,
}

impl<R: Request + ?Sized> BlockList<R> {
    pub(super) fn new(
        block: BlockAfter,
        key: impl KeyExtractor<R>,
        clock: AnyClock,
    ) -> Result<Self, LimitError> {
        let rate = Rate::new(block.refusals.get().into(), block.within);
        Ok(Self {
            block,
            whom: whom(key),
            refusals: KeyedLimiter::builder(rate, KEYS).clock(clock).build()?,
        })
    }

    /// The remaining time of this key's block.
    pub(super) fn blocked_for(&self, key: u64) -> Option<Duration> {
        // A peek costs nothing, so only a block can deny it.
        let look = self.refusals.key(&key).peek();
        (!look.is_allowed()).then_some(look.wait_or_max())
    }

    /// Counts a denial of this key.
    pub(super) fn record_denial(&self, key: u64) {
        let key = self.refusals.key(&key);
        let decision = key.check();
        if !decision.is_allowed() || decision.remaining == 0 {
            // This fails only if the limiter has no room for another block. The key's own limit still denies it.
            let _ = key.block_for(self.block.lasting);
        }
    }
}

/// The longest time for which a retry delay is remembered, so that a delay without end doesn't occupy memory without
/// end.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// Delays the denials of clients that retry before their `Retry-After`: how long, and how many at the same time.
///
/// Only one request of each key is delayed at a time, so no key can tie up more than one request of the service.
/// Beyond the limits, denials are sent immediately.
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::guard::Tarpit;
///
/// let tarpit = Tarpit::new(Duration::from_secs(5), 100);
/// # let _ = tarpit;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tarpit {
    longest: Duration,
    places: u32,
}

impl Tarpit {
    /// Delays denials for up to `longest`, and up to `places` of them at the same time.
    pub const fn new(longest: Duration, places: u32) -> Self {
        Self { longest, places }
    }
}

/// The retry delay of each key, and the delayed denials.
pub(super) struct TarpitState<R: ?Sized> {
    pub(super) tarpit: Tarpit,
    pub(super) whom: OffenderKey<R>,
    clock: AnyClock,
    /// Blocks each key for its retry delay, so a peek tells whether it retries too early.
    told: KeyedLimiter<AnyClock>,
    keys: Arc<KeyedConcurrencyLimiter<u64>>,
    all: Arc<ConcurrencyLimiter>,
}

/// The permit of a delayed denial. Dropping it makes room for another one.
#[derive(Debug)]
pub(super) struct TarpitPermit {
    delay: Duration,
    _all: OwnedPermit,
    _key: OwnedKeyedPermit<u64>,
}

impl<R: Request + ?Sized> TarpitState<R> {
    pub(super) fn new(tarpit: Tarpit, key: impl KeyExtractor<R>, clock: AnyClock) -> Self {
        let told = KeyedLimiter::builder(Rate::per_second(1), KEYS).clock(Arc::clone(&clock));
        let told = match told.build() {
            Ok(told) => told,
            Err(error) => unreachable!("one a second can be kept: {error}"),
        };
        let places = usize::try_from(tarpit.places).unwrap_or(usize::MAX);
        Self {
            tarpit,
            whom: whom(key),
            told,
            keys: Arc::new(KeyedConcurrencyLimiter::new(1, places)),
            all: Arc::new(ConcurrencyLimiter::new(tarpit.places)),
            clock,
        }
    }

    /// A permit for a delay, if this key retries too early. Its retry delay starts anew.
    pub(super) fn try_enter(&self, key: u64, wait: Duration) -> Option<TarpitPermit> {
        let told = self.told.key(&key);
        let is_early = !told.peek().is_allowed();
        // If the limiter has no room for this key, the client just isn't delayed next time.
        let _ = told.block_for(wait.min(REMEMBERED));
        let delay = self.tarpit.longest.min(wait);
        if !is_early || delay.is_zero() {
            return None;
        }
        Some(TarpitPermit {
            delay,
            _all: self.all.try_acquire_owned().ok()?,
            _key: self.keys.key_owned(&key).try_acquire().ok()?,
        })
    }

    /// Waits for the delay.
    pub(super) async fn delay(&self, stuck: TarpitPermit) {
        let clock = Arc::clone(&self.clock);
        let at = clock.now() + stuck.delay;
        sleep_until(clock, at).await;
        drop(stuck);
    }
}
