//! The active keys in a file, to go on where another process stopped.
//!
//! # Format, version 2
//! Little-endian words of eight bytes:
//!
//! | words | what |
//! |---|---|
//! | 1 | `tollgate` as bytes |
//! | 1 | the version |
//! | 1 | the seed of the hash: the file is secret |
//! | 4 | the fingerprints of four fixed keys: another hash is another build |
//! | 1 | wall time, nanoseconds since 1970 |
//! | 2 | how many intervals between tokens, and how many keys |
//! | 2 an interval | its tag as in `intervals.rs`, and the interval in 1/64 ns |
//! | 2 a key | its fingerprint with the tag of its interval; its word as in `word.rs`, with times from the one above |
//! | 1 | FNV-1a of all bytes before |

use std::path::Path;

use tollgate_core::{Pace, units};

use super::hasher::KeyHasher;
use super::intervals::{Intervals, Tag};
use super::shard::Need;
use super::slot::ChargeRequest;
use super::word::KeyWord;
use super::{Builder, KeyedLimiter};
use crate::clock::{Clock, Monotonic};
use crate::limiter::DefaultClock;
use crate::snapshot::{self, SnapshotError, wall_nanos};

const MAGIC: u64 = u64::from_le_bytes(*b"tollgate");
/// The one before knew no intervals.
const VERSION: u64 = 2;
/// Words before the intervals.
const HEADER: usize = 10;

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// Writes the keys that are active now to a file, and how many they are; a file that was there
    /// is replaced as a whole, or stays.
    ///
    /// The file holds the hash seed, with which keys that share a limit can be made: it is readable
    /// by its owner alone, and should stay so. Shards are copied one after the other, so checks go
    /// on meanwhile, and a key that is charged meanwhile may be in it as before or after.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if the file can't be written.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate};
    ///
    /// let path = std::env::temp_dir().join(format!("tollgate-doc-{}", std::process::id()));
    /// let limiter = KeyedLimiter::new(Rate::per_hour(10), 1_000);
    /// limiter.check_n("user:42", 8);
    /// assert_eq!(limiter.snapshot(&path)?, 1);
    ///
    /// let restored = KeyedLimiter::builder(Rate::per_hour(10), 1_000).restore(&path)?;
    /// assert_eq!(restored.key("user:42").peek().remaining, 2);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tollgate::keyed::SnapshotError>(())
    /// ```
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<u64, SnapshotError> {
        let path = path.as_ref();
        let mut words = vec![MAGIC, VERSION, self.hasher.seed()];
        words.extend(probes(&self.hasher));
        // The limiter's clock first: time that passes in between counts as not passed, and grants nothing.
        let now = self.table.since_anchor(self.clock.now());
        words.extend([wall_nanos(), 0, 0]);
        for shard in self.table.shards() {
            shard.for_each_active(self.table.anchor(), now, |fingerprint, word, now| {
                words.extend([fingerprint, word.moved(units::of(now)).0]);
            });
        }
        let keys = (words.len() - HEADER) as u64 / 2;
        // Read after the keys, so that it has the interval of each.
        let known = self.table.intervals().known();
        let known: Vec<u64> = known.flat_map(|(tag, interval)| [tag, interval]).collect();
        words[HEADER - 2] = known.len() as u64 / 2;
        words[HEADER - 1] = keys;
        words.splice(HEADER..HEADER, known);
        let bytes = words.into_iter().flat_map(u64::to_le_bytes).collect();
        snapshot::write(path, bytes)?;
        Ok(keys)
    }
}

impl<T> Builder<DefaultClock, T> {
    /// Builds it on the default clock with the keys of a file that [`KeyedLimiter::snapshot`] wrote,
    /// as they are after the time that has passed since by the wall clock. A wall clock that went
    /// back counts as no time passed.
    ///
    /// # Errors
    /// If the file can't be read, is no intact snapshot of this format and build, or holds more
    /// active keys than find a slot; or if GCRA can't represent the rate.
    pub fn restore(
        self,
        path: impl AsRef<Path>,
    ) -> Result<KeyedLimiter<Monotonic, T>, SnapshotError> {
        self.clock(Monotonic::new()).restore(path)
    }
}

