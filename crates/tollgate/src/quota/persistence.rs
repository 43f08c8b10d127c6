//! Saves charges: a thread that flushes, and the bound on what a crash can lose.
//!
//! # The bound
//! A charge takes its cost from the budget of unsaved units while it holds the lock of its key. A flush
//! reads the unsaved units *before* it collects keys under the same locks, and subtracts that number
//! once the keys are on disk. So each unit counts as unsaved from before it is granted until after it
//! is saved.
//!
//! With write-ahead blocks, nothing is unsaved: a save records more units than were used, and once it
//! is on disk, these may be granted. A key's grant is raised after a save, never before.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::entry::{PeriodAccount, QuotaEntry, UsageLot};
use super::file::{FileEnd, FileError, OwningProcess, QuotaFile};
use super::record::RecordBatch;
use super::table::QuotaTable;
use super::{Durability, OnFileFailure};
use crate::sync::{AtomicU64, Ordering, ignore_poison};

/// The keys that are collected under one hold of a shard's lock.
const KEYS_PER_LOCK: usize = 256;

/// The flush interval, and the bound on unsaved units.
#[derive(Clone, Copy, Debug)]
pub(super) struct PersistenceSettings {
    pub(super) flush_every: Duration,
    pub(super) max_unsaved: u64,
    pub(super) on_failure: OnFileFailure,
    pub(super) durability: Durability,
}

/// The units that are granted but not saved yet.
pub(super) struct UnsavedBudget {
    units: AtomicU64,
    limits: PersistenceSettings,
    signal: std::sync::Mutex<SaverSignal>,
    signalled: Condvar,
}

/// What the saving thread does next.
#[derive(Clone, Copy, Default)]
struct SaverSignal {
    flush: bool,
    stop: bool,
}

impl UnsavedBudget {
    /// Takes units from the budget. False if the bound would be exceeded. A single cost above the bound
    /// is granted when nothing else is unsaved.
    pub(super) fn take_unsaved(&self, cost: u64) -> bool {
        let most = self.limits.max_unsaved;
        let taken = self
            .units
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |units| {
                let more = units.saturating_add(cost);
                let fits = units == 0 || more <= most;
                (fits || self.limits.on_failure == OnFileFailure::Allow).then_some(more)
            });
        match taken {
            // Start a flush at half of the bound, so that it ends before the rest is used up.
            Ok(before) if before <= most / 2 && before.saturating_add(cost) > most / 2 => {
                self.flush_soon();
            }
            Ok(_) => {}
            Err(_) => self.flush_soon(),
        }
        taken.is_ok()
    }

    pub(super) fn units(&self) -> u64 {
        self.units.load(Ordering::Acquire)
    }

    /// The block size for write-ahead, if enabled.
    pub(super) fn claim_block(&self) -> Option<u64> {
        match self.limits.durability {
            Durability::Periodic => None,
            Durability::WriteAhead { block } => Some(block.max(1)),
        }
    }

    /// Requests an early flush.
    pub(super) fn flush_soon(&self) {
        self.signal(|call| call.flush = true);
    }

    pub(super) fn max_unsaved(&self) -> u64 {
        self.limits.max_unsaved
    }

    /// When a denied charge may retry: by then the next flush will have been tried.
    pub(super) fn retry_after(&self) -> Duration {
        self.limits.flush_every
    }

    fn signal(&self, change: impl FnOnce(&mut SaverSignal)) {
        let mut call = ignore_poison(self.signal.lock());
        let before = (call.flush, call.stop);
        change(&mut call);
        if before != (call.flush, call.stop) {
            self.signalled.notify_one();
        }
    }

    /// Waits until it is time to flush (false) or to stop (true).
    fn wait(&self) -> bool {
        let call = ignore_poison(self.signal.lock());
        let waited = self
            .signalled
            .wait_timeout_while(call, self.limits.flush_every, |call| {
                !call.flush && !call.stop
            });
        let (mut call, _) = ignore_poison(waited);
        call.flush = false;
        call.stop
    }
}

