//! Quotas: totals over long periods for each key, kept across restarts.
//!
//! ```
//! use tollgate::{Quota, QuotaLimiter};
//!
//! let limiter = QuotaLimiter::new(Quota::per_month(10_000).in_zone("Europe/Zurich")?, 1_000_000);
//! assert!(limiter.check("tenant").is_allowed());
//! assert_eq!(limiter.peek("tenant").remaining, 9_999);
//! # Ok::<(), tollgate::quota::QuotaError>(())
//! ```
//!
//! This limiter lives in memory. To keep counts across restarts, store them in a file: end the builder
//! with [`open`](Builder::open).
//!
//! ```
//! # let folder = std::env::temp_dir().join(format!("tollgate-quota-page-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("quotas");
//! use tollgate::{Quota, QuotaLimiter};
//!
//! let limiter = QuotaLimiter::builder(Quota::per_month(10_000), 1_000_000).open(&path)?;
//! assert!(limiter.check("tenant").is_allowed());
//! limiter.close()?; // the program ends
//!
//! let limiter = QuotaLimiter::builder(Quota::per_month(10_000), 1_000_000).open(&path)?;
//! assert_eq!(limiter.peek("tenant").remaining, 9_999);
//! # drop(limiter);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a crash can cost
//! Charges are counted in memory. A thread saves them every second by default, and earlier when many
//! units were granted. After a crash, units that weren't saved yet may be granted a second time: at
//! most what was granted to all keys in the last flush interval, and at most
//! [`max_unsaved`](Builder::max_unsaved) units. Dropping the limiter saves everything;
//! [`close`](QuotaLimiter::close) does too, and returns whether that worked.
//!
//! [`Durability::WriteAhead`] makes the opposite trade: no unit is granted twice, but a key may lose a
//! block.
//!
//! # What a clock can cost
//! A key's time never goes back. If the clock does, the key stays in the period of its latest charge
//! until the clock has caught up, so nothing extra is granted. If the clock was wrong by a month, keys
//! that were charged meanwhile stay in that month; [`reset`](QuotaLimiter::reset) frees a key.

mod builder;
mod calendar;
mod crc32c;
mod denied;
mod entry;
mod file;
mod key;
mod parse;
mod period;
mod persistence;
mod record;
mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

use self::file::FileEnd;
use self::persistence::{BackgroundSaver, QuotaSaver};
use self::table::{ChargeResult, QuotaRequest, QuotaTable};
use crate::clock::{Clock, Wall};
use crate::key_table::TableFull;
use crate::striped_counters::Counters;
use crate::sync::Ordering;

pub use builder::{Builder, Durability, OnFileFailure, Settings};
pub use denied::{QuotaDenied, Receipt};
pub use file::FileError;
pub use key::{Key, OwnedKey, QuotaKey};
pub use period::{Quota, QuotaError, Weekday};

/// How often a charge tries again after another request used up the block that was saved ahead for it.
const MAX_CLAIM_ATTEMPTS: usize = 8;

/// A quota for each key: a tenant's id, or any bytes up to a kilobyte.
///
/// A check holds the lock of one of 64 shards for some tens of nanoseconds and doesn't touch the disk.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Quota, QuotaLimiter, Timestamp, clock::Manual};
///
/// let noon = Timestamp::from_secs(1_717_243_200); // 1 June 2024
/// let clock = Manual::starting_at(noon);
/// let limiter = QuotaLimiter::builder(Quota::per_day(100), 1_000_000).clock(clock.clone()).build()?;
/// assert!(limiter.check_n("tenant", 100).is_allowed());
/// let denied = limiter.check("tenant");
/// assert_eq!(denied.wait_or_max(), Duration::from_secs(12 * 3_600));
/// clock.advance(denied.wait_or_max());
/// assert!(limiter.check("tenant").is_allowed());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct QuotaLimiter<C = Wall> {
    table: Arc<QuotaTable>,
    /// Saves the keys if there is a file; stops with the limiter.
    persistence: Option<BackgroundSaver>,
    observer: Option<ThresholdObserver>,
    counters: Counters,
    clock: C,
}

/// A key has reached a configured percentage of its quota.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ThresholdEvent<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The configured percentage that was reached.
    pub percent: u8,
    /// The key's usage, including the charge that reached it.
    pub used: u64,
    /// The quota's count.
    pub limit: u64,
    /// The time until nothing is used, if no further request comes.
    pub reset_after: Duration,
}

/// The observer of thresholds, with its percentages.
struct ThresholdObserver {
    /// In ascending order.
    percentages: Vec<u8>,
    notify: Box<dyn Fn(&ThresholdEvent<'_>) + Send + Sync>,
}

/// The counters of a quota limiter, and the state of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Charges above 0 that were allowed.
    pub allowed: u64,
    /// Charges above 0 that were denied.
    pub denied: u64,
    /// Keys in the table now.
    pub keys: usize,
    /// Units that are granted but not saved: a crash now would lose them.
    pub unsaved: u64,
    /// Flushes that wrote data.
    pub flushes: u64,
    /// Flushes that failed. The next flush tries the same keys again.
    pub failed_flushes: u64,
    /// The size of the file.
    pub store_bytes: u64,
    /// Bytes of a write that a crash had interrupted, which were discarded when the file was opened.
    pub recovered_bytes: u64,
    /// The error of the latest flush; none once a flush has succeeded.
    pub last_error: Option<String>,
}

