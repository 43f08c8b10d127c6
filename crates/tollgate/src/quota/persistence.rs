//! Saves what was granted: a thread that flushes, and the bound on what a crash can lose.
//!
//! # The bound
//! A charge takes its cost from what may be unsaved, while it holds the lock of its key. A flush reads
//! how much is unsaved *before* it collects keys under the same locks, and subtracts that once they are
//! on disk. So each unit is unsaved from before it is granted until after it is saved.
//!
//! With blocks that are saved ahead nothing is unsaved: a save writes down more than was used, and once
//! it is on disk that much may be granted. What a key may grant is raised after a save, never before.

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

/// Keys that are written down while the lock of their shard is held once.
const KEYS_PER_LOCK: usize = 256;

/// How often to save, and how much may be unsaved.
#[derive(Clone, Copy, Debug)]
pub(super) struct PersistenceSettings {
    pub(super) flush_every: Duration,
    pub(super) max_unsaved: u64,
    pub(super) on_failure: OnFileFailure,
    pub(super) durability: Durability,
}

/// What was granted and isn't saved yet.
pub(super) struct UnsavedBudget {
    units: AtomicU64,
    limits: PersistenceSettings,
    signal: std::sync::Mutex<SaverSignal>,
    signalled: Condvar,
}

/// What the thread is to do next.
#[derive(Clone, Copy, Default)]
struct SaverSignal {
    flush: bool,
    stop: bool,
}

impl UnsavedBudget {
    /// Takes units to be granted. False if more would be unsaved than may: a single cost above that
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
            // Early enough that the flush is over before the rest is used up.
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

    /// The block that is saved ahead, if any.
    pub(super) fn claim_block(&self) -> Option<u64> {
        match self.limits.durability {
            Durability::Periodic => None,
            Durability::WriteAhead { block } => Some(block.max(1)),
        }
    }

    /// Asks for a flush before its time.
    pub(super) fn flush_soon(&self) {
        self.signal(|call| call.flush = true);
    }

    pub(super) fn max_unsaved(&self) -> u64 {
        self.limits.max_unsaved
    }

    /// When a refused charge may try again: the next flush will have been tried.
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

    /// Waits until it is time to flush, or to stop: then true.
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

/// The store, and how its flushes went.
pub(super) struct QuotaSaver {
    pub(super) unsaved: UnsavedBudget,
    /// A child that was forked since has a copy of everything but the thread: whatever both granted would be
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

    /// Whether this process was forked from the one that opened the store. Then nothing here may be locked: a
    /// thread that isn't there may hold it.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Saves what has changed, or everything if the file has to be written anew.
    pub(super) fn save(&self, table: &QuotaTable, end: FileEnd) -> Result<(), FileError> {
        if self.is_forked() {
            let path = self.path.clone();
            return Err(FileError::Forked { path });
        }
        let mut store = ignore_poison(self.store.lock());
        let unsaved = self.unsaved.units();
        let mut claims = ClaimBatch {
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

    /// Why the latest flush failed, while it does.
    pub(super) fn last_error(&self) -> Option<String> {
        ignore_poison(self.last_error.lock()).clone()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SaveScope {
    Changed,
    All,
}

/// What a save counts ahead of its use.
struct ClaimBatch {
    is_write_ahead: bool,
    made: Vec<EntryClaim>,
}

/// What was written for the latest lots of a key, by the tags of their periods.
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
    /// The save is on disk: that much may be granted.
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

/// Writes keys down, a few at a time so that nobody waits long for a shard.
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
        // After its keys: what was dropped meanwhile has raised it.
        batch.raise_floor(table.shard_at(place).keys.floor);
    }
    batch
}

/// The thread that flushes; stopped, with a last flush, when it is dropped.
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

    /// Stops the thread and leaves the file closed.
    pub(super) fn close(&mut self) -> Result<(), FileError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        if self.saver.is_forked() {
            // There is no such thread here.
            std::mem::forget(thread);
        } else {
            self.saver.unsaved.signal(|call| call.stop = true);
            // The thread doesn't panic; if it did, the file still has to be closed.
            let _ = thread.join();
        }
        self.saver.save(&self.table, FileEnd::Closed)
    }
}

impl Drop for BackgroundSaver {
    fn drop(&mut self) {
        // There is nowhere to report the error; `QuotaLimiter::close` returns it.
        let _ = self.close();
    }
}
