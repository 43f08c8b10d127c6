//! The keys in memory: 64 shards, each a map behind its own lock.
//!
//! A shard orders its keys by the time when they become idle, so that new keys drop the oldest idle
//! ones first. A full table finds room in the time that it takes to check each shard once. A dropped
//! key that returns is evaluated no earlier than the time when it became idle (`floor`), whatever the
//! clock shows.
//!
//! No thread locks two shards at the same time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

use super::entry::{self, PeriodAccount, QuotaEntry, QuotaEvaluation, max_lookahead};
use super::period::{Period, PeriodPart};
use super::persistence::UnsavedBudget;
use super::{Quota, QuotaDenied, Receipt};
use crate::WhenFull;
use crate::key_table::hasher::KeyHasher;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, Padded, ignore_poison};

const SHARDS: usize = 64;
/// Idle keys that a new key drops: more than one, so that their number shrinks.
const IDLE_DROPS_PER_INSERT: usize = 2;
/// Idle keys of each shard that a new key drops when the table is full.
const IDLE_DROPS_WHEN_FULL: usize = 64;

/// The keys of a limiter.
pub(super) struct QuotaTable {
    shards: Box<[Padded<Mutex<QuotaShard>>]>,
    hasher: KeyHasher,
    keys: AtomicUsize,
    overrides: AtomicUsize,
    capacity: usize,
    at_cap: WhenFull,
    next_id: AtomicU64,
}

/// A part of the keys, and the quota that they are evaluated by.
pub(super) struct QuotaShard {
    pub(super) keys: ShardKeys,
    quota: Quota,
    overrides: HashMap<Arc<[u8]>, Quota>,
    /// The part of the latest new key, with the tag of its period.
    cached_part: Option<(u64, PeriodPart)>,
}

/// The keys of a shard and their indexes.
pub(super) struct ShardKeys {
    pub(super) entries: HashMap<Arc<[u8]>, QuotaEntry>,
    /// By the time when keys become idle; the id separates keys of the same time.
    pub(super) by_idle_time: BTreeMap<(u64, u64), Arc<[u8]>>,
    pub(super) dirty: Vec<Arc<[u8]>>,
    /// No key outside the table is evaluated at an earlier time.
    pub(super) floor: u64,
    /// How far the floor may be ahead of the clock. Anything further means that the clock was set back.
    pub(super) max_lookahead: u64,
}

/// One request to the table.
pub(super) struct QuotaRequest<'a> {
    pub(super) key: &'a [u8],
    /// In place of the key's own quota.
    pub(super) quota: Option<&'a Quota>,
    pub(super) now: Timestamp,
    pub(super) cost: u64,
}

/// The result of a charge, and the usage before and after for thresholds.
pub(super) struct ChargeResult {
    pub(super) receipt: Receipt,
    pub(super) used: u64,
    pub(super) previous_peak: u64,
}

impl QuotaTable {
    pub(super) fn new(quota: &Quota, capacity: usize, at_cap: WhenFull) -> Self {
        let hasher = KeyHasher::random();
        let shard = || QuotaShard {
            keys: ShardKeys {
                entries: HashMap::new(),
                by_idle_time: BTreeMap::new(),
                dirty: Vec::new(),
                floor: 0,
                max_lookahead: quota.period().map_or(0, |period| max_lookahead(period)),
            },
            quota: quota.clone(),
            overrides: HashMap::new(),
            cached_part: None,
        };
        Self {
            shards: (0..SHARDS).map(|_| Padded(Mutex::new(shard()))).collect(),
            hasher,
            keys: AtomicUsize::new(0),
            overrides: AtomicUsize::new(0),
            capacity,
            at_cap,
            next_id: AtomicU64::new(1),
        }
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, QuotaShard>> {
        self.shards.iter().map(|shard| lock(&shard.0))
    }

    pub(super) fn shard(&self, key: &[u8]) -> MutexGuard<'_, QuotaShard> {
        let place = usize::try_from(self.hasher.fingerprint(key) >> 58).unwrap_or(0);
        lock(&self.shards[place % SHARDS].0)
    }

    /// The number of shards.
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn shard_at(&self, place: usize) -> MutexGuard<'_, QuotaShard> {
        lock(&self.shards[place].0)
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Evaluates without writing.
    pub(super) fn evaluate(&self, ask: &QuotaRequest<'_>) -> QuotaEvaluation {
        let mut guard = self.shard(ask.key);
        let (keys, quota, cached) = guard.borrow_parts(ask);
        let now = ask.now.as_nanos();
        if quota.is_unlimited() {
            return QuotaEvaluation::unlimited(now);
        }
        let entry = keys.entries.get(ask.key);
        // A peek writes nothing, so a copy of the entry follows a clock that was set back.
        let as_of = entry.filter(|entry| entry.is_ahead_of(now));
        let as_of = as_of.map(|entry| entry.at_clock(now));
        let entry = as_of.as_ref().or(entry);
        evaluate(ask, quota, entry, keys.floor_at(now), cached)
    }

