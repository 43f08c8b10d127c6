//! Whoever is refused too often is served nothing for a while, and whoever comes again too early waits for its refusal.

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

/// Keys that were refused lately, or told when to come again: 25 MB at most.
const KEYS: usize = 1_000_000;

/// The clock of what a guard itself keeps.
pub(super) type AnyClock = Arc<dyn Clock>;

/// Finds whom a request is from. None if it has no such key, and an error if it has two: whoever is blocked could hide behind a second
/// one.
pub(super) type OffenderKey<R> = Box<dyn Fn(&R) -> Result<Option<u64>, MissingKey> + Send + Sync>;

fn whom<R: Request + ?Sized>(key: impl KeyExtractor<R>) -> OffenderKey<R> {
    let seed = RandomState::default();
    Box::new(move |request| match key.key(request) {
        Some(key) => Ok(Some(seed.hash_one(key))),
        None => key.ambiguous(request).map_or(Ok(None), Err),
    })
}

/// After how many refusals a key is blocked, and for how long.
///
/// ```
/// use std::num::NonZero;
/// use std::time::Duration;
/// use tollgate_http::guard::BlockAfter;
///
/// // Ten refusals within a minute, and an hour of nothing:
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
    /// So many refusals in this time are too many; they are forgotten one by one over it. Until said otherwise a block
    /// lasts as long.
    pub const fn after(refusals: NonZeroU32, within: Duration) -> Self {
        Self {
            refusals,
            within,
            lasting: within,
        }
    }

    /// For how long nothing is served then.
    #[must_use]
    pub const fn lasting(mut self, time: Duration) -> Self {
        self.lasting = time;
        self
    }
}

/// Who was refused how often, and who is blocked.
pub(super) struct BlockList<R: ?Sized> {
    pub(super) block: BlockAfter,
    pub(super) whom: OffenderKey<R>,
    /// Has a token for each refusal that is let go; a block is one of its blocks.
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

    /// For how long this one is blocked yet.
    pub(super) fn blocked_for(&self, key: u64) -> Option<Duration> {
        // What costs nothing is refused to those alone who are blocked.
        let look = self.refusals.key(&key).peek();
        (!look.is_allowed()).then_some(look.wait_or_max())
    }

    /// This one was refused.
    pub(super) fn record_denial(&self, key: u64) {
        let key = self.refusals.key(&key);
        let decision = key.check();
        if !decision.is_allowed() || decision.remaining == 0 {
            // Without room it isn't blocked, but it is refused by its limit as before.
            let _ = key.block_for(self.block.lasting);
        }
    }
}

/// For how long it is known at most that somebody was told to stay away: who was told so for ever mustn't take up room for ever.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// How long those wait for a refusal who come again before they were told to, and how many of them at most.
///
/// One of a key waits at a time, so nobody ties up more of the service than one request by it; whoever finds no place is refused at
/// once.
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
    /// For so long, and so many at once.
    pub const fn new(longest: Duration, places: u32) -> Self {
        Self { longest, places }
    }
}

/// Who was told what, and who waits.
pub(super) struct TarpitState<R: ?Sized> {
    pub(super) tarpit: Tarpit,
    pub(super) whom: OffenderKey<R>,
    clock: AnyClock,
    /// Blocks each key for as long as it was told to stay away.
    told: KeyedLimiter<AnyClock>,
    keys: Arc<KeyedConcurrencyLimiter<u64>>,
    all: Arc<ConcurrencyLimiter>,
}

/// A place of one who waits for a refusal. Dropping it frees the place.
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

    /// A place for this one, if it was told to come later. It is told so again.
    pub(super) fn try_enter(&self, key: u64, wait: Duration) -> Option<TarpitPermit> {
        let told = self.told.key(&key);
        let is_early = !told.peek().is_allowed();
        // Without room for it, it isn't held up.
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

    /// Waits for as long as this one has to.
    pub(super) async fn delay(&self, stuck: TarpitPermit) {
        let clock = Arc::clone(&self.clock);
        let at = clock.now() + stuck.delay;
        sleep_until(clock, at).await;
        drop(stuck);
    }
}
