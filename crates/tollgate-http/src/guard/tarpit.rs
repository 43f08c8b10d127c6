//! Who ignores when to come again waits for its refusal.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::sleep_until;
use tollgate::concurrency::{OwnedKeyedPermit, OwnedPermit};
use tollgate::{Clock, ConcurrencyLimiter, KeyedConcurrency, KeyedLimiter, Rate};

use super::block::{AnyClock, Whom};
use super::keys::KeyOf;
use super::request::Request;

/// Keys that were told when to come again: 25 MB at most.
const KEYS: usize = 1_000_000;

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
pub(super) struct Pit<R: ?Sized> {
    tarpit: Tarpit,
    pub(super) whom: Whom<R>,
    clock: AnyClock,
    /// Blocks each key for as long as it was told to stay away.
    told: KeyedLimiter<AnyClock>,
    keys: Arc<KeyedConcurrency<u64>>,
    all: Arc<ConcurrencyLimiter>,
}

/// A place of one who waits for a refusal. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Stuck {
    delay: Duration,
    _all: OwnedPermit,
    _key: OwnedKeyedPermit<u64>,
}

impl<R: Request + ?Sized> Pit<R> {
    pub(super) fn new(tarpit: Tarpit, key: impl KeyOf<R>, clock: AnyClock) -> Self {
        let told = KeyedLimiter::builder(Rate::per_second(1), KEYS).clock(Arc::clone(&clock));
        let told = match told.build() {
            Ok(told) => told,
            Err(error) => unreachable!("one a second can be kept: {error}"),
        };
        let places = usize::try_from(tarpit.places).unwrap_or(usize::MAX);
        Self {
            tarpit,
            whom: Whom::new(key),
            told,
            keys: Arc::new(KeyedConcurrency::new(1, places)),
            all: Arc::new(ConcurrencyLimiter::new(tarpit.places)),
            clock,
        }
    }

    /// A place for this one, if it was told to come later. It is told so again.
    pub(super) fn catch(&self, key: u64, wait: Duration) -> Option<Stuck> {
        let told = self.told.key(&key);
        let is_early = !told.peek().is_allowed();
        // Without room for it, it isn't held up.
        let _ = told.block_for(wait.min(REMEMBERED));
        let delay = self.tarpit.longest.min(wait);
        if !is_early || delay.is_zero() {
            return None;
        }
        Some(Stuck {
            delay,
            _all: self.all.try_acquire_owned().ok()?,
            _key: self.keys.key_owned(&key).try_acquire().ok()?,
        })
    }

    /// Waits for as long as this one has to.
    pub(super) async fn hold_up(&self, stuck: Stuck) {
        let clock = Arc::clone(&self.clock);
        let at = clock.now() + stuck.delay;
        sleep_until(clock, at).await;
        drop(stuck);
    }
}

impl<R: ?Sized> fmt::Debug for Pit<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tarpit.fmt(f)
    }
}