    /// Evaluates, and charges a cost that fits.
    pub(super) fn charge(
        &self,
        ask: &QuotaRequest<'_>,
        unsaved: Option<&UnsavedBudget>,
    ) -> Result<ChargeResult, QuotaDenied> {
        let first = self.try_charge(ask, unsaved);
        if !matches!(first, Err(QuotaDenied::TooManyKeys { .. })) {
            return first;
        }
        // The table is full: make room in every shard, one lock at a time, then try again.
        let mut next = u64::MAX;
        for mut shard in self.shards() {
            shard.keys.follow_clock_back_of_latest(ask.now.as_nanos());
            self.drop_idle(&mut shard.keys, ask.now.as_nanos(), IDLE_DROPS_WHEN_FULL);
            let first = shard.keys.by_idle_time.keys().next();
            next = next.min(first.map_or(u64::MAX, |(idle_at, _)| *idle_at));
        }
        let mut charged = self.try_charge(ask, unsaved);
        if let Err(QuotaDenied::TooManyKeys { decision, .. }) = &mut charged {
            decision.set_wait(Timestamp::from_nanos(next) - ask.now);
        }
        charged
    }

    fn try_charge(
        &self,
        ask: &QuotaRequest<'_>,
        unsaved: Option<&UnsavedBudget>,
    ) -> Result<ChargeResult, QuotaDenied> {
        let mut guard = self.shard(ask.key);
        let (keys, quota, cached) = guard.borrow_parts(ask);
        // A quota without a period is unlimited.
        let Some(period) = quota.period() else {
            return Ok(ChargeResult::uncounted(Decision::UNLIMITED));
        };
        keys.follow_clock_back(ask.key, ask.now.as_nanos());
        keys.max_lookahead = keys.max_lookahead.max(max_lookahead(period));
        let entry = keys.entries.get_mut(ask.key);
        let judged = evaluate(ask, quota, entry.as_deref(), keys.floor, cached);
        let decision = judged.decision;
        if !decision.is_allowed() {
            return Err(QuotaDenied::used_up(quota.clone(), decision));
        }
        if ask.cost == 0 {
            return Ok(ChargeResult::uncounted(decision));
        }
        let is_new = entry.is_none();
        let mut new;
        let entry = match entry {
            Some(entry) => entry,
            None => match self.new_entry(keys, ask, period, &judged)? {
                Some(entry) => {
                    new = entry;
                    &mut new
                }
                None => return Ok(ChargeResult::uncounted(decision)),
            },
        };
        let indexed = entry.idle_key();
        let charged = match unsaved.map(|unsaved| (unsaved, unsaved.claim_block())) {
            Some((unsaved, Some(block))) => {
                let left = entry.claimed(&judged, quota);
                claim_ahead(entry, left, block, ask.cost, &decision, unsaved)
            }
            Some((unsaved, None)) if !unsaved.take_unsaved(ask.cost) => {
                if is_new {
                    self.keys.fetch_sub(1, Ordering::Relaxed);
                }
                return Err(QuotaDenied::TooMuchUnsaved {
                    max_unsaved: unsaved.max_unsaved(),
                    decision: to_denied(&decision, ask.cost, unsaved.retry_after()),
                });
            }
            _ => true,
        };
        let cost = if charged { ask.cost } else { 0 };
        let done = ChargeResult::from_entry(entry, &judged, quota, cost);
        mark_changed(entry, indexed, &mut keys.by_idle_time, &mut keys.dirty);
        if is_new {
            let entry = entry.clone();
            keys.entries.insert(Arc::clone(&entry.key), entry);
        }
        if charged {
            return Ok(done);
        }
        // More of the key has to be saved ahead; then the charge may be allowed.
        let wait = unsaved.map_or(Duration::ZERO, UnsavedBudget::retry_after);
        let decision = to_denied(&decision, ask.cost, wait);
        Err(QuotaDenied::ClaimNotSaved { decision })
    }

