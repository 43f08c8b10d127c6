//! A budget for retries: a share of calls, so that retries can't become a storm.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::undo_guard::UndoGuard;

/// Allows retries up to a share of the first attempts.
///
/// Three attempts for each call triple the load on a failing backend, exactly when it can bear it
/// least. With a budget of 10 %, the load is at most 1.1 × the offered load, however often each call
/// may be tried. Share one budget between all [`Retry`](super::Retry)s to one backend.
///
/// ```
/// use tollgate_adaptive::protect::RetryBudget;
///
/// let budget = RetryBudget::percent(10);
/// assert!(!budget.try_retry(), "nothing was called yet");
/// for _ in 0..25 {
///     budget.called();
/// }
/// assert!(budget.try_retry() && budget.try_retry() && !budget.try_retry());
/// ```
#[derive(Debug)]
pub struct RetryBudget {
    /// What a call adds, in hundredths of a retry.
    per_call: u64,
    /// The most that can be saved up.
    most: u64,
    balance: AtomicU64,
}

/// The cost of a retry.
const RETRY_COST: u64 = 100;

impl RetryBudget {
    /// This many retries for 100 calls. The additions of 1,000 calls can be saved up, and at least 100
    /// retries.
    pub fn percent(percent: u8) -> Self {
        let per_call = u64::from(percent);
        Self {
            per_call,
            most: (1_000 * per_call).max(100 * RETRY_COST),
            balance: AtomicU64::new(0),
        }
    }

    /// Records the first attempt of a call.
    pub fn called(&self) {
        self.deposit(self.per_call);
    }

    /// Takes a retry, if one remains.
    #[must_use = "without a retry nothing may be tried again"]
    pub fn try_retry(&self) -> bool {
        let relaxed = Ordering::Relaxed;
        let taken = self
            .balance
            .fetch_update(relaxed, relaxed, |saved| saved.checked_sub(RETRY_COST));
        taken.is_ok()
    }

    /// As [`try_retry`](Self::try_retry), but the retry is returned unless it is kept: nothing was sent
    /// before its time.
    pub(super) fn take_retry(&self) -> Option<UndoGuard<&Self>> {
        // Lazily, because dropping a guard returns the retry.
        self.try_retry()
            .then(|| UndoGuard::new(Some(self), |budget| budget.deposit(RETRY_COST)))
    }

    /// The remaining retries.
    pub fn left(&self) -> u64 {
        self.balance.load(Ordering::Relaxed) / RETRY_COST
    }

    fn deposit(&self, parts: u64) {
        let relaxed = Ordering::Relaxed;
        let more = |saved: u64| (saved < self.most).then(|| (saved + parts).min(self.most));
        let _ = self.balance.fetch_update(relaxed, relaxed, more);
    }
}
