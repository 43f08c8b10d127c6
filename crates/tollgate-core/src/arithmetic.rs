//! The trait that every limit implements: small questions about a state, and one `decide` that combines them.

use core::fmt::Debug;
use core::time::Duration;

use crate::window_states::{SlidingCounts, WindowCount};
use crate::{Decision, LimitError, Outcome, Rate, Timestamp};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A time before which no request passes, stored beside a state. It is a [`Timestamp`], or `()` where the state itself
/// implies the time.
pub trait BookedUntil: sealed::Sealed + Copy + Debug + Default + PartialEq {
    /// Whether a charge is stored as a debt, which delays every later request.
    const IS_DEBT: bool;

    /// The time; the origin if none is stored.
    fn time(self) -> Timestamp;

    /// The floor at this time, or `()` if none is stored.
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

/// A limit: a [`Rate`] compiled for one algorithm. The caller stores its state.
///
/// The trait is sealed; pick one of its implementors. All results are pure functions of (limit, state, now, cost), and
/// a denial never changes the state.
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
    /// The state between calls. The default means "never seen".
    type State: Clone + Debug + Default + PartialEq;

    /// What a state remembers of reservations, which are charged now and act later. An algorithm that stores them as
    /// debt needs nothing (`()`), because the debt delays every later request. An algorithm that stores them as hits at
    /// the time they act needs that time, because no request may pass before the latest of them.
    type Floor: BookedUntil;

    /// Compiles a rate, or returns why it can't be represented and what can.
    ///
    /// # Errors
    /// The bounds of each algorithm are listed at [`LimitError`].
    fn new(rate: Rate) -> Result<Self, LimitError>;