    /// The entry of a new key, not yet stored; none if the charge passes without being counted.
    fn new_entry(
        &self,
        keys: &mut ShardKeys,
        ask: &QuotaRequest<'_>,
        period: &Arc<Period>,
        judged: &QuotaEvaluation,
    ) -> Result<Option<QuotaEntry>, QuotaDenied> {
        self.drop_idle(keys, judged.at, IDLE_DROPS_PER_INSERT);
        if take_slot(&self.keys, self.capacity) {
            let account = PeriodAccount::new(Arc::clone(period));
            return Ok(Some(QuotaEntry::new(
                Arc::from(ask.key),
                self.new_id(),
                account,
            )));
        }
        match self.at_cap {
            WhenFull::AdmitNew => Ok(None),
            _ => Err(QuotaDenied::TooManyKeys {
                capacity: self.capacity,
                decision: to_denied(&judged.decision, ask.cost, Duration::ZERO),
            }),
        }
    }

    /// Changes a key that exists, and marks it for the next save.
    pub(super) fn update(&self, key: &[u8], change: impl FnOnce(&mut QuotaEntry) -> u64) -> u64 {
        self.shard(key).keys.update(key, change)
    }

    pub(super) fn remove(&self, key: &[u8]) {
        let keys = &mut self.shard(key).keys;
        if let Some(entry) = keys.entries.remove(key) {
            keys.by_idle_time.remove(&entry.idle_key());
            // The next save has to record the removal.
            if !entry.is_dirty {
                keys.dirty.push(entry.key);
            }
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Puts a key of the file into the table. False if the table is full.
    pub(super) fn restore(&self, mut entry: QuotaEntry, now: u64) -> bool {
        let keys = &mut self.shard(&entry.key).keys;
        let reaches = entry
            .accounts()
            .map(|account| max_lookahead(&account.period));
        keys.max_lookahead = reaches.fold(keys.max_lookahead, u64::max);
        // An idle key needs no entry, but the floor has to cover it.
        if entry.idle_at() <= now {
            keys.floor = keys.floor.max(entry.idle_at());
            return true;
        }
        if !take_slot(&self.keys, self.capacity) {
            return false;
        }
        entry.id = self.new_id();
        let key = Arc::clone(&entry.key);
        keys.by_idle_time.insert(entry.idle_key(), Arc::clone(&key));
        keys.entries.insert(key, entry);
        true
    }

    /// Raises the time before which no new key is evaluated.
    pub(super) fn raise_floor(&self, floor: u64) {
        for mut shard in self.shards() {
            shard.keys.floor = shard.keys.floor.max(floor);
        }
    }

    pub(super) fn set_quota(&self, quota: &Quota) {
        for mut shard in self.shards() {
            shard.quota = quota.clone();
        }
    }

    pub(super) fn quota(&self, key: &[u8]) -> Quota {
        let shard = self.shard(key);
        shard.overrides.get(key).unwrap_or(&shard.quota).clone()
    }

    /// Overrides the quota of a key. False if there are as many overrides as the table may hold keys.
    pub(super) fn set_override(&self, key: &[u8], quota: Quota) -> bool {
        let mut shard = self.shard(key);
        let is_new = !shard.overrides.contains_key(key);
        if is_new && !take_slot(&self.overrides, self.capacity) {
            return false;
        }
        shard.overrides.insert(Arc::from(key), quota);
        true
    }

    pub(super) fn clear_override(&self, key: &[u8]) {
        if self.shard(key).overrides.remove(key).is_some() {
            self.overrides.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn drop_idle(&self, keys: &mut ShardKeys, now: u64, most: usize) {
        for _ in 0..most {
            match keys.by_idle_time.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let ((idle_at, _), key) = first.remove_entry();
                    keys.floor = keys.floor.max(idle_at);
                    keys.entries.remove(&key);
                    self.keys.fetch_sub(1, Ordering::Relaxed);
                }
                _ => return,
            }
        }
    }
}

impl QuotaShard {
    /// The keys of the shard, and the quota for this key.
    fn borrow_parts<'a>(
        &'a mut self,
        ask: &QuotaRequest<'a>,
    ) -> (
        &'a mut ShardKeys,
        &'a Quota,
        &'a mut Option<(u64, PeriodPart)>,
    ) {
        let own = || self.overrides.get(ask.key).unwrap_or(&self.quota);
        let quota = ask.quota.unwrap_or_else(own);
        (&mut self.keys, quota, &mut self.cached_part)
    }
}

/// Evaluates an entry; for a new key, with the cached part if it fits.
fn evaluate(
    ask: &QuotaRequest<'_>,
    quota: &Quota,
    entry: Option<&QuotaEntry>,
    floor: u64,
    cached: &mut Option<(u64, PeriodPart)>,
) -> QuotaEvaluation {
    let part_at = |at: u64| match *cached {
        Some((tag, part)) if tag == quota.tag() && part.contains(at) => part,
        _ => {
            let part = quota.part_at(at);
            *cached = Some((quota.tag(), part));
            part
        }
    };
    entry::evaluate(entry, floor, quota, ask.now.as_nanos(), ask.cost, part_at)
}

/// Whether the remaining claim covers a cost. If it doesn't, or soon won't, requests the next claim in
/// blocks of this size.
fn claim_ahead(
    entry: &mut QuotaEntry,
    left: u64,
    block: u64,
    cost: u64,
    decision: &Decision,
    unsaved: &UnsavedBudget,
) -> bool {
    let covered = cost <= left;
    if !covered {
        let fits = decision.remaining.saturating_add(cost);
        entry.requested_claim = block.max(cost).min(fits);
    } else if left - cost < block / 2 && decision.remaining > left - cost {
        // Early enough that requests rarely wait for the disk.
        entry.requested_claim = block.min(decision.remaining);
        unsaved.flush_soon();
    }
    covered
}

/// Updates the order of idle keys and the list of unsaved keys after an entry has changed.
fn mark_changed(
    entry: &mut QuotaEntry,
    indexed: (u64, u64),
    idle: &mut BTreeMap<(u64, u64), Arc<[u8]>>,
    dirty: &mut Vec<Arc<[u8]>>,
) {
    if entry.idle_key() != indexed {
        idle.remove(&indexed);
        idle.insert(entry.idle_key(), Arc::clone(&entry.key));
    }
    if !entry.is_dirty {
        entry.is_dirty = true;
        dirty.push(Arc::clone(&entry.key));
    }
}

impl ChargeResult {
    /// Charges an entry.
    fn from_entry(
        entry: &mut QuotaEntry,
        judged: &QuotaEvaluation,
        quota: &Quota,
        cost: u64,
    ) -> Self {
        let (used, peak) = entry.charge(judged, quota, cost);
        let receipt = Receipt {
            decision: judged.decision,
            id: entry.id,
            at: judged.at,
            cost,
        };
        Self {
            receipt,
            used,
            previous_peak: peak,
        }
    }

