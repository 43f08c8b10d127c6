//! The keys with the most denials, in bounded memory, for operators who look for their sources.
//!
//! Each key is counted in one of several shards by the Space-Saving algorithm. If a shard is full, a new key replaces
//! the one with the fewest denials and starts from its count, which bounds how much the new key's count may be too
//! high. So a key is never missed if its denials exceed those of its shard divided by the shard's entries, however
//! many other keys there are.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, Hasher};
use std::mem;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError, TryLockError};

use foldhash::fast::RandomState;
use tollgate::Timestamp;
use tollgate::striped_counters::StripedCounters;

use crate::counters::truncate_at_char;
use crate::policy::Mode;

/// The number of shards, each with its own lock.
const SHARDS: usize = 8;
/// The most bytes of a key, and of a limiter's name, that are kept.
const TEXT_BYTES: usize = 160;

/// The keys with the most denials, from [`Engine::top_keys`](crate::Engine::top_keys).
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 2/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?.with_top_keys(10);
/// for _ in 0..5 {
///     let _ = engine.decide(&Facts::new().with("user", "mallory"));
/// }
/// let top = engine.top_keys().expect("it is counted");
/// let first = &top.keys[0];
/// assert_eq!((first.limiter.as_str(), first.key.as_str()), ("per-user", "user=mallory"));
/// assert_eq!((first.denied, first.overcount), (3, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKeys {
    /// When counting began, by the wall clock.
    pub since: Timestamp,
    /// The keys, the most denials first.
    pub keys: Vec<TopKey>,
    /// Denials of all keys that were counted.
    pub counted: u64,
    /// Denials that weren't counted, because another thread held the shard's lock.
    pub missed: u64,
}

/// A key with many denials.
///
/// ```
/// # use tollgate_engine::top_keys::TopKey;
/// /// The fewest denials that the key may have.
/// fn surely(key: &TopKey) -> u64 {
///     key.denied - key.overcount
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The rule, tier or limit of a tree that denied it.
    pub limiter: String,
    /// The facts that make the key, as the client sent them, cut to 160 bytes.
    pub key: String,
    /// The number of denials, or more than that: see `overcount`.
    pub denied: u64,
    /// How much `denied` may be too high.
    pub overcount: u64,
    /// Whether the rule is in shadow mode, so that the requests were allowed, and the count is of would-be denials.
    pub is_shadow: bool,
}

/// Counts denials by limiter and key.
pub(crate) struct TopDenials {
    /// How many keys are reported.
    reported: usize,
    since: Mutex<Timestamp>,
    hasher: RandomState,
    parts: Box<[Mutex<TopShard>]>,
    missed: StripedCounters<AtomicU64>,
}

/// A limiter by a hash of its name, and its key by the fingerprint.
type Id = (u64, [u64; 2]);

/// One shard of the keys.
struct TopShard {
    most: usize,
    counted: u64,
    places: HashMap<Id, usize, RandomState>,
    /// Separate from the entries, so that the search for the minimum reads few cache lines.
    counts: Vec<u64>,
    entries: Vec<TopEntry>,
}

#[derive(Default)]
struct TopEntry {
    id: Id,
    limiter: String,
    key: String,
    overcount: u64,
    is_shadow: bool,
}

/// A denial, enforced or in shadow mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeniedKey<L> {
    pub(crate) limiter: L,
    pub(crate) fingerprint: [u64; 2],
    pub(crate) mode: Mode,
}

impl TopDenials {
    pub(crate) fn new(told: usize, now: Timestamp) -> Self {
        Self {
            reported: told,
            since: Mutex::new(now),
            hasher: RandomState::default(),
            parts: (0..SHARDS)
                .map(|_| Mutex::new(TopShard::new(told)))
                .collect(),
            missed: StripedCounters::with_few_stripes(|| AtomicU64::new(0)),
        }
    }

