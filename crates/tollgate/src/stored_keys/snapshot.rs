//! The active keys in a file, so that another process can continue with them.
//!
//! # Format of a section, version 2
//! | words | what |
//! |---|---|
//! | 1 | the version |
//! | 1 | the algorithm's number |
//! | 1 | wall time, nanoseconds since 1970 |
//! | 1 | the time that states are as of, in nanoseconds |
//! | … | records, each beginning with its kind |
//!
//! | kind | what |
//! |---|---|
//! | 1 | a rate, numbered from 0 in order: 0 for none, 1 for zero, 2 for a finite one; count, seconds, nanoseconds, burst; where windows begin: 0 and a boundary, or 1 and nothing for the first hit |
//! | 2 | the time that states are as of from here on, in nanoseconds |
//! | 3 | a key: twice its rate's number, plus one at a tier; blocked until; latest booking; bytes of the key, the key filled up with zeros; its state |
//! | 0 | the end, and the number of keys |
//!
//! A snapshot of one limiter holds one section.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;

use tollgate_core::{Ledger, Timestamp, WindowAlignment};

use super::algorithm_table::{AlgorithmTable, each};
use super::key_entry::KeyEntry;
use super::shard::{NewEntry, RestoreError};
use super::table::{Table, Timeline};
use super::table_algorithm::TableAlgorithm;
use super::{Builder, StoredKeyLimiter};
use crate::Algorithm;
use crate::clock::{Clock, ClockChoice};
use crate::key_table::hasher::KeyHasher;
use crate::snapshot::{
    self, LoadCounts, SnapshotError, SnapshotReader, SnapshotTimes, SnapshotWriter, push_bytes,
};

const KIND: &[u8; 8] = b"tollkeys";
/// Version 1 couldn't represent rates with another window alignment than the limiter's.
const VERSION: u64 = 2;

const END: u64 = 0;
const RATE: u64 = 1;
const TIME: u64 = 2;
const KEY: u64 = 3;

/// The meaning of a key's bytes in a snapshot.
///
/// ```
/// use tollgate::stored_keys::DecodedKey;
///
/// let decode = |bytes: &[u8]| match std::str::from_utf8(bytes) {
///     Ok(text) if text.starts_with("test:") => DecodedKey::Skipped,
///     Ok(text) => DecodedKey::Key(text.to_owned()),
///     Err(_) => DecodedKey::Unknown,
/// };
/// assert_eq!(decode(b"user:42"), DecodedKey::Key("user:42".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedKey<K> {
    /// A key to be loaded.
    Key(K),
    /// A key that is no longer needed.
    Skipped,
    /// Bytes that aren't a key: the file is invalid.
    Unknown,
}

impl<K, C: Clock> StoredKeyLimiter<K, C> {
    /// Writes the active keys to a file, and returns their number. It replaces an existing file as a whole, or leaves
    /// it unchanged. Only its owner can read it.
    ///
    /// `encode` appends a key's bytes, and must not call this limiter. Shards are copied one after the other. Checks
    /// continue meanwhile, so the file may hold a key as it was before or after such a check.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if the file can't be written.
    ///
    /// ```
    /// use tollgate::{StoredKeyLimiter, Rate};
    ///
    /// let path = std::env::temp_dir().join(format!("tollgate-exact-doc-{}", std::process::id()));
    /// let limiter = StoredKeyLimiter::<String>::new(Rate::per_hour(10), 1_000);
    /// limiter.check_n("user:42", 8);
    /// limiter.snapshot(&path, |key, bytes| bytes.extend(key.as_bytes()))?;
    ///
    /// let restored = StoredKeyLimiter::builder(Rate::per_hour(10), 1_000)
    ///     .restore(&path, |bytes| String::from_utf8(bytes.to_vec()).ok())?;
    /// assert_eq!(restored.key("user:42").peek().remaining, 2);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tollgate::keyed::SnapshotError>(())
    /// ```
    pub fn snapshot(
        &self,
        path: impl AsRef<Path>,
        encode: impl FnMut(&K, &mut Vec<u8>),
    ) -> Result<u64, SnapshotError> {
        SnapshotWriter::write(path, KIND, VERSION, |file| {
            self.save(file, SnapshotTimes::of(self.clock.now()), encode)
        })
    }

    /// Writes the keys that are active at these times as a section of a file, and returns their number. It works as
    /// [`snapshot`](Self::snapshot), but other sections can follow. No lock is held while it waits for the disk.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if the file can't be written.
    ///
    /// [`SnapshotWriter`] has an example.
    pub fn save(
        &self,
        file: &mut SnapshotWriter,
        times: SnapshotTimes,
        encode: impl FnMut(&K, &mut Vec<u8>),
    ) -> Result<u64, SnapshotError> {
        each!(&self.tables, table => save(table, file, times, encode))
    }
}