impl QuotaLimiter {
    /// The same quota for each key, on the system's clock and in memory only. At most `capacity` keys
    /// are counted at the same time.
    ///
    /// A key takes about 500 bytes and its name; a rolling one up to 1.5 kB. A key with quotas of four
    /// kinds of periods takes up to four times as much.
    pub fn new(quota: Quota, capacity: usize) -> Self {
        Self::builder(quota, capacity).build_unchecked()
    }

    /// A builder for the file, the clock, the bounds and the observer of thresholds.
    pub fn builder(quota: Quota, capacity: usize) -> Builder {
        Builder::new(quota, capacity)
    }
}

impl<C: Clock> QuotaLimiter<C> {
    /// Decides a request of one unit for this key.
    pub fn check<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Decision {
        self.check_n(key, 1)
    }

    /// Decides a request of this cost for this key. A cost of 0 peeks.
    pub fn check_n<K: AsRef<[u8]> + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.check_at(self.clock.now(), key, cost)
    }

    /// Decides a request at a time on the limiter's clock.
    pub fn check_at<K: AsRef<[u8]> + ?Sized>(
        &self,
        now: Timestamp,
        key: &K,
        cost: u64,
    ) -> Decision {
        into_decision(self.charge_at(now, key, None, cost))
    }

    /// The remaining units of this key, without charging any.
    pub fn peek<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Decision {
        self.peek_at(self.clock.now(), key, None, 0)
    }

    /// Whether a cost would be allowed by the key's quota or the given one, without charging it.
    pub fn peek_at<K: AsRef<[u8]> + ?Sized>(
        &self,
        now: Timestamp,
        key: &K,
        quota: Option<&Quota>,
        cost: u64,
    ) -> Decision {
        let key = key.as_ref();
        if let Err(refused) = self.check_key(key) {
            return *refused.decision();
        }
        let ask = QuotaRequest {
            key,
            quota,
            now,
            cost,
        };
        self.table.evaluate(&ask).decision
    }

    /// Charges a cost to this key, and returns a receipt to refund it if the request doesn't happen.
    ///
    /// # Errors
    /// Why it was denied; then nothing was charged.
    ///
    /// ```
    /// use tollgate::{Quota, QuotaLimiter, clock::Manual};
    ///
    /// let limiter = QuotaLimiter::builder(Quota::per_day(10), 1_000_000).clock(Manual::new()).build()?;
    /// let receipt = limiter.charge("tenant", 4)?;
    /// assert_eq!(limiter.refund_receipt("tenant", receipt), 4);
    /// assert_eq!(limiter.peek("tenant").remaining, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> Result<Receipt, QuotaDenied> {
        self.charge_at(self.clock.now(), key, None, cost)
    }

    /// Charges a cost at a time on the limiter's clock, under the key's quota or the given one.
    ///
    /// # Errors
    /// Why it was denied; then nothing was charged.
    pub fn charge_at<K: AsRef<[u8]> + ?Sized>(
        &self,
        now: Timestamp,
        key: &K,
        quota: Option<&Quota>,
        cost: u64,
    ) -> Result<Receipt, QuotaDenied> {
        let key = key.as_ref();
        self.check_key(key).inspect_err(|refused| {
            if cost > 0 && matches!(refused, QuotaDenied::KeyTooLong { .. }) {
                self.counters.count(false);
            }
        })?;
        let ask = QuotaRequest {
            key,
            quota,
            now,
            cost,
        };
        let unsaved = self.saver().map(|saver| &saver.unsaved);
        let mut charged = self.table.charge(&ask, unsaved);
        // Other requests may use up the block that was saved ahead before this one retries.
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            if !matches!(charged, Err(QuotaDenied::ClaimNotSaved { .. })) || self.flush().is_err() {
                break;
            }
            charged = self.table.charge(&ask, unsaved);
        }
        if cost > 0 {
            self.counters.count(charged.is_ok());
        }
        let done = charged?;
        self.notify_thresholds(key, &done);
        Ok(done.receipt)
    }

    /// Refunds a charge in each of the key's quotas, to the period (or the part of a rolling one) in
    /// which it was counted. Returns the refunded units: 0 if that period has ended or the key was
    /// reset.
    pub fn refund_receipt<K: AsRef<[u8]> + ?Sized>(&self, key: &K, receipt: Receipt) -> u64 {
        self.refund_receipt_at(self.clock.now(), key, receipt)
    }

    /// Refunds a charge at a time on the limiter's clock.
    pub fn refund_receipt_at<K: AsRef<[u8]> + ?Sized>(
        &self,
        now: Timestamp,
        key: &K,
        receipt: Receipt,
    ) -> u64 {
        let Receipt { id, at, cost, .. } = receipt;
        if cost == 0 || self.is_forked() {
            return 0;
        }
        self.table.update(key.as_ref(), |entry| {
            if entry.id == id {
                entry.refund_charge(at, cost, now.as_nanos())
            } else {
                0
            }
        })
    }

    /// Refunds units to this key, whatever they were charged for: from the latest charges back, and no
    /// more than still count. [`peek`](Self::peek) returns the result.
    pub fn refund<K: AsRef<[u8]> + ?Sized>(&self, key: &K, units: u64) {
        let now = self.clock.now().as_nanos();
        self.table
            .update(key.as_ref(), |entry| entry.refund(units, now));
    }

    /// Clears the usage of this key.
    pub fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) {
        self.table.remove(key.as_ref());
    }

    /// The quota of this key: its override, or the quota of all keys.
    pub fn quota_of<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Quota {
        self.table.quota(key.as_ref())
    }

    /// Changes the quota of all keys without an override. What they have used stays used, as
    /// [`Key::at`] describes.
    pub fn set_quota(&self, quota: &Quota) {
        self.table.set_quota(quota);
    }

    /// Overrides the quota of this key. An override is configuration: it isn't saved in the file.
    ///
    /// # Errors
    /// [`TableFull`] if there are already as many overrides as the table has room for keys.
    pub fn set_override<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        quota: Quota,
    ) -> Result<(), TableFull> {
        if self.table.set_override(key.as_ref(), quota) {
            Ok(())
        } else {
            Err(TableFull::new(self.table.capacity()))
        }
    }

    /// Removes this key's override.
    pub fn clear_override<K: AsRef<[u8]> + ?Sized>(&self, key: &K) {
        self.table.clear_override(key.as_ref());
    }

    /// Saves all changes now, on this thread. Without a file it does nothing.
    ///
    /// # Errors
    /// If the file can't be written; the next flush tries again.
    pub fn flush(&self) -> Result<(), FileError> {
        match self.saver() {
            Some(saver) => saver.save(&self.table, FileEnd::Open),
            None => Ok(()),
        }
    }

    /// Saves everything and closes the file, as dropping does, and returns whether that worked.
    ///
    /// # Errors
    /// If the file can't be written; then it holds the state of the last flush that succeeded.
    pub fn close(mut self) -> Result<(), FileError> {
        self.persistence
            .as_mut()
            .map_or(Ok(()), BackgroundSaver::close)
    }

    /// The counters so far, and the state of the file.
    pub fn stats(&self) -> Stats {
        let (allowed, denied) = self.counters.sums();
        let mut stats = Stats {
            allowed,
            denied,
            keys: self.table.keys(),
            ..Stats::default()
        };
        if let Some(saver) = self.saver() {
            stats.unsaved = saver.unsaved.units();
            stats.flushes = saver.flushes.load(Ordering::Relaxed);
            stats.failed_flushes = saver.failures.load(Ordering::Relaxed);
            stats.store_bytes = saver.bytes.load(Ordering::Relaxed);
            stats.recovered_bytes = saver.recovered_bytes;
            stats.last_error = saver.last_error();
        }
        stats
    }

    /// The limiter's clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    fn saver(&self) -> Option<&QuotaSaver> {
        self.persistence.as_ref().map(BackgroundSaver::saver)
    }

    /// Checks that this process may charge this key.
    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), QuotaDenied> {
        if self.is_forked() {
            return Err(QuotaDenied::FORKED);
        }
        match key.len() {
            0..=QuotaDenied::MAX_KEY_BYTES => Ok(()),
            bytes => Err(QuotaDenied::key_too_long(bytes)),
        }
    }

    /// Whether the file belongs to the process that this one was forked from.
    #[inline]
    fn is_forked(&self) -> bool {
        self.saver().is_some_and(QuotaSaver::is_forked)
    }

    /// Notifies the observer of each threshold that a charge has reached.
    fn notify_thresholds(&self, key: &[u8], done: &ChargeResult) {
        let Receipt { decision, cost, .. } = &done.receipt;
        let observer = self.observer.as_ref().filter(|_| *cost > 0);
        let Some(observer) = observer else {
            return;
        };
        let limit = decision.limit;
        for &percent in &observer.percentages {
            let threshold = (u128::from(limit) * u128::from(percent)).div_ceil(100);
            let reached = threshold <= u128::from(done.used);
            if reached && u128::from(done.previous_peak) < threshold {
                (observer.notify)(&ThresholdEvent {
                    key,
                    percent,
                    used: done.used,
                    limit,
                    reset_after: decision.reset_after,
                });
            }
        }
    }
}

/// The decision of an allowed or denied charge.
fn into_decision(charged: Result<Receipt, QuotaDenied>) -> Decision {
    charged.map_or_else(|refused| *refused.decision(), |receipt| receipt.decision)
}

impl<C> fmt::Debug for QuotaLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaLimiter")
            .field("keys", &self.table.keys())
            .field("kept", &self.persistence.is_some())
            .finish_non_exhaustive()
    }
}