impl<C: Clock, T> Builder<C, T> {
    /// Builds it with the keys of a file that [`KeyedLimiter::snapshot`] wrote, as they are after
    /// the time that has passed since by the wall clock. A wall clock that went back counts as no
    /// time passed.
    ///
    /// # Errors
    /// If the file can't be read, is no intact snapshot of this format and build, or holds more
    /// active keys than find a slot; or if GCRA can't represent the rate.
    pub fn restore(self, path: impl AsRef<Path>) -> Result<KeyedLimiter<C, T>, SnapshotError> {
        let path = path.as_ref();
        let contents = Contents::read(path)?;
        let elapsed = wall_nanos().saturating_sub(contents.wall_nanos);
        let elapsed = units::from_nanos(elapsed);
        let limiter = self.adopting(contents.seed, contents.intervals).build();
        let limiter = limiter.map_err(SnapshotError::Limit)?;
        let moment = limiter.table.since_anchor(limiter.clock.now());
        let now = moment.now;
        let still_active = |word: &KeyWord| word.idle_at() > elapsed;
        let all_fit = contents.keys.iter().all(|&(fingerprint, word)| {
            let need = if word.is_blocked() {
                Need::Block
            } else {
                Need::Idle
            };
            let word = word.moved(elapsed).later(units::of(now));
            let shard = limiter.table.shard(fingerprint);
            // Whichever its interval is: nobody else is there yet.
            let ask = ChargeRequest {
                fingerprint,
                tag: Tag::NONE,
                pace: Pace::UNLIMITED,
                moment,
                anchor: limiter.table.anchor(),
                cost: 0,
                patience: 0,
            };
            word.idle_at() <= units::of(now) || shard.set(&ask, need, |_, _| word)
        });
        if all_fit {
            return Ok(limiter);
        }
        let active = contents.keys.iter().filter(|(_, word)| still_active(word));
        Err(SnapshotError::TooManyKeys {
            path: path.to_owned(),
            keys: active.count() as u64,
            capacity: limiter.capacity,
        })
    }
}

/// A snapshot that is intact and of this format and build.
struct Contents {
    seed: u64,
    wall_nanos: u64,
    intervals: Intervals,
    /// Words count from the time of the snapshot.
    keys: Vec<(u64, KeyWord)>,
}

impl Contents {
    fn read(path: &Path) -> Result<Self, SnapshotError> {
        let words = snapshot::read(path, [MAGIC, VERSION], |header: &[u64; HEADER]| {
            let pairs = header[HEADER - 2].saturating_add(header[HEADER - 1]);
            pairs.saturating_mul(2).saturating_add(HEADER as u64 + 1)
        })?;
        let (header, rest) = words.split_at(HEADER);
        if header[3..7] != probes(&KeyHasher::with_seed(header[2])) {
            let path = path.to_owned();
            return Err(SnapshotError::OtherBuild { path });
        }
        let (pairs, _) = rest.as_chunks::<2>();
        // The length was right, so both fit.
        let known = usize::try_from(header[HEADER - 2]).unwrap_or(0);
        let (known, keys) = pairs.split_at(known.min(pairs.len()));
        let mut intervals = Intervals::new();
        for &[tag, interval] in known {
            if !intervals.restore(Tag::from_bits(tag), interval) {
                let path = path.to_owned();
                return Err(SnapshotError::OtherBuild { path });
            }
        }
        Ok(Self {
            seed: header[2],
            wall_nanos: header[7],
            intervals,
            keys: keys
                .iter()
                .map(|&[key, word]| (key, KeyWord(word)))
                .collect(),
        })
    }
}

impl KeyWord {
    /// The same at a time that is counted from earlier on.
    fn later(self, by: u64) -> Self {
        self.with_times(|time| time.saturating_add(by))
    }
}

/// What this build makes of four kinds of keys.
fn probes(hasher: &KeyHasher) -> [u64; 4] {
    [
        hasher.fingerprint("tollgate"),
        hasher.fingerprint(&0x0123_4567_89AB_CDEFu64),
        hasher.fingerprint(&[1u8, 2, 3][..]),
        hasher.fingerprint(&("a tenant and a route that are longer than a line", 7u32)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_goes_to_another_clock_with_its_block_and_what_is_owed_after_it() {
        const SECOND: u64 = units::from_nanos(1_000_000_000);
        let block = KeyWord::blocked(10 * SECOND, 100 * SECOND);
        let owed = block.idle_at() - block.until();
        assert!(owed >= 90 * SECOND);
        let restored = block.moved(4 * SECOND).later(1_000 * SECOND);
        assert_eq!(restored.until(), 1_006 * SECOND);
        assert_eq!(restored.idle_at(), 1_006 * SECOND + owed);
        // After the block only what is owed is left, and then nothing.
        let over = block.moved(30 * SECOND);
        assert_eq!(over, KeyWord(block.idle_at() - 30 * SECOND));
        assert_eq!(block.moved(1_000 * SECOND), KeyWord::NEW);
        let tat = KeyWord(5 * SECOND);
        assert_eq!(tat.moved(SECOND).later(2 * SECOND), KeyWord(6 * SECOND));
        assert_eq!(KeyWord(KeyWord::LAST).later(SECOND), KeyWord(KeyWord::LAST));
    }
}
