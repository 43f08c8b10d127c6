//! The settings of a quota limiter before it is built or opened.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::LimitError;

use super::entry::QuotaEntry;
use super::file::{FileEnd, QuotaFile};
use super::persistence::{BackgroundSaver, PersistenceSettings, QuotaSaver};
use super::table::QuotaTable;
use super::{FileError, Quota, QuotaLimiter, ThresholdEvent, ThresholdObserver};
use crate::WhenFull;
use crate::clock::{Clock, Wall, WithClock};
use crate::striped_counters::Counters;

/// What happens to requests while the bound on unsaved units is reached, because the file fails or is
/// slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFileFailure {
    /// They are denied until a flush succeeds, so the bound on what a crash loses holds. The default.
    #[default]
    Deny,
    /// They are granted and counted in memory. A crash loses everything since the last flush that
    /// succeeded.
    Allow,
}

/// What a crash costs: units granted twice, or units never granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Grants first, saves later. After a crash, up to [`max_unsaved`](Builder::max_unsaved) units may
    /// be granted a second time. The default.
    #[default]
    Periodic,
    /// Saves a block of units as used before granting any of it. A crash never grants a unit twice, but
    /// each key may lose up to a block. A key's first charge in a period waits for the disk. So does a
    /// charge that comes before the next block is saved, which starts when half of the last block is
    /// used. If the disk fails, such charges are denied, whatever [`OnFileFailure`] is set to.
    WriteAhead {
        /// The units of a key that are saved ahead together.
        block: u64,
    },
}

/// Builds a [`QuotaLimiter`]; made by [`QuotaLimiter::builder`].
///
/// The default clock is [`Wall`]. Other clocks must also count nanoseconds since the Unix epoch.
///
/// ```
/// use std::time::Duration;
/// use tollgate::quota::{OnFileFailure, Quota, QuotaLimiter};
///
/// let path = std::env::temp_dir().join(format!("tollgate-quota-doc-{}", std::process::id()));
/// let limiter = QuotaLimiter::builder(Quota::per_month(10_000), 50_000)
///     .flush_every(Duration::from_millis(500))
///     .max_unsaved(1_000)
///     .on_file_failure(OnFileFailure::Deny)
///     .open(&path)?;
/// limiter.check_n("tenant", 7);
/// limiter.close()?;
///
/// let reopened = QuotaLimiter::builder(Quota::per_month(10_000), 50_000).open(&path)?;
/// assert_eq!(reopened.peek("tenant").remaining, 9_993);
/// # reopened.close()?;
/// # std::fs::remove_file(&path).unwrap();
/// # std::fs::remove_file(path.with_extension("lock")).ok();
/// # Ok::<(), tollgate::quota::FileError>(())
/// ```
pub type Builder<C = Wall> = WithClock<Settings, C>;

/// The settings of a quota limiter, except its clock.
pub struct Settings {
    quota: Quota,
    capacity: usize,
    at_cap: WhenFull,
    observer: Option<ThresholdObserver>,
    limits: PersistenceSettings,
}

impl Settings {
    fn table(&self) -> Arc<QuotaTable> {
        Arc::new(QuotaTable::new(&self.quota, self.capacity, self.at_cap))
    }
}

impl Builder {
    pub(super) fn new(quota: Quota, capacity: usize) -> Self {
        let settings = Settings {
            quota,
            capacity,
            at_cap: WhenFull::DenyNew,
            observer: None,
            limits: PersistenceSettings {
                flush_every: Duration::from_secs(1),
                max_unsaved: 100_000,
                on_failure: OnFileFailure::default(),
                durability: Durability::default(),
            },
        };
        Self {
            settings,
            clock: Wall,
        }
    }
}

impl<C> Builder<C> {
    /// What happens to new keys when the table is full: [`WhenFull::DenyNew`] by default, or
    /// [`WhenFull::AdmitNew`]. Keys with nothing left that counts are dropped first.
    pub fn at_cap(mut self, at_cap: WhenFull) -> Self {
        self.settings.at_cap = at_cap;
        self
    }

