//! The trait that every limit implements: four small questions, and one `decide` made of them.

use core::fmt::Debug;
use core::time::Duration;

use crate::window_states::{SlidingCounts, WindowCount};
use crate::{Decision, LimitError, Outcome, Rate, Timestamp};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A time before which nobody passes, kept beside a state: a [`Timestamp`], or nothing at all where
/// the state says it by itself.
pub trait BookedUntil: sealed::Sealed + Copy + Debug + Default + PartialEq {
    /// Whether what is charged is kept as a debt, which delays everybody after it.
    const IS_DEBT: bool;

    /// The time, the origin if none is kept.
    fn time(self) -> Timestamp;

    /// The floor at this time, as far as any is kept.
    fn at(time: Timestamp) -> Self;
}

impl sealed::Sealed for Timestamp {}
impl sealed::Sealed for () {}

impl BookedUntil for Timestamp {
    const IS_DEBT: bool = false;

    fn time(self) -> Timestamp {
        self
    }

    fn at(time: Timestamp) -> Self {
        time
    }
}

impl BookedUntil for () {
    const IS_DEBT: bool = true;

    fn time(self) -> Timestamp {
        Timestamp::ZERO
    }

    fn at(_time: Timestamp) -> Self {}
}

/// A limit: a [`Rate`] compiled for one way of counting. Its state is kept by the caller.
///
/// The trait is sealed; pick one of its implementors. All answers are pure functions of
/// (limit, state, now, cost), and a refusal never changes the state.
///
/// ```
/// use tollgate_core::{Arithmetic, Outcome, Rate, SlidingLog, Timestamp};
///
/// let limit = SlidingLog::new(Rate::per_second(2))?;
/// let mut log = Default::default();
/// let at = Timestamp::from_millis;
/// assert!(limit.decide(&mut log, at(0), 1).is_allowed());
/// assert!(limit.decide(&mut log, at(400), 1).is_allowed());
/// assert!(!limit.decide(&mut log, at(999), 1).is_allowed());
/// // A hit exactly one window old no longer counts.
/// assert!(limit.decide(&mut log, at(1000), 1).is_allowed());
/// assert_eq!(limit.decide(&mut log, at(1000), 3).outcome, Outcome::Never);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub trait Arithmetic: sealed::Sealed + Copy + Debug {
    /// What is kept between calls. The default is "never seen".
    type State: Clone + Debug + Default + PartialEq;

    /// What is remembered of reservations, which are charged now and act later. An algorithm that keeps
    /// them as debt needs nothing (`()`): the debt delays everyone after them. One that keeps them as hits at
    /// the time they act needs that time, because nobody may pass before the latest of them.
    type Floor: BookedUntil;

    /// Compiles a rate, or says why it can't be represented and what can.
    ///
    /// # Errors
    /// The bounds of each algorithm are listed at [`LimitError`].
    fn new(rate: Rate) -> Result<Self, LimitError>;

    /// The same limit at another rate: windows begin where they did.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    fn at_rate(&self, rate: Rate) -> Result<Self, LimitError> {
        Self::new(rate)
    }

    /// The rate it was made from.
    fn rate(&self) -> Rate;

    /// When this cost would first pass, if nobody else takes it: `now` if it passes now,
    /// `None` if it never will.
    fn earliest(&self, state: &Self::State, now: Timestamp, cost: u64) -> Option<Timestamp>;

    /// Takes the cost, decided at `now` to act at `at`, where `at` came from
    /// [`earliest`](Self::earliest) for this state, this `now` and this cost.
    fn charge(&self, state: &mut Self::State, now: Timestamp, at: Timestamp, cost: u64) -> Charge;

    /// The largest cost that passes now.
    fn remaining(&self, state: &Self::State, now: Timestamp) -> u64;

    /// Tokens there at `now`, with the part of one and negative in debt where there is such. For people to read;
    /// nothing decides by it.
    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    fn tokens(&self, state: &Self::State, now: Timestamp) -> f64 {
        self.remaining(state, now) as f64
    }

    /// From this time on the state answers as one never seen, so it may be forgotten.
    fn idle_at(&self, state: &Self::State) -> Timestamp;

    /// Gives back what `charge` took, as far as nothing was built on it.
    fn cancel(&self, state: &mut Self::State, now: Timestamp, charge: &Charge, since: LaterCharges);

    /// Gives back `tokens` without a receipt: a gift. What was spent last comes back first, and never
    /// more than was spent.
    fn refund(&self, state: &mut Self::State, now: Timestamp, tokens: u64);

    /// Keeps tokens that are *out*, taken but not yet known to be spent, from draining: after this the
    /// state owes at least `out` tokens at `now`. It does nothing where charges count as hits at a time:
    /// those stay where they were counted.
    fn keep_outstanding(&self, state: &mut Self::State, now: Timestamp, out: u64) {
        let _ = (state, now, out);
    }

    /// Gives back `tokens` of a charge that were out and turned out not to be spent: from the debt that
    /// [`keep_out`](Self::keep_outstanding) has kept, or from the window or entry that was charged, if it still counts.
    fn settle_charge(&self, state: &mut Self::State, now: Timestamp, charge: &Charge, tokens: u64) {
        if Self::Floor::IS_DEBT {
            return self.refund(state, now, tokens);
        }
        self.cancel(state, now, &charge.partial(tokens), LaterCharges::Others);
    }

    /// Whether a cost may be promised for later while `out` tokens are out. Not if the promise relied on some of
    /// those: nobody knows whether they come back. Always where charges count as hits at a time.
    fn can_promise(&self, cost: u64, out: u64) -> bool {
        !Self::Floor::IS_DEBT || cost.saturating_add(out) <= self.limit()
    }

    /// Charges tokens that were spent already, beyond what was asked for: as debt of up to a full bucket, or,
    /// where there is no debt, as much as is left.
    fn charge_overrun(&self, state: &mut Self::State, now: Timestamp, tokens: u64) {
        let cost = self.remaining(state, now).min(tokens);
        if cost > 0 && self.earliest(state, now, cost) == Some(now) {
            self.charge(state, now, now, cost);
        }
    }

    /// Whether a state can be counted under this limit. Rates of zero and unlimited may have nothing to count
    /// by; while one is in force, a state stays counted under the limit before it.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Gcra, LeakyBucket, Rate};
    ///
    /// assert!(!Gcra::new(Rate::zero())?.is_counting());
    /// assert!(LeakyBucket::new(Rate::zero())?.is_counting());
    /// assert!(!LeakyBucket::new(Rate::unlimited())?.is_counting());
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    fn is_counting(&self) -> bool {
        self.rate().period().is_some()
    }

    /// Carries a state kept under the limit `old` over to this one, at a live change.
    fn migrate_state(&self, state: &mut Self::State, old: &Self, now: Timestamp);

    /// As [`adopt`](Self::migrate_state), but what was spent stays spent in every algorithm, also beyond what
    /// this limit's own bucket holds: for a state that may be carried over again, to a larger one.
    fn migrate_spent(&self, state: &mut Self::State, old: &Self, now: Timestamp) {
        self.migrate_state(state, old, now);
    }

    /// When this cost would first pass if the state stayed under the limit `old` until then, and what
    /// is spent was carried over by [`keep_spent`](Self::migrate_spent) only when it passes.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LeakyBucket, Rate, Timestamp};
    ///
    /// let (fast, slow) = (Rate::per_second(1_000), Rate::per_minute(1));
    /// let (fast, slow) = (LeakyBucket::new(fast)?, LeakyBucket::new(slow)?);
    /// let full = fast.empty(Timestamp::ZERO);
    /// // The thousand leak away in a second, whoever asks then.
    /// let at = slow.earliest_before_migration(&full, &fast, Timestamp::ZERO, 1);
    /// assert_eq!(at, Some(Timestamp::from_secs(1)));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    fn earliest_before_migration(
        &self,
        state: &Self::State,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let mut state = state.clone();
        self.migrate_spent(&mut state, old, now);
        self.earliest(&state, now, cost)
    }

    /// Moves a state to a clock that shows `to` when this one shows `from`. What is left of it stays
    /// as it is; where the other clock can't show it (a window's boundaries lie elsewhere), it
    /// grants less, never more.
    fn move_to_clock(&self, state: &mut Self::State, from: Timestamp, to: Timestamp);

    /// The state of a limit that has nothing to give at `now`.
    fn empty(&self, now: Timestamp) -> Self::State;

    /// How long a state still counts after the last charge, if that acted at once. Zero where nothing ever
    /// comes back, or everything passes.
    ///
    /// A time that is earlier than others by more than this isn't merely out of order: the clock was set back.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, LeakyBucket, Rate, SlidingCounter};
    ///
    /// let minute = Rate::per_minute(60);
    /// assert_eq!(SlidingCounter::new(minute)?.state_lifetime(), Duration::from_secs(120));
    /// assert_eq!(LeakyBucket::new(minute.burst(5))?.state_lifetime(), Duration::from_secs(5));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    fn state_lifetime(&self) -> Duration;

    /// How far ahead of now a charge may act.
    fn max_booking_delay(&self) -> Duration {
        Duration::MAX
    }

    /// The most that can pass at once.
    fn limit(&self) -> u64 {
        let rate = self.rate();
        if rate.is_unlimited() {
            u64::MAX
        } else if rate.is_zero() {
            0
        } else {
            rate.burst_size()
        }
    }

    /// Decides one request and charges it if it passes. A cost of 0 peeks.
    fn decide(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Decision {
        let at = self.earliest(state, now, cost);
        if at.is_some_and(|at| at <= now) && cost > 0 {
            self.charge(state, now, now, cost);
        }
        self.decision_at(state, now, at)
    }

    /// The decision for a cost whose [`earliest`](Self::earliest) time is `at`, read off the state
    /// as it stands.
    fn decision_at(&self, state: &Self::State, now: Timestamp, at: Option<Timestamp>) -> Decision {
        let (outcome, retry_after) = match at {
            None => (Outcome::Never, Duration::MAX),
            Some(at) if at <= now => (Outcome::Allowed, Duration::ZERO),
            Some(at) => (Outcome::Denied, at - now),
        };
        Decision::new(
            outcome,
            self.limit(),
            self.remaining(state, now),
            retry_after,
            self.idle_at(state) - now,
        )
    }
}

