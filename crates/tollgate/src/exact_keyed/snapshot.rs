//! The active keys in a file, to go on where another process stopped.
//!
//! # Format, version 1
//! Little-endian words of eight bytes:
//!
//! | words | what |
//! |---|---|
//! | 1 | `tollkeys` as bytes |
//! | 1 | the version |
//! | 1 | how many words the file has |
//! | 1 | the algorithm's number |
//! | 2 | where windows begin: 0 and a boundary, or 1 and nothing for the first hit |
//! | 1 | wall time, nanoseconds since 1970 |
//! | 1 | the time that states are as of, in nanoseconds |
//! | 2 | how many rates, and how many keys |
//! | 5 a rate | 0 for none, 1 for zero, 2 for a finite one; count, seconds, nanoseconds, burst |
//! | … a key | twice its rate's number, plus one at a tier; blocked until; latest booking; bytes of the key, the key filled up with zeros; its state |
//! | 1 | FNV-1a of all bytes before |

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Align, Ledger, Rate, Timestamp};

use super::entry::Origin;
use super::kept::Kept;
use super::shard::{New, NotRestored};
use super::table::{Table, Timeline};
use super::tables::{Tables, each};
use super::{Builder, ExactKeyedLimiter};
use crate::Algorithm;
use crate::clock::{Clock, Monotonic};
use crate::keyed::hasher::KeyHasher;
use crate::snapshot::{self, SnapshotError, WORD, wall_nanos};

const MAGIC: u64 = u64::from_le_bytes(*b"tollkeys");
const VERSION: u64 = 1;
/// Where the number of words stands.
const LENGTH: usize = 2;
/// Words before the rates.
const HEADER: usize = 10;

impl<K, C: Clock> ExactKeyedLimiter<K, C> {
    /// Writes the keys that are active now to a file, and how many they are; a file that was there
    /// is replaced as a whole, or stays. It is readable by its owner alone.
    ///
    /// `encode` appends a key's bytes, and must not call this limiter. Shards are copied one after
    /// the other, so checks go on meanwhile, and a key that is charged meanwhile may be in it as
    /// before or after.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if the file can't be written.
    ///
    /// ```
    /// use tollgate::{ExactKeyedLimiter, Rate};
    ///
    /// let path = std::env::temp_dir().join(format!("tollgate-exact-doc-{}", std::process::id()));
    /// let limiter = ExactKeyedLimiter::<String>::new(Rate::per_hour(10), 1_000);
    /// limiter.check_n("user:42", 8);
    /// limiter.snapshot(&path, |key, bytes| bytes.extend(key.as_bytes()))?;
    ///
    /// let restored = ExactKeyedLimiter::builder(Rate::per_hour(10), 1_000)
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
        let now = self.clock.now();
        let (words, keys) = each!(&self.tables, table => written(table, now, encode));
        let bytes = words.into_iter().flat_map(u64::to_le_bytes).collect();
        snapshot::write(path.as_ref(), bytes)?;
        Ok(keys)
    }
}

impl<K: Hash + Eq> Builder<K> {
    /// Builds it on the default clock with the keys of a file that [`ExactKeyedLimiter::snapshot`]
    /// wrote; else as on a clock that was given.
    ///
    /// # Errors
    /// As on a clock that was given.
    pub fn restore(
        self,
        path: impl AsRef<Path>,
        decode: impl FnMut(&[u8]) -> Option<K>,
    ) -> Result<ExactKeyedLimiter<K>, SnapshotError> {
        self.clock(Monotonic::new()).restore(path, decode)
    }
}