    /// Counts one denial. It never waits: if another thread holds the shard's lock, the denial is only counted as
    /// missed.
    pub(crate) fn add(&self, refusal: DeniedKey<impl fmt::Display>, key: impl fmt::Display) {
        let DeniedKey {
            limiter,
            fingerprint,
            mode,
        } = refusal;
        let is_shadow = mode == Mode::Shadow;
        let mut hashed = HashWriter(self.hasher.build_hasher());
        // Denials in shadow mode are counted apart from enforced ones of the same key.
        hashed.0.write_u8(u8::from(is_shadow));
        // Writing to a hasher never fails.
        let _ = write!(hashed, "{limiter}");
        let id = (hashed.0.finish(), fingerprint);
        let part = usize::try_from((fingerprint[0] ^ id.0) >> 32).unwrap_or(0) % SHARDS;
        match self.parts[part].try_lock() {
            Ok(mut part) => part.add(id, mode, limiter, key),
            Err(TryLockError::Poisoned(part)) => part.into_inner().add(id, mode, limiter, key),
            Err(TryLockError::WouldBlock) => self.missed.add(|missed| missed, 1),
        }
    }

    /// The keys with the most denials.
    pub(crate) fn keys(&self) -> TopKeys {
        let (mut keys, mut counted) = (Vec::new(), 0);
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            counted += part.counted;
            keys.extend(part.keys());
        }
        let order = |key: &TopKey| (u64::MAX - key.denied, key.overcount);
        keys.sort_unstable_by(|one, other| {
            let ties = (&one.limiter, &one.key).cmp(&(&other.limiter, &other.key));
            order(one).cmp(&order(other)).then(ties)
        });
        keys.truncate(self.reported);
        TopKeys {
            since: *self.since.lock().unwrap_or_else(PoisonError::into_inner),
            keys,
            counted,
            missed: self.missed.sum(|missed| missed),
        }
    }

    /// Clears all counts.
    pub(crate) fn reset(&self, now: Timestamp) {
        for part in &self.parts {
            *part.lock().unwrap_or_else(PoisonError::into_inner) = TopShard::new(self.reported);
        }
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl TopShard {
    fn new(most: usize) -> Self {
        Self {
            most,
            counted: 0,
            places: HashMap::default(),
            counts: Vec::new(),
            entries: Vec::new(),
        }
    }

    fn add(&mut self, id: Id, mode: Mode, limiter: impl fmt::Display, key: impl fmt::Display) {
        self.counted += 1;
        if let Some(place) = self.places.get(&id) {
            self.counts[*place] += 1;
            return;
        }
        let (place, count) = if self.entries.len() < self.most {
            self.counts.push(0);
            self.entries.push(TopEntry::default());
            (self.entries.len() - 1, 0)
        } else {
            let counts = self.counts.iter().copied().enumerate();
            let Some((place, count)) = counts.min_by_key(|(_, count)| *count) else {
                return;
            };
            self.places.remove(&self.entries[place].id);
            (place, count)
        };
        self.places.insert(id, place);
        self.counts[place] = count + 1;
        let entry = &mut self.entries[place];
        // Reuses the buffers of the replaced entry, so that a flood of keys allocates nothing.
        *entry = TopEntry {
            id,
            limiter: write_truncated(mem::take(&mut entry.limiter), limiter),
            key: write_truncated(mem::take(&mut entry.key), key),
            overcount: count,
            is_shadow: mode == Mode::Shadow,
        };
    }

    fn keys(&self) -> impl Iterator<Item = TopKey> {
        let entries = self.entries.iter().zip(&self.counts);
        entries.map(|(entry, count)| TopKey {
            limiter: entry.limiter.clone(),
            key: entry.key.clone(),
            denied: *count,
            overcount: entry.overcount,
            is_shadow: entry.is_shadow,
        })
    }
}

/// Writes the beginning of a text into the buffer of another.
fn write_truncated(mut place: String, text: impl fmt::Display) -> String {
    place.clear();
    let mut beginning = TruncatingWriter(&mut place);
    if write!(beginning, "{text}").is_err() {
        place.push('…');
    }
    place
}

/// Hashes a text without storing it.
struct HashWriter<H>(H);

impl<H: Hasher> Write for HashWriter<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Takes at most [`TEXT_BYTES`] of a text.
struct TruncatingWriter<'a>(&'a mut String);