    fn uncounted(decision: Decision) -> Self {
        let receipt = Receipt {
            decision,
            id: 0,
            at: 0,
            cost: 0,
        };
        Self {
            receipt,
            used: 0,
            previous_peak: 0,
        }
    }
}

/// The same decision, but denied, with nothing charged.
fn to_denied(allowed: &Decision, cost: u64, wait: Duration) -> Decision {
    let left = allowed.remaining.saturating_add(cost);
    Decision::new(
        Outcome::Denied,
        allowed.limit,
        left,
        wait,
        allowed.reset_after,
    )
}

/// Adds one, unless the count has reached its maximum.
fn take_slot(count: &AtomicUsize, most: usize) -> bool {
    // Relaxed is enough: the count guards no other data.
    let more = |count: usize| (count < most).then(|| count + 1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .is_ok()
}

fn lock(shard: &Mutex<QuotaShard>) -> MutexGuard<'_, QuotaShard> {
    ignore_poison(shard.lock())
}

/// Keys of each shard that a full table lets follow a clock that was set back, per request.
const CLOCK_UPDATES_WHEN_FULL: usize = 64;

impl ShardKeys {
    /// The time before which no key outside the table is evaluated.
    pub(super) fn floor_at(&self, now: u64) -> u64 {
        if self.floor.saturating_sub(now) > self.max_lookahead {
            now
        } else {
            self.floor
        }
    }

    /// Changes a key that exists, and marks it for the next save.
    fn update<T: Default>(&mut self, key: &[u8], change: impl FnOnce(&mut QuotaEntry) -> T) -> T {
        let Some(entry) = self.entries.get_mut(key) else {
            return T::default();
        };
        let indexed = entry.idle_key();
        let result = change(entry);
        mark_changed(entry, indexed, &mut self.by_idle_time, &mut self.dirty);
        result
    }

    /// Lets a key and the floor follow a clock that was set back. Returns whether it was.
    pub(super) fn follow_clock_back(&mut self, key: &[u8], now: u64) -> bool {
        self.floor = self.floor_at(now);
        let ahead = |entry: &QuotaEntry| entry.is_ahead_of(now);
        let is_ahead = self.entries.get(key).is_some_and(ahead);
        if is_ahead {
            self.update(key, |entry| entry.follow_clock_back(now));
        }
        is_ahead
    }

    /// Lets the keys with the latest idle times follow, so that they make room within a period.
    pub(super) fn follow_clock_back_of_latest(&mut self, now: u64) {
        for _ in 0..CLOCK_UPDATES_WHEN_FULL {
            let last = self.by_idle_time.last_key_value();
            let key = last.map(|(_, key)| Arc::clone(key));
            if !key.is_some_and(|key| self.follow_clock_back(&key, now)) {
                return;
            }
        }
    }
}
