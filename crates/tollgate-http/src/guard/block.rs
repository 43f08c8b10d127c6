//! Who is refused too often is served nothing for a while.

use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::RandomState;
use tollgate::{Clock, KeyedLimiter, LimitError, Rate};

use super::keys::KeyOf;
use super::missing::MissingKey;
use super::request::Request;

/// Keys that were refused lately: 25 MB at most.
const KEYS: usize = 1_000_000;

/// The clock of what a guard itself keeps.
pub(super) type AnyClock = Arc<dyn Clock>;

/// Finds whom a request is from.
pub(super) struct Whom<R: ?Sized>(Find<R>);

type Find<R> = Box<dyn Fn(&R) -> Result<Option<u64>, MissingKey> + Send + Sync>;

impl<R: Request + ?Sized> Whom<R> {
    pub(super) fn new(key: impl KeyOf<R>) -> Self {
        let seed = RandomState::default();
        Self(Box::new(move |request| match key.key(request) {
            Some(key) => Ok(Some(seed.hash_one(key))),
            None => key.doubled(request).map_or(Ok(None), Err),
        }))
    }

    /// None if it has no such key, and an error if it has two: whoever is blocked could hide behind a second one.
    pub(super) fn of(&self, request: &R) -> Result<Option<u64>, MissingKey> {
        (self.0)(request)
    }
}

/// After how many refusals a key is blocked, and for how long.
///
/// ```
/// use std::num::NonZero;
/// use std::time::Duration;
/// use tollgate_http::guard::Block;
///
/// // Ten refusals within a minute, and an hour of nothing:
/// let ten = NonZero::new(10).expect("more than zero");
/// let block = Block::after(ten, Duration::from_secs(60)).lasting(Duration::from_secs(3_600));
/// # let _ = block;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    refusals: NonZeroU32,
    within: Duration,
    lasting: Duration,
}

impl Block {
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
pub(super) struct Blocks<R: ?Sized> {
    block: Block,
    pub(super) whom: Whom<R>,
    /// Has a token for each refusal that is let go; a block is one of its blocks.
    refusals: KeyedLimiter<AnyClock>,
}

impl<R: Request + ?Sized> Blocks<R> {
    pub(super) fn new(
        block: Block,
        key: impl KeyOf<R>,
        clock: AnyClock,
    ) -> Result<Self, LimitError> {
        let rate = Rate::new(block.refusals.get().into(), block.within);
        Ok(Self {
            block,
            whom: Whom::new(key),
            refusals: KeyedLimiter::builder(rate, KEYS).clock(clock).build()?,
        })
    }

    /// For how long this one is blocked yet.
    pub(super) fn left(&self, key: u64) -> Option<Duration> {
        // What costs nothing is refused to those alone who are blocked.
        let look = self.refusals.key(&key).peek();
        (!look.is_allowed()).then_some(look.wait())
    }

    /// This one was refused.
    pub(super) fn note(&self, key: u64) {
        let key = self.refusals.key(&key);
        let decision = key.check();
        if !decision.is_allowed() || decision.remaining == 0 {
            // Without room it isn't blocked, but it is refused by its limit as before.
            let _ = key.block_for(self.block.lasting);
        }
    }
}

impl<R: ?Sized> fmt::Debug for Blocks<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.block.fmt(f)
    }
}