/// The file, and the results of its flushes.
pub(super) struct QuotaSaver {
    pub(super) unsaved: UnsavedBudget,
    /// A forked child has a copy of everything but the thread: whatever both processes granted would be
    /// granted twice.
    process: OwningProcess,
    path: PathBuf,
    store: std::sync::Mutex<QuotaFile>,
    pub(super) flushes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) recovered_bytes: u64,
    last_error: std::sync::Mutex<Option<String>>,
}

impl QuotaSaver {
    pub(super) fn new(store: QuotaFile, limits: PersistenceSettings, recovered_bytes: u64) -> Self {
        Self {
            unsaved: UnsavedBudget {
                units: AtomicU64::new(0),
                limits,
                signal: std::sync::Mutex::default(),
                signalled: Condvar::new(),
            },
            process: OwningProcess::new(),
            path: store.path().to_owned(),
            store: std::sync::Mutex::new(store),
            flushes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            recovered_bytes,
            last_error: std::sync::Mutex::default(),
        }
    }

    /// Whether this process was forked from the one that opened the file. A forked child must not lock
    /// anything here: a thread that doesn't exist in the child may hold the lock.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Saves the changes, or everything if the file has to be rewritten.
    pub(super) fn save(&self, table: &QuotaTable, end: FileEnd) -> Result<(), FileError> {
        if self.is_forked() {
            let path = self.path.clone();
            return Err(FileError::Forked { path });
        }
        let mut store = ignore_poison(self.store.lock());
        // Before the keys are collected, so that it counts only units that this save contains.
        let unsaved = self.unsaved.units();
        let mut claims = ClaimBatch {
            // A closed file contains no claims, because nobody grants from it any more.
            is_write_ahead: end == FileEnd::Open && self.unsaved.claim_block().is_some(),
            made: Vec::new(),
        };
        let saved = Self::write(&mut store, table, end, &mut claims);
        let mut last = ignore_poison(self.last_error.lock());
        match saved {
            Ok(wrote) => {
                self.unsaved.units.fetch_sub(unsaved, Ordering::AcqRel);
                claims.grant(table);
                self.flushes.fetch_add(u64::from(wrote), Ordering::Relaxed);
                self.bytes.store(store.bytes(), Ordering::Relaxed);
                *last = None;
                Ok(())
            }
            Err(source) => {
                let error = FileError::io(store.path())(source);
                self.failures.fetch_add(1, Ordering::Relaxed);
                *last = Some(error.to_string());
                Err(error)
            }
        }
    }

    fn write(
        store: &mut QuotaFile,
        table: &QuotaTable,
        end: FileEnd,
        claims: &mut ClaimBatch,
    ) -> io::Result<bool> {
        if end == FileEnd::Open && !store.needs_base() {
            let changes = collect_batch(table, SaveScope::Changed, claims);
            if changes.is_empty() {
                return Ok(false);
            }
            if store.can_append(&changes) {
                return store.append(changes).map(|()| true);
            }
        }
        store
            .write_base(collect_batch(table, SaveScope::All, claims), end)
            .map(|()| true)
    }