impl<K: Hash + Eq, C: Clock> Builder<K, C> {
    /// Builds it with the keys of a file that [`ExactKeyedLimiter::snapshot`] wrote, as they are
    /// after the time that has passed since by the wall clock. A wall clock that went back counts as
    /// no time passed. `decode` makes a key of the bytes that it was encoded as.
    ///
    /// What keys have spent carries over to the rate of this builder; those at a tier stay at it
    /// until they are asked for at another. Windows that begin at boundaries go on in the one that is
    /// open by the new clock, and never admit more than they would have.
    ///
    /// # Errors
    /// If the file can't be read, is no intact snapshot of this format and algorithm, holds a key
    /// that `decode` doesn't know or knows twice, or more active keys than find a slot; or if the
    /// algorithm can't represent the rate.
    pub fn restore(
        self,
        path: impl AsRef<Path>,
        mut decode: impl FnMut(&[u8]) -> Option<K>,
    ) -> Result<ExactKeyedLimiter<K, C>, SnapshotError> {
        let path = path.as_ref();
        let contents = Contents::read(path)?;
        let now = self.clock.now();
        let (algorithm, capacity) = (self.algorithm, self.capacity);
        let aligned = matches!(algorithm, Algorithm::FixedWindow(Align::Boundary(_)));
        let free = matches!(algorithm, Algorithm::FixedWindow(_) | Algorithm::SlidingLog);
        let limiter = self.build_with(|algorithm, rate, plan| {
            if free && !aligned {
                // Hits lie in the past, perhaps before the new clock's origin, and nothing ties them
                // to it: states go on as of the file.
                let timeline = Timeline {
                    anchor: now,
                    start: contents.now,
                    last: Timestamp::MAX,
                };
                Tables::on(algorithm, rate, plan, Some(timeline))
            } else {
                Tables::new(algorithm, rate, plan, now)
            }
        });
        let limiter = limiter.map_err(SnapshotError::Limit)?;
        let (tables, hasher) = (&limiter.tables, &limiter.hasher);
        let loaded = each!(tables, table => load(table, now, &contents, hasher, &mut decode));
        let path = || path.to_owned();
        match loaded {
            Ok(()) => Ok(limiter),
            Err(Unloaded::OtherAlgorithm) => Err(SnapshotError::OtherAlgorithm { path: path() }),
            Err(Unloaded::Corrupt) => Err(SnapshotError::Corrupt { path: path() }),
            Err(Unloaded::Key) => Err(SnapshotError::Key { path: path() }),
            Err(Unloaded::TooMany(keys)) => Err(SnapshotError::TooManyKeys {
                path: path(),
                keys,
                capacity,
            }),
        }
    }
}

/// A table's active keys as words, all but the checksum, and how many they are.
fn written<K, A: Kept>(
    table: &Table<K, A>,
    now: Timestamp,
    mut encode: impl FnMut(&K, &mut Vec<u8>),
) -> (Vec<u64>, u64) {
    let (mut rates, mut rate_words) = (HashMap::new(), Vec::new());
    let (mut keys, mut key_words) = (0, Vec::new());
    let mut bytes = Vec::new();
    let local = table.local_time(now);
    table.for_each(now, |entry, limit, _, until| {
        let next = rates.len() as u64;
        let rate = *rates.entry(limit.rate()).or_insert_with(|| {
            rate_words.extend(words_of(limit.rate()));
            next
        });
        bytes.clear();
        encode(&entry.key, &mut bytes);
        let (state, floor) = entry.ledger.parts();
        key_words.extend([
            rate * 2 + u64::from(entry.tier.is_some()),
            until.as_nanos(),
            floor.as_nanos(),
            bytes.len() as u64,
        ]);
        bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        let (chunks, _) = bytes.as_chunks::<WORD>();
        key_words.extend(chunks.iter().map(|word| u64::from_le_bytes(*word)));
        A::write(state, &mut key_words);
        keys += 1;
    });
    let (kind, boundary) = match table.limit().boundaries() {
        Align::Boundary(boundary) => (0, boundary.as_nanos()),
        Align::FirstHit => (1, 0),
    };
    let mut words = vec![MAGIC, VERSION, 0, A::NUMBER, kind, boundary, wall_nanos()];
    words.push(local.as_nanos());
    words.extend([rates.len() as u64, keys]);
    words.extend(rate_words);
    words.extend(key_words);
    words[LENGTH] = words.len() as u64 + 1;
    if table.local_time(now) != local {
        // What times count from has moved meanwhile, which comes once in years.
        return written(table, now, encode);
    }
    (words, keys)
}

fn words_of(rate: Rate) -> [u64; 5] {
    let period = rate.period().unwrap_or_default();
    let kind = match rate {
        rate if rate.is_unlimited() => 0,
        rate if rate.is_zero() => 1,
        _ => 2,
    };
    let nanos = u64::from(period.subsec_nanos());
    [
        kind,
        rate.count(),
        period.as_secs(),
        nanos,
        rate.burst_size(),
    ]
}

fn rate_of(words: [u64; 5]) -> Option<Rate> {
    let [kind, count, secs, nanos, burst] = words;
    let nanos = u32::try_from(nanos).ok().filter(|n| *n < 1_000_000_000)?;
    match kind {
        0 => Some(Rate::unlimited().burst(burst)),
        1 => Some(Rate::zero().burst(burst)),
        2 => Some(Rate::new(count, Duration::new(secs, nanos)).burst(burst)),
        _ => None,
    }
}