    /// The same limit at another rate. Windows keep their alignment.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    fn at_rate(&self, rate: Rate) -> Result<Self, LimitError> {
        Self::new(rate)
    }

    /// The rate of the limit.
    fn rate(&self) -> Rate;

    /// The earliest time at which this cost would pass, if no other request takes the tokens: `now` if it passes now,
    /// `None` if it never will.
    fn earliest(&self, state: &Self::State, now: Timestamp, cost: u64) -> Option<Timestamp>;

    /// Takes the cost, decided at `now` to act at `at`. The time `at` must be the result of
    /// [`earliest`](Self::earliest) for this state, this `now` and this cost.
    fn charge(&self, state: &mut Self::State, now: Timestamp, at: Timestamp, cost: u64) -> Charge;

    /// The largest cost that passes now.
    fn remaining(&self, state: &Self::State, now: Timestamp) -> u64;

    /// The tokens available at `now`, for display, never for decisions: fractional, and negative in debt where an
    /// algorithm has fractions and debt.
    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    fn tokens(&self, state: &Self::State, now: Timestamp) -> f64 {
        self.remaining(state, now) as f64
    }

    /// From this time on the state is equivalent to one never seen, so it may be forgotten.
    fn idle_at(&self, state: &Self::State) -> Timestamp;

    /// Refunds the part of `charge` that no later charge relies on.
    fn cancel(&self, state: &mut Self::State, now: Timestamp, charge: &Charge, since: LaterCharges);

    /// Refunds `tokens` without a receipt. The tokens that were spent last come back first, and never more than were
    /// spent.
    fn refund(&self, state: &mut Self::State, now: Timestamp, tokens: u64);

    /// Keeps outstanding tokens from draining: tokens that were taken and may still be unspent. Afterwards the state
    /// owes at least `out` tokens at `now`. It does nothing where charges count as hits at a time: a hit stays where it
    /// was counted.
    fn keep_outstanding(&self, state: &mut Self::State, now: Timestamp, out: u64) {
        let _ = (state, now, out);
    }

    /// Refunds the `tokens` of a charge that were outstanding and turned out to be unspent: from the debt that
    /// [`keep_outstanding`](Self::keep_outstanding) has kept, or from the window or entry of the charge, if it still
    /// counts.
    fn settle_charge(&self, state: &mut Self::State, now: Timestamp, charge: &Charge, tokens: u64) {
        if Self::Floor::IS_DEBT {
            return self.refund(state, now, tokens);
        }
        self.cancel(state, now, &charge.partial(tokens), LaterCharges::Others);
    }

    /// Whether a cost may be promised for later while `out` tokens are outstanding. A promise must not rely on those,
    /// because they may never come back. Always true where charges count as hits at a time.
    fn can_promise(&self, cost: u64, out: u64) -> bool {
        !Self::Floor::IS_DEBT || cost.saturating_add(out) <= self.limit()
    }

    /// Charges tokens that were already spent beyond the estimate: as debt of up to a full bucket, or, in an algorithm
    /// without debt, at most the remaining tokens.
    fn charge_overrun(&self, state: &mut Self::State, now: Timestamp, tokens: u64) {
        let cost = self.remaining(state, now).min(tokens);
        if cost > 0 && self.earliest(state, now, cost) == Some(now) {
            self.charge(state, now, now, cost);
        }
    }

    /// Whether this limit can count a state. Rates of zero and unlimited may have no unit to count in; while one is in
    /// force, a state stays counted under the previous limit.
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

    /// Converts a state that was counted under the limit `old` to this limit, at a live change.
    fn migrate_state(&self, state: &mut Self::State, old: &Self, now: Timestamp);

    /// As [`migrate_state`](Self::migrate_state), but spent tokens stay spent in every algorithm, even those beyond
    /// this limit's own bucket: for a state that may be migrated again, to a larger limit.
    fn migrate_spent(&self, state: &mut Self::State, old: &Self, now: Timestamp) {
        self.migrate_state(state, old, now);
    }

    /// The earliest time at which this cost would pass, if the state stays under the limit `old` until then and
    /// [`migrate_spent`](Self::migrate_spent) converts it only when the cost passes.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, LeakyBucket, Rate, Timestamp};
    ///
    /// let (fast, slow) = (Rate::per_second(1_000), Rate::per_minute(1));
    /// let (fast, slow) = (LeakyBucket::new(fast)?, LeakyBucket::new(slow)?);
    /// let full = fast.empty(Timestamp::ZERO);
    /// // The thousand leak away in a second, because they stay under the old limit until then.
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

    /// Moves a state to a clock that shows `to` when this one shows `from`. The remaining effect of the state stays the
    /// same. Where the other clock can't represent it (its windows begin elsewhere), the state grants less, never more.
    fn move_to_clock(&self, state: &mut Self::State, from: Timestamp, to: Timestamp);

    /// The state of a limit without tokens at `now`.
    fn empty(&self, now: Timestamp) -> Self::State;

    /// How long a state still counts after its last charge, if that charge acted immediately. Zero where tokens never
    /// come back, and where everything passes.
    ///
    /// A time that is earlier than others by more than this isn't out of order: the clock was set back.
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

    /// The most that can pass at one instant.
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

    /// The decision for a cost whose [`earliest`](Self::earliest) time is `at`, computed from the state as it is.
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

/// A receipt for a charge, needed to refund it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    pub(crate) at: Timestamp,
    pub(crate) cost: u64,
    pub(crate) undo_data: UndoData,
}

impl Charge {
    /// The time at which the charged request may act.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The charged tokens.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// A receipt for a part of the charge, the part that was taken last.
    #[must_use]
    pub fn partial(&self, tokens: u64) -> Self {
        let cost = tokens.min(self.cost);
        let mark = match self.undo_data {
            // The price is a whole number of intervals, one for each token, so this division is exact.
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

/// The data that each algorithm needs to undo a charge exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UndoData {
    /// Nothing was charged (cost 0, or no limit).
    Nothing,
    /// The interval `(after − price, after]` of TATs.
    TatInterval { after: u64, price: u64 },
    /// The units that one nanosecond drained and one token cost when the charge was made. A bucket that knows it adds
    /// the act time of the latest reservation before the charge.
    Debt {
        drain: u128,
        price: u128,
        last_act: Timestamp,
    },
    /// The window before the charge.
    WindowCount(WindowCount),
    /// The two counts before the charge.
    SlidingCounts(SlidingCounts),
    /// The log has the entry, at the time of the charge.
    LogEntry,
}

/// The charges to the same state after the charge that is being refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaterCharges {
    /// None: the charge is the latest one, so it can be undone exactly.
    Nothing,
    /// Other charges, which may rely on it.
    Others,
}
