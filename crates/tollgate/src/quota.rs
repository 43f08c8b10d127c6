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
//! This quota lives in memory. To keep it across restarts, store it in a file: end the builder with
//! [`open`](Builder::open).
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
//! # The cost of a crash
//! Charges are counted in memory. A thread saves them every second by default, and earlier after many grants. After a
//! crash a key may be granted its unsaved charges a second time: at most the grants of all keys in the last flush
//! interval, and at most [`max_unsaved`](Builder::max_unsaved) units. Dropping the limiter saves everything.
//! [`close`](QuotaLimiter::close) does so too, and returns whether it worked.
//!
//! [`Durability::WriteAhead`] reverses the trade-off: nothing is granted twice, but a key may lose a block of units.
//!
//! # The cost of a wrong clock
//! A key's time never goes back. If the clock does, the key stays in the period in which it was charged until the clock
//! has caught up. That grants nothing extra. After a clock was ahead by a month, the keys that were charged meanwhile
//! stay in that month; [`reset`](QuotaLimiter::reset) frees a key.

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

/// How often a charge saves more units ahead before it is denied.
const MAX_CLAIM_ATTEMPTS: usize = 8;

/// A quota for each key: a tenant's id, or any bytes up to a kilobyte.
///
/// A check locks one of 64 shards for some tens of nanoseconds and doesn't touch the disk.
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
    /// Saves the counts to a file, if there is one. It stops with the limiter.
    persistence: Option<BackgroundSaver>,
    observer: Option<ThresholdObserver>,
    counters: Counters,
    clock: C,
}

/// A key has reached a percentage of its quota.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ThresholdEvent<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The configured percentage that was reached.
    pub percent: u8,
    /// The units that the key has used, including the charge that reached the percentage.
    pub used: u64,
    /// The size of the quota.
    pub limit: u64,
    /// How long until no unit counts as used, if no more are used.
    pub reset_after: Duration,
}

/// The observer of thresholds.
struct ThresholdObserver {
    /// The percentages, in ascending order.
    percentages: Vec<u8>,
    notify: Box<dyn Fn(&ThresholdEvent<'_>) + Send + Sync>,
}

/// The counters of a quota limiter, and the state of its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Charges above 0 that passed.
    pub allowed: u64,
    /// Charges above 0 that were denied.
    pub denied: u64,
    /// Keys that are counted now.
    pub keys: usize,
    /// Units that are granted and not saved: a crash now would lose them.
    pub unsaved: u64,
    /// Flushes that wrote data.
    pub flushes: u64,
    /// Flushes that failed. The next flush tries to save the same data.
    pub failed_flushes: u64,
    /// The size of the file.
    pub store_bytes: u64,
    /// Bytes of an unfinished write that a crash left in the file; they were ignored at opening.
    pub recovered_bytes: u64,
    /// The error of the latest flush; `None` once a flush has succeeded.
    pub last_error: Option<String>,
}

impl QuotaLimiter {
    /// The same quota for each key, for at most `capacity` keys at a time, by the system's clock, in memory only.
    ///
    /// A key takes about 500 bytes and its name. With a rolling quota it takes up to 1.5 kB, and with quotas of four
    /// kinds of periods up to four times as much.
    pub fn new(quota: Quota, capacity: usize) -> Self {
        Self::builder(quota, capacity).build_unchecked()
    }

    /// Sets the file, the clock, the bounds and the observer of thresholds.
    pub fn builder(quota: Quota, capacity: usize) -> Builder {
        Builder::new(quota, capacity)
    }
}

impl<C: Clock> QuotaLimiter<C> {
    /// Decides one unit of this key.
    pub fn check<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Decision {
        self.check_n(key, 1)
    }

    /// Decides a cost of this key. A cost of 0 peeks.
    pub fn check_n<K: AsRef<[u8]> + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.check_at(self.clock.now(), key, cost)
    }

    /// Decides a cost at a time on the limiter's clock.
    pub fn check_at<K: AsRef<[u8]> + ?Sized>(
        &self,
        now: Timestamp,
        key: &K,
        cost: u64,
    ) -> Decision {
        into_decision(self.charge_at(now, key, None, cost))
    }

    /// The remaining units of this key, without charging anything.
    pub fn peek<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Decision {
        self.peek_at(self.clock.now(), key, None, 0)
    }

    /// Whether a cost would pass, without charging it, under the key's quota or the given one.
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

    /// Charges a cost to this key. The receipt can refund it if the request doesn't happen.
    ///
    /// # Errors
    /// The reason of the denial. Nothing was charged.
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
    /// The reason of the denial. Nothing was charged.
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
        // Other requests may use up the saved units before this one is charged, so it retries.
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

    /// Refunds a charge to the period, or the part of a rolling period, in which it was counted, for each quota of the
    /// key. Returns the refunded units: none if that period is over, or if the key was reset since.
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

    /// Refunds units to the key, whatever they were charged for: the latest first, and no more than still count.
    /// [`peek`](Self::peek) returns the units that remain then.
    pub fn refund<K: AsRef<[u8]> + ?Sized>(&self, key: &K, units: u64) {
        let now = self.clock.now().as_nanos();
        self.table
            .update(key.as_ref(), |entry| entry.refund(units, now));
    }

    /// Forgets what the key has used.
    pub fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) {
        self.table.remove(key.as_ref());
    }

    /// The quota of this key: its override, or the quota of all keys.
    pub fn quota_of<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Quota {
        self.table.quota(key.as_ref())
    }

    /// Changes the quota of all keys without an override. Used units stay used, as [`Key::at`] says.
    pub fn set_quota(&self, quota: &Quota) {
        self.table.set_quota(quota);
    }

    /// Gives this key a quota of its own. The override is configuration: the store doesn't keep it.
    ///
    /// # Errors
    /// [`TableFull`] if as many keys have an override as the limiter has capacity for.
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

    /// Removes the override of this key, so that the quota of all keys applies again.
    pub fn clear_override<K: AsRef<[u8]> + ?Sized>(&self, key: &K) {
        self.table.clear_override(key.as_ref());
    }

    /// Saves the changes now, on this thread. Without a store it does nothing.
    ///
    /// # Errors
    /// If the file can't be written; the next flush tries again.
    pub fn flush(&self) -> Result<(), FileError> {
        match self.saver() {
            Some(saver) => saver.save(&self.table, FileEnd::Open),
            None => Ok(()),
        }
    }

    /// Saves everything and closes the file, as dropping does, and returns whether it worked.
    ///
    /// # Errors
    /// If the file can't be written. It then holds the data of the last successful flush.
    pub fn close(mut self) -> Result<(), FileError> {
        self.persistence
            .as_mut()
            .map_or(Ok(()), BackgroundSaver::close)
    }

    /// The counters so far, and the state of the store.
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

    /// The clock that the limiter reads.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    fn saver(&self) -> Option<&QuotaSaver> {
        self.persistence.as_ref().map(BackgroundSaver::saver)
    }

    /// Checks that this process may use this key.
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

    /// Whether the store belongs to the process that this process was forked from.
    #[inline]
    fn is_forked(&self) -> bool {
        self.saver().is_some_and(QuotaSaver::is_forked)
    }

    /// Reports the thresholds that a charge has reached.
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

/// The decision of an allowed or a denied charge.
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