impl<K: Hash + Eq + Clone, C: ClockChoice> Builder<K, C> {
    /// Builds the limiter with the keys of a file that [`StoredKeyLimiter::snapshot`] wrote, after the time that has
    /// passed since by the wall clock. If the wall clock went back, no time has passed. `decode` makes a key of the
    /// bytes that `encode` wrote.
    ///
    /// Spent tokens carry over to the rate of this builder. Keys at a tier stay at it until a call uses another limit.
    /// Windows that begin at boundaries continue in the window that is open by the new clock, and never admit more than
    /// they would have.
    ///
    /// # Errors
    /// If the file can't be read, or is no intact snapshot of this format and algorithm; if it holds a key that
    /// `decode` doesn't know or returns twice, or more active keys than the table has slots for; or if the algorithm
    /// can't represent the rate.
    pub fn restore(
        self,
        path: impl AsRef<Path>,
        mut decode: impl FnMut(&[u8]) -> Option<K>,
    ) -> Result<StoredKeyLimiter<K, C::Clock>, SnapshotError> {
        let decode = |bytes: &[u8]| decode(bytes).map_or(DecodedKey::Unknown, DecodedKey::Key);
        let builder = self.resolve_clock();
        let capacity = builder.settings.capacity;
        SnapshotReader::read(path, KIND, VERSION, capacity, |file| {
            let times = SnapshotTimes::of(builder.clock.now());
            builder.load(file, times, decode)
        })
    }
}

impl<K: Hash + Eq + Clone, C: Clock> Builder<K, C> {
    /// Builds the limiter with the keys of a section that [`StoredKeyLimiter::save`] wrote, at these times. It works as
    /// [`restore`](Self::restore), but `decode` may skip keys, and a key that finds no slot is counted, and is no
    /// error.
    ///
    /// # Errors
    /// If the file can't be read, or the section isn't of this format and algorithm; if it holds a key that `decode`
    /// doesn't know or returns twice; or if the algorithm can't represent the rate.
    ///
    /// [`SnapshotWriter`] has an example.
    pub fn load(
        self,
        file: &mut SnapshotReader,
        times: SnapshotTimes,
        decode: impl FnMut(&[u8]) -> DecodedKey<K>,
    ) -> Result<(StoredKeyLimiter<K, C>, LoadCounts), SnapshotError> {
        file.expect_version(VERSION)?;
        let [algorithm, wall, time] = file.words()?;
        let elapsed = times.nanos_since(wall);
        let start = Timestamp::from_nanos(time).plus_nanos(elapsed);
        let own = self.settings.kind_settings.algorithm;
        let is_free = matches!(
            own,
            Algorithm::FixedWindow(WindowAlignment::FirstHit)
                | Algorithm::SlidingLog
                | Algorithm::SlidingCounter
        );
        let is_wall = times.is_wall_clock() && time == wall;
        let timeline = if is_free && !is_wall {
            // Hits lie in the past, perhaps before the new clock's origin. Neither they nor their windows depend on
            // that origin, so states continue on the timeline of the file.
            Some(Timeline {
                anchor: times.now,
                start,
                last: Timestamp::MAX,
            })
        } else {
            Timeline::of(own, times.now)
        };
        let limiter = self.build_on(timeline).map_err(SnapshotError::Limit)?;
        let (tables, hasher) = (&limiter.tables, &limiter.hasher);
        let section = SnapshotSection {
            algorithm,
            elapsed,
            now: start,
            times,
            hasher,
        };
        let loaded = each!(tables, table => section.load(table, file, decode))?;
        Ok((limiter, loaded))
    }
}

/// Writes a table's active keys, a shard at a time; returns their number.
fn save<K, A: TableAlgorithm>(
    table: &Table<K, A>,
    file: &mut SnapshotWriter,
    times: SnapshotTimes,
    mut encode: impl FnMut(&K, &mut Vec<u8>),
) -> Result<u64, SnapshotError> {
    let mut local = table.local_time(times.now);
    file.words(&[VERSION, A::NUMBER, times.wall.as_nanos(), local.as_nanos()])?;
    let mut rates = HashMap::new();
    let (mut keys, mut words, mut bytes) = (0, Vec::new(), Vec::new());
    for number in 0..table.shards() {
        table.for_each_of(number, times.now, |entry, limit, _, until| {
            // Under the shard's lock. The anchor of the times moves once in years.
            let counted = table.local_time(times.now);
            if counted != local {
                local = counted;
                words.extend([TIME, local.as_nanos()]);
            }
            let next = rates.len() as u64;
            let rate = *rates.entry(limit_words(limit)).or_insert(next);
            if rate == next {
                words.push(RATE);
                words.extend(limit_words(limit));
            }
            bytes.clear();
            encode(&entry.key, &mut bytes);
            push_key(&mut words, entry, rate, until, &bytes);
            keys += 1;
        });
        file.words(&words)?;
        words.clear();
    }
    file.words(&[END, keys])?;
    Ok(keys)
}

fn push_key<K, A: TableAlgorithm>(
    words: &mut Vec<u64>,
    entry: &KeyEntry<K, A>,
    rate: u64,
    until: Timestamp,
    bytes: &[u8],
) {
    let (state, floor) = entry.ledger.parts();
    words.extend([
        KEY,
        rate * 2 + u64::from(entry.tier.is_some()),
        until.as_nanos(),
        floor.as_nanos(),
    ]);
    push_bytes(words, bytes);
    A::write(state, words);
}

