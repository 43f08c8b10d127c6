//! A budget for retries: a share of calls, so that retries can't become a storm.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::undo_guard::UndoGuard;

/// Allows retries up to a share of the calls that were made.
///
/// Three tries of each call triple the load on a backend that fails, which is when it can bear it least. With a budget of
/// 10 % the load is at most 1.1 × what is offered, however often each call may be tried. Share it between
/// all [`Retry`](super::Retry)s to one backend.
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
    /// What can be saved up.
    most: u64,
    balance: AtomicU64,
}

/// A retry costs so much.
const RETRY_COST: u64 = 100;

impl RetryBudget {
    /// So many retries for 100 calls. What 1,000 calls add can be saved up, and 100 retries at least.
    pub fn percent(percent: u8) -> Self {
        let per_call = u64::from(percent);
        Self {
            per_call,
            most: (1_000 * per_call).max(100 * RETRY_COST),
            balance: AtomicU64::new(0),
        }
    }

    /// A call is made, for the first time.
    pub fn called(&self) {
        self.deposit(self.per_call);
    }

    /// Takes a retry, if one is left.
    #[must_use = "without a retry nothing may be tried again"]
    pub fn try_retry(&self) -> bool {
        let relaxed = Ordering::Relaxed;
        let taken = self
            .balance
            .fetch_update(relaxed, relaxed, |saved| saved.checked_sub(RETRY_COST));
        taken.is_ok()
    }

    /// As [`try_retry`](Self::try_retry), but the retry comes back unless it is kept: before its time nothing was sent.
    pub(super) fn take_retry(&self) -> Option<UndoGuard<&Self>> {
        // Made only if there is one: it comes back when it is dropped.
        self.try_retry()
            .then(|| UndoGuard::new(Some(self), |budget| budget.deposit(RETRY_COST)))
    }

    /// How many retries are left.
    pub fn left(&self) -> u64 {
        self.balance.load(Ordering::Relaxed) / RETRY_COST
    }

    fn deposit(&self, parts: u64) {
        let relaxed = Ordering::Relaxed;
        let more = |saved: u64| (saved < self.most).then(|| (saved + parts).min(self.most));
        let _ = self.balance.fetch_update(relaxed, relaxed, more);
    }
}