    /// The error of the latest flush, if it failed.
    pub(super) fn last_error(&self) -> Option<String> {
        ignore_poison(self.last_error.lock()).clone()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SaveScope {
    Changed,
    All,
}

/// The units that a save claims ahead of their use.
struct ClaimBatch {
    is_write_ahead: bool,
    made: Vec<EntryClaim>,
}

/// The written claims for the latest lots of a key, by the tags of their periods.
struct EntryClaim {
    shard_index: usize,
    key: Arc<[u8]>,
    id: u64,
    lots: Vec<(u64, UsageLot)>,
}

impl EntryClaim {
    fn of(place: usize, entry: &QuotaEntry) -> Self {
        let accounts = entry.accounts();
        Self {
            shard_index: place,
            key: Arc::clone(&entry.key),
            id: entry.id,
            lots: accounts
                .map(|account| {
                    (
                        account.period.tag,
                        account.next_claim(entry.requested_claim),
                    )
                })
                .collect(),
        }
    }
}

impl ClaimBatch {
    /// Grants the claims, after the save is on disk.
    fn grant(self, table: &QuotaTable) {
        for claim in self.made {
            let mut shard = table.shard_at(claim.shard_index);
            let entry = shard.keys.entries.get_mut(&claim.key);
            let Some(entry) = entry.filter(|entry| entry.id == claim.id) else {
                continue;
            };
            entry.requested_claim = 0;
            for account in entry.accounts_mut() {
                let of = |(tag, _): &&(u64, UsageLot)| *tag == account.period.tag;
                if let Some((_, lot)) = claim.lots.iter().find(of) {
                    account.claim = *lot;
                }
            }
        }
    }
}

/// Collects keys, a few at a time so that no request waits long for a shard.
fn collect_batch(table: &QuotaTable, which: SaveScope, claims: &mut ClaimBatch) -> RecordBatch {
    let mut batch = RecordBatch::new();
    claims.made.clear();
    for place in 0..table.len() {
        let keys = {
            let mut shard = table.shard_at(place);
            let changed = std::mem::take(&mut shard.keys.dirty);
            match which {
                SaveScope::Changed => changed,
                SaveScope::All => shard.keys.entries.keys().map(Arc::clone).collect(),
            }
        };
        for chunk in keys.chunks(KEYS_PER_LOCK) {
            let mut shard = table.shard_at(place);
            for key in chunk {
                match shard.keys.entries.get_mut(key) {
                    Some(entry) => {
                        entry.is_dirty = false;
                        let entry = &*entry;
                        if claims.is_write_ahead {
                            let wanted = entry.requested_claim;
                            batch.add_entry(entry, |account| account.next_claim(wanted).amount);
                            claims.made.push(EntryClaim::of(place, entry));
                        } else {
                            batch.add_entry(entry, PeriodAccount::latest);
                        }
                    }
                    None if which == SaveScope::Changed => batch.add_removal(key),
                    None => {}
                }
            }
        }
        // Read after the keys, because keys that were dropped meanwhile have raised it.
        batch.raise_floor(table.shard_at(place).keys.floor);
    }
    batch
}

/// The thread that flushes. Dropping it stops the thread, with a last flush.
pub(super) struct BackgroundSaver {
    table: Arc<QuotaTable>,
    saver: Arc<QuotaSaver>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundSaver {
    pub(super) fn start(table: Arc<QuotaTable>, saver: QuotaSaver) -> io::Result<Self> {
        let saver = Arc::new(saver);
        let (kept, by) = (Arc::clone(&table), Arc::clone(&saver));
        let thread = thread::Builder::new()
            .name("tollgate-quota".into())
            .spawn(move || {
                while !by.unsaved.wait() {
                    // The error is counted and kept for `stats`; the next round tries again.
                    let _ = by.save(&kept, FileEnd::Open);
                }
            })?;
        let thread = Some(thread);
        Ok(Self {
            table,
            saver,
            thread,
        })
    }

    pub(super) fn saver(&self) -> &QuotaSaver {
        &self.saver
    }

    /// Stops the thread and closes the file.
    pub(super) fn close(&mut self) -> Result<(), FileError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        if self.saver.is_forked() {
            // In a forked child the thread doesn't exist, so it can't be joined.
            std::mem::forget(thread);
        } else {
            self.saver.unsaved.signal(|call| call.stop = true);
            // The thread doesn't panic; even if it did, the file still has to be closed.
            let _ = thread.join();
        }
        self.saver.save(&self.table, FileEnd::Closed)
    }
}

impl Drop for BackgroundSaver {
    fn drop(&mut self) {
        // A drop can't report the error; `QuotaLimiter::close` returns it.
        let _ = self.close();
    }
}