    /// Calls `tell` when a charge brings a key to one of these percentages of its quota: once for each
    /// key, percentage and period, and on a rolling quota again after usage has fallen below.
    ///
    /// The call runs on the charging thread, with no lock held. Reached thresholds are saved with the
    /// key, so a threshold is repeated only if a crash has lost the charge too.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use tollgate::{Quota, QuotaLimiter, clock::Manual};
    ///
    /// let reported = Arc::new(Mutex::new(Vec::new()));
    /// let log = Arc::clone(&reported);
    /// let limiter = QuotaLimiter::builder(Quota::per_day(1_000), 1_000_000)
    ///     .clock(Manual::new())
    ///     .on_threshold(&[80, 100], move |event| {
    ///         log.lock().unwrap().push((event.percent, event.used));
    ///     })
    ///     .build()?;
    /// for _ in 0..10 {
    ///     limiter.check_n("tenant", 90);
    /// }
    /// limiter.check_n("tenant", 100);
    /// assert_eq!(*reported.lock().unwrap(), [(80, 810), (100, 1_000)]);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn on_threshold<F>(mut self, percentages: &[u8], tell: F) -> Self
    where
        F: Fn(&ThresholdEvent<'_>) + Send + Sync + 'static,
    {
        let mut percentages = percentages.to_vec();
        percentages.sort_unstable();
        percentages.dedup();
        self.settings.observer = Some(ThresholdObserver {
            percentages,
            notify: Box::new(tell),
        });
        self
    }

    /// How often granted units are saved: every second by default. A crash loses at most what was
    /// granted in this interval plus the duration of a flush.
    pub fn flush_every(mut self, interval: Duration) -> Self {
        self.settings.limits.flush_every = interval;
        self
    }

    /// How many units may be granted but not saved: 100,000 by default. A crash loses at most this
    /// many, or one request's cost if that is more. At half of it, a flush starts early.
    pub fn max_unsaved(mut self, units: u64) -> Self {
        self.settings.limits.max_unsaved = units;
        self
    }

    /// What happens to requests while the bound on unsaved units is reached: [`OnFileFailure::Deny`] by
    /// default.
    pub fn on_file_failure(mut self, policy: OnFileFailure) -> Self {
        self.settings.limits.on_failure = policy;
        self
    }

    /// What a crash costs: [`Durability::Periodic`] by default.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.limits.durability = durability;
        self
    }
}

impl<C: Clock> Builder<C> {
    /// Builds a limiter that counts in memory and loses its counts when it is dropped.
    ///
    /// # Errors
    /// If [`at_cap`](Self::at_cap) got a choice that this limiter doesn't support.
    pub fn build(self) -> Result<QuotaLimiter<C>, LimitError> {
        self.check_at_cap()?;
        Ok(self.build_unchecked())
    }

    /// Rejects the other choices: a key that shared a quota, or restarted after an eviction, would
    /// exceed the agreed quota.
    fn check_at_cap(&self) -> Result<(), LimitError> {
        match self.settings.at_cap {
            WhenFull::DenyNew | WhenFull::AdmitNew => Ok(()),
            other => Err(other.unsupported_by("a QuotaLimiter", "DenyNew or AdmitNew")),
        }
    }

    pub(crate) fn build_unchecked(self) -> QuotaLimiter<C> {
        let table = self.settings.table();
        self.into_limiter(table, None)
    }

    /// Builds a limiter that continues from a file, and keeps its counts there. A missing file is
    /// created. A file that can't be read completely is an error, and stays as it is.
    ///
    /// Beside the file there will be a `.lock` file, and briefly a `.new` file.
    ///
    /// # Errors
    /// If the file can't be read or written, is in use, damaged or of another kind, or holds more keys
    /// than the capacity; or if [`at_cap`](Self::at_cap) got a choice that this limiter doesn't
    /// support.
    pub fn open(self, path: impl AsRef<Path>) -> Result<QuotaLimiter<C>, FileError> {
        let path = path.as_ref();
        self.check_at_cap().map_err(FileError::Limit)?;
        let (store, contents) = QuotaFile::open(path)?;
        let table = self.settings.table();
        let now = self.clock.now().as_nanos();
        table.raise_floor(contents.floor);
        let active = |entry: &&QuotaEntry| entry.idle_at() > now;
        let keys = contents.entries.values().filter(active).count();
        let mut entries = contents.entries.into_values();
        if !entries.all(|entry| table.restore(entry, now)) {
            return Err(FileError::TooManyKeys {
                path: path.to_owned(),
                keys,
                capacity: self.settings.capacity,
            });
        }
        let saver = QuotaSaver::new(store, self.settings.limits, contents.torn_bytes);
        saver.save(&table, FileEnd::Open)?;
        let keeper =
            BackgroundSaver::start(Arc::clone(&table), saver).map_err(FileError::io(path))?;
        Ok(self.into_limiter(table, Some(keeper)))
    }

    fn into_limiter(
        self,
        table: Arc<QuotaTable>,
        keeper: Option<BackgroundSaver>,
    ) -> QuotaLimiter<C> {
        QuotaLimiter {
            table,
            persistence: keeper,
            observer: self.settings.observer,
            counters: Counters::new(),
            clock: self.clock,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("quota", &self.quota)
            .field("capacity", &self.capacity)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