/// The rate of a limit, and its window alignment.
fn limit_words(limit: &impl TableAlgorithm) -> [u64; 7] {
    let [kind, count, secs, nanos, burst] = snapshot::rate_words(limit.rate());
    let (align, boundary) = match limit.alignment_of() {
        WindowAlignment::Boundary(boundary) => (0, boundary.as_nanos()),
        WindowAlignment::FirstHit => (1, 0),
    };
    [kind, count, secs, nanos, burst, align, boundary]
}

fn limit_from_words<A: TableAlgorithm>(words: [u64; 7]) -> Option<A> {
    let [kind, count, secs, nanos, burst, align, boundary] = words;
    let rate = snapshot::rate_from_words([kind, count, secs, nanos, burst])?;
    let align = match align {
        0 => WindowAlignment::Boundary(Timestamp::from_nanos(boundary)),
        _ => WindowAlignment::FirstHit,
    };
    Some(A::new(rate).ok()?.aligned_to(align))
}

/// A section, and the parameters for loading its keys.
struct SnapshotSection<'a> {
    algorithm: u64,
    /// The time since it was written, in nanoseconds.
    elapsed: u64,
    /// The present time on the clock of its states.
    now: Timestamp,
    times: SnapshotTimes,
    hasher: &'a KeyHasher,
}

impl SnapshotSection<'_> {
    /// Stores the keys that are still active.
    fn load<K: Hash + Eq + Clone, A: TableAlgorithm>(
        mut self,
        table: &Table<K, A>,
        file: &mut SnapshotReader,
        mut decode: impl FnMut(&[u8]) -> DecodedKey<K>,
    ) -> Result<LoadCounts, SnapshotError> {
        let path = || file.path().to_owned();
        if self.algorithm != A::NUMBER {
            return Err(SnapshotError::OtherAlgorithm { path: path() });
        }
        let (mut limits, mut keys) = (Vec::new(), 0);
        let mut loaded = LoadCounts::default();
        loop {
            match file.word()? {
                END => break,
                TIME => {
                    let time = Timestamp::from_nanos(file.word()?);
                    self.now = time.plus_nanos(self.elapsed);
                }
                RATE => {
                    let limit = limit_from_words::<A>(file.words()?);
                    limits.push(Arc::new(limit.ok_or_else(|| file.corrupt_error())?));
                }
                KEY => {
                    keys += 1;
                    let stored = self.read_key(table, file, &limits, &mut decode)?;
                    match stored.map(|new| table.restore(new, self.times.now)) {
                        None => {}
                        Some(Ok(())) => loaded.keys += 1,
                        Some(Err(RestoreError::Full)) => loaded.skipped += 1,
                        Some(Err(RestoreError::Duplicate)) => {
                            let path = file.path().to_owned();
                            return Err(SnapshotError::Key { path });
                        }
                    }
                }
                _ => return Err(file.corrupt_error()),
            }
        }
        match file.word()? {
            written if written == keys => Ok(loaded),
            _ => Err(file.corrupt_error()),
        }
    }

    /// The next key, if it is still active and needed.
    fn read_key<K: Hash + Eq + Clone, A: TableAlgorithm>(
        &self,
        table: &Table<K, A>,
        file: &mut SnapshotReader,
        limits: &[Arc<A>],
        decode: &mut impl FnMut(&[u8]) -> DecodedKey<K>,
    ) -> Result<Option<NewEntry<K, A>>, SnapshotError> {
        let (own, to) = (table.limit(), table.local_time(self.times.now));
        let [rate, until, floor] = file.words()?;
        let bytes = file.bytes()?;
        let state = A::read(&mut file.remaining_words());
        let state = state.ok_or_else(|| file.corrupt_error())?;
        let number = usize::try_from(rate / 2).unwrap_or(usize::MAX);
        let old = limits.get(number).ok_or_else(|| file.corrupt_error())?;
        let mut ledger = Ledger::<A>::from_parts(state, Timestamp::from_nanos(floor));
        // A window moved to another clock is approximate: it grants less, never more.
        if self.now != to {
            ledger.move_to_clock(old, self.now, to);
        }
        let tier = (rate % 2 == 1).then(|| Arc::clone(old));
        if tier.is_none() && **old != own {
            ledger.migrate_spent(old, &own, to);
        }
        let until = Timestamp::from_nanos(until);
        let blocked_until = if until > self.now {
            until.shifted(self.now, to)
        } else {
            Timestamp::ZERO
        };
        let limit = tier.as_deref().unwrap_or(&own);
        if limit.idle_at(ledger.state()).max(blocked_until) <= to {
            return Ok(None);
        }
        let key = match decode(&bytes) {
            DecodedKey::Key(key) => key,
            DecodedKey::Skipped => return Ok(None),
            DecodedKey::Unknown => {
                let path = file.path().to_owned();
                return Err(SnapshotError::Key { path });
            }
        };
        Ok(Some(NewEntry {
            hash: self.hasher.fingerprint(&key),
            key,
            ledger,
            tier,
            // The first call decides which limit it is under.
            is_given: true,
            blocked_until,
        }))
    }
}
