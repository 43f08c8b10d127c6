//! Slow and obvious models of every algorithm: they keep all admitted hits and answer by counting them.
//!
//! Nothing here shares code with the arithmetic under test, and nothing is clever: each request walks the whole
//! history with exact integers. The implementation's answers must equal the oracle's, request by request.
//!
//! ```
//! use std::time::Duration;
//! use tollgate_core::{Arithmetic, Outcome, Rate, Timestamp, TokenBucket};
//! use tollgate_testkit::oracle::OracleKind;
//!
//! let rate = Rate::per_second(10).burst(5);
//! let mut oracle = OracleKind::TokenBucket.oracle(rate);
//! let answer = oracle.decide(Timestamp::ZERO, 5);
//! assert_eq!((answer.outcome, answer.remaining), (Outcome::Allowed, 0));
//! let denied = oracle.decide(Timestamp::from_millis(30), 1);
//! assert_eq!(denied.retry_after, Duration::from_millis(70));
//!
//! // The arithmetic under test gives the same.
//! let limit = TokenBucket::new(rate)?;
//! let mut bucket = Default::default();
//! limit.decide(&mut bucket, Timestamp::ZERO, 5);
//! let decision = limit.decide(&mut bucket, Timestamp::from_millis(30), 1);
//! assert_eq!(decision.wait_or_max(), denied.retry_after);
//! # Ok::<(), tollgate_core::LimitError>(())
//! ```

use std::fmt::Debug;
use std::time::Duration;

use tollgate_core::{Outcome, Rate, Timestamp, WindowAlignment};

mod level;
mod window;

pub use level::LevelOracle;
pub use window::{CounterOracle, FixedOracle, LogOracle};

/// One admitted request: its time and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The time at which it counts, never before that of the hit before it.
    pub at: Timestamp,
    /// What it took.
    pub cost: u64,
}

/// An oracle's answer to one request: the part of a decision that is the same for every implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OracleAnswer {
    /// Whether the request may pass.
    pub outcome: Outcome,
    /// The largest cost that would pass now, after this request.
    pub remaining: u64,
    /// How long until the same cost passes: zero when allowed, the maximum when never.
    pub retry_after: Duration,
}

/// A model that answers from its list of hits.
pub trait Oracle: Debug {
    /// When this cost first passes, requested at `now`: `now` itself if it passes, `None` if never.
    fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp>;

    /// The largest cost that passes at `now`.
    fn remaining(&self, now: Timestamp) -> u64;

    /// Adds an admitted request to the list.
    fn record(&mut self, now: Timestamp, cost: u64);

    /// Decides one request and records it if it passes.
    fn decide(&mut self, now: Timestamp, cost: u64) -> OracleAnswer {
        let (outcome, retry_after) = match self.earliest(now, cost) {
            None => (Outcome::Never, Duration::MAX),
            Some(at) if at <= now => (Outcome::Allowed, Duration::ZERO),
            Some(at) => (Outcome::Denied, at - now),
        };
        if outcome == Outcome::Allowed && cost > 0 {
            self.record(now, cost);
        }
        OracleAnswer {
            outcome,
            remaining: self.remaining(now),
            retry_after,
        }
    }
}

/// The algorithm of an implementation, which decides its oracle and its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleKind {
    /// An exact token bucket.
    TokenBucket,
    /// An exact leaky bucket as a meter.
    LeakyBucket,
    /// GCRA in one word, its interval rounded up to whole units of the word.
    Gcra,
    /// A fixed window with this alignment.
    FixedWindow(WindowAlignment),
    /// A sliding log.
    SlidingLog,
    /// A sliding counter.
    SlidingCounter,
}

impl OracleKind {
    /// The slow model of this algorithm at this rate, with no hit yet.
    ///
    /// # Panics
    /// If the rate is so far outside the algorithm's range that its units overflow 128 bits.
    pub fn oracle(self, rate: Rate) -> Box<dyn Oracle> {
        match self {
            Self::TokenBucket => Box::new(LevelOracle::token_bucket(rate)),
            Self::LeakyBucket => Box::new(LevelOracle::leaky_bucket(rate)),
            Self::Gcra => Box::new(LevelOracle::gcra(rate)),
            Self::FixedWindow(align) => Box::new(FixedOracle::new(rate, align)),
            Self::SlidingLog => Box::new(LogOracle::new(rate)),
            Self::SlidingCounter => Box::new(CounterOracle::new(rate)),
        }
    }

    /// The last time that this algorithm distinguishes from the next: one word ends after nine years, of which
    /// two are reserved for the burst and two for reservations.
    pub const fn latest_supported_time(self) -> Timestamp {
        match self {
            Self::Gcra => Timestamp::from_secs(5 * 365 * 86_400),
            _ => Timestamp::MAX,
        }
    }
}

/// Count and period in nanoseconds, reduced, of a rate that is neither zero nor unlimited.
pub(crate) fn reduced_rate(rate: Rate) -> Option<(u128, u128)> {
    let (count, period) = (u128::from(rate.count()), rate.period()?.as_nanos());
    let (mut a, mut b) = (count, period);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    Some((count / a, period / a))
}

/// A total of tokens as the count it is reported as.
fn as_count(tokens: u128) -> u64 {
    u64::try_from(tokens).unwrap_or(u64::MAX)
}