/// A receipt for what was taken, needed to give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    pub(crate) at: Timestamp,
    pub(crate) cost: u64,
    pub(crate) undo_data: UndoData,
}

impl Charge {
    /// When the charged request may act.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// What was taken.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// A receipt for a part of it, the one that was taken last.
    #[must_use]
    pub fn partial(&self, tokens: u64) -> Self {
        let cost = tokens.min(self.cost);
        let mark = match self.undo_data {
            // The price is a whole number of intervals, one for each token.
            UndoData::TatInterval { after, price } if self.cost > 0 => UndoData::TatInterval {
                after,
                price: price / self.cost * cost,
            },
            mark => mark,
        };
        Self {
            at: self.at,
            cost,
            undo_data: mark,
        }
    }
}

/// What each algorithm needs to remember in order to give back exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UndoData {
    /// Nothing was charged (cost 0, or no limit).
    Nothing,
    /// The interval `(after − price, after]` of the TAT line.
    TatInterval { after: u64, price: u64 },
    /// What one nanosecond drained and one token cost when the charge was made; and, of a bucket that knows it, when the
    /// latest reservation before it acts.
    Debt {
        drain: u128,
        price: u128,
        last_act: Timestamp,
    },
    /// The window as it stood before.
    WindowCount(WindowCount),
    /// The two counts as they stood before.
    SlidingCounts(SlidingCounts),
    /// The entry at the charge's time.
    LogEntry,
}

/// What was charged to the same state after the charge that is being given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaterCharges {
    /// Nothing: the charge is the latest one, so it can be undone exactly.
    Nothing,
    /// Other charges, which may have been built on it.
    Others,
}