/// A snapshot that is intact and of this format.
struct Contents {
    algorithm: u64,
    align: Align,
    /// What the clock of its states would show now.
    now: Timestamp,
    rates: u64,
    keys: u64,
    /// The rates and keys.
    words: Vec<u64>,
}

/// Why a table can't take the keys of an intact file.
enum Unloaded {
    OtherAlgorithm,
    Corrupt,
    Key,
    TooMany(u64),
}

impl Contents {
    fn read(path: &Path) -> Result<Self, SnapshotError> {
        let shortest = HEADER as u64 + 1;
        let mut words = snapshot::read(path, [MAGIC, VERSION], |header: &[u64; HEADER]| {
            header[LENGTH].max(shortest)
        })?;
        let rest = words.split_off(HEADER);
        let header: [u64; HEADER] = match words.try_into() {
            Ok(header) => header,
            Err(_) => {
                let path = path.to_owned();
                return Err(SnapshotError::Corrupt { path });
            }
        };
        let [_, _, _, algorithm, kind, boundary, wall, time, rates, keys] = header;
        let elapsed = wall_nanos().saturating_sub(wall);
        Ok(Self {
            algorithm,
            align: match kind {
                0 => Align::Boundary(Timestamp::from_nanos(boundary)),
                _ => Align::FirstHit,
            },
            now: Timestamp::from_nanos(time).plus_nanos(elapsed),
            rates,
            keys,
            words: rest,
        })
    }
}

/// Stores what is still active of a file's keys.
fn load<K: Hash + Eq, A: Kept>(
    table: &Table<K, A>,
    now: Timestamp,
    contents: &Contents,
    hasher: &KeyHasher,
    decode: &mut impl FnMut(&[u8]) -> Option<K>,
) -> Result<(), Unloaded> {
    if contents.algorithm != A::NUMBER {
        return Err(Unloaded::OtherAlgorithm);
    }
    let (own, to) = (table.limit(), table.local_time(now));
    let mut words = contents.words.iter().copied();
    let mut limits = Vec::new();
    for _ in 0..contents.rates {
        let limit = next(&mut words)
            .and_then(rate_of)
            .and_then(|rate| A::new(rate).ok())
            .ok_or(Unloaded::Corrupt)?;
        limits.push(Arc::new(limit.aligned(contents.align)));
    }
    let mut active = Vec::new();
    for _ in 0..contents.keys {
        let [rate, until, floor, length] = next(&mut words).ok_or(Unloaded::Corrupt)?;
        let bytes = bytes(&mut words, length).ok_or(Unloaded::Corrupt)?;
        let state = A::read(&mut words).ok_or(Unloaded::Corrupt)?;
        let number = usize::try_from(rate / 2).unwrap_or(usize::MAX);
        let old = limits.get(number).ok_or(Unloaded::Corrupt)?;
        let mut ledger = Ledger::<A>::from_parts(state, Timestamp::from_nanos(floor));
        ledger.shift(old, contents.now, to);
        let tier = (rate % 2 == 1).then(|| Arc::clone(old));
        if tier.is_none() && **old != own {
            ledger.keep_spent(old, &own, to);
        }
        let until = Timestamp::from_nanos(until);
        let blocked_until = if until > contents.now {
            until.shifted(contents.now, to)
        } else {
            Timestamp::ZERO
        };
        let limit = tier.as_deref().unwrap_or(&own);
        if limit.idle_at(ledger.state()).max(blocked_until) <= to {
            continue;
        }
        let key = decode(&bytes).ok_or(Unloaded::Key)?;
        active.push(New {
            hash: hasher.fingerprint(&key),
            key,
            ledger,
            tier,
            // The first call says which limit it is under.
            origin: Origin::Given,
            blocked_until,
        });
    }
    if words.next().is_some() {
        return Err(Unloaded::Corrupt);
    }
    let keys = active.len() as u64;
    for new in active {
        table.restore(new, now).map_err(|error| match error {
            NotRestored::Twice => Unloaded::Key,
            NotRestored::Full => Unloaded::TooMany(keys),
        })?;
    }
    Ok(())
}

/// The next words, if there are as many.
fn next<const N: usize>(words: &mut impl Iterator<Item = u64>) -> Option<[u64; N]> {
    let mut next = [0; N];
    for word in &mut next {
        *word = words.next()?;
    }
    Some(next)
}

/// The next bytes, which fill up their last word with zeros.
fn bytes(words: &mut impl Iterator<Item = u64>, length: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < length {
        bytes.extend(words.next()?.to_le_bytes());
    }
    bytes.truncate(usize::try_from(length).ok()?);
    Some(bytes)
}