impl Write for TruncatingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = TEXT_BYTES - self.0.len();
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(truncate_at_char(text, room));
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next pseudorandom number.
    fn next(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *state >> 33
    }

    fn add(top: &TopDenials, number: u64) {
        let fingerprint = [number.wrapping_mul(0x9E37_79B9_7F4A_7C15), number];
        let refusal = DeniedKey {
            limiter: "per-user",
            fingerprint,
            mode: Mode::Enforce,
        };
        top.add(refusal, format_args!("user={number}"));
    }

    #[test]
    fn the_true_top_ones_are_found_in_zipf_traffic() {
        let (top, mut state) = (TopDenials::new(128, Timestamp::ZERO), 7);
        let mut truth = HashMap::new();
        // The weight of the n-th of 100,000 keys is one n-th.
        let mut sum = 0;
        let weights: Vec<u64> = (1..=100_000)
            .map(|rank| {
                sum += 1_000_000 / rank;
                sum
            })
            .collect();
        for _ in 0..200_000 {
            let at = next(&mut state) % sum;
            let rank = weights.partition_point(|weight| *weight <= at) as u64;
            *truth.entry(rank).or_insert(0_u64) += 1;
            add(&top, rank);
        }
        let told = top.keys();
        assert_eq!(
            (told.keys.len(), told.counted, told.missed),
            (128, 200_000, 0)
        );
        let mut ranked: Vec<_> = truth.iter().map(|(rank, count)| (*count, *rank)).collect();
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        let names: Vec<_> = told.keys.iter().map(|key| key.key.as_str()).collect();
        for (count, rank) in &ranked[..40] {
            let place = names
                .iter()
                .position(|name| *name == format!("user={rank}"));
            let key = &told.keys[place.expect("one of the top")];
            assert!(key.denied - key.overcount <= *count && *count <= key.denied);
        }
        assert_eq!(names[0], format!("user={}", ranked[0].1));
    }

    #[test]
    fn a_flood_of_keys_takes_no_more_memory_and_hides_nobody() {
        let top = TopDenials::new(16, Timestamp::ZERO);
        for number in 0..100_000 {
            add(&top, 1_000 + number);
            if number % 20 == 0 {
                add(&top, 7);
            }
        }
        for part in &top.parts {
            let part = part.lock().unwrap();
            assert_eq!((part.entries.len(), part.places.len()), (16, 16));
            assert!(part.entries.iter().all(|entry| entry.key.capacity() <= 256));
        }
        let first = &top.keys().keys[0];
        assert_eq!(first.key, "user=7");
        assert!(first.denied >= 5_000 && first.denied - first.overcount <= 5_000);
    }

    #[test]
    fn long_texts_are_cut_and_it_begins_anew() {
        let top = TopDenials::new(4, Timestamp::ZERO);
        let refusal = DeniedKey {
            limiter: "a",
            fingerprint: [1, 2],
            mode: Mode::Enforce,
        };
        top.add(refusal, "ü".repeat(1_000));
        let key = top.keys().keys.remove(0).key;
        assert_eq!((key.len(), key.chars().count()), (163, 81));
        assert!(key.ends_with('…'));
        top.reset(Timestamp::from_secs(5));
        let told = top.keys();
        assert!(told.keys.is_empty() && told.since == Timestamp::from_secs(5));
    }

    #[test]
    fn who_cannot_count_at_once_does_not_wait() {
        let top = TopDenials::new(4, Timestamp::ZERO);
        let locked: Vec<_> = top.parts.iter().map(|part| part.lock().unwrap()).collect();
        add(&top, 1);
        drop(locked);
        let told = top.keys();
        assert_eq!((told.counted, told.missed), (0, 1));
    }
}
