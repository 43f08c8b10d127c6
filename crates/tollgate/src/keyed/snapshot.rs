//! The active keys in a file, so that another process can continue with them.
//!
//! # Format of a section, version 3
//! | words | what |
//! |---|---|
//! | 1 | the version |
//! | 1 | the seed of the hash: the file is secret |
//! | 4 | the fingerprints of four fixed keys: another hash is another build |
//! | 1 | wall time, nanoseconds since 1970 |
//! | 2 a key | its fingerprint with the tag of its interval; its word as in `slot.rs`, with times from the one above |
//! | 1 | 0, which no key has |
//! | 1 | the number of keys |
//! | 1 · 2 an interval | the number of intervals; of each the tag as in `rate_cell.rs`, and the interval in 1/64 ns |
//! | 1 · 2 a bucket | the number of buckets that keys without a slot share; of each the tag and the word |
//!
//! A snapshot of one limiter holds one section. Intervals follow the keys, so that every tag has one, including the
//! tags of keys that were charged during the copy.

use std::path::Path;

use tollgate_core::{GcraParams, units};

use super::anchor::TableTime;
use super::rate_cell::IntervalTag;
use super::shard::SlotNeed;
use super::slot::{ChargeRequest, KeyWord};
use super::table::Table;
use super::{Builder, KeyedLimiter};
use crate::clock::{Clock, ClockChoice};
use crate::key_table::hasher::KeyHasher;
use crate::snapshot::{LoadCounts, SnapshotError, SnapshotReader, SnapshotTimes, SnapshotWriter};
use crate::sync::Ordering;

const KIND: &[u8; 8] = b"tollgate";
/// Version 1 had no intervals, version 2 no shared buckets.
const VERSION: u64 = 3;

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// Writes the active keys to a file, and returns their number. It replaces an existing file as a whole, or leaves
    /// it unchanged.
    ///
    /// The file holds the hash seed, from which keys that share a limit can be constructed. Only its owner can read it,
    /// and it should stay so. Shards are copied one after the other. Checks continue meanwhile, so the file may hold a
    /// key as it was before or after such a check.
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
        SnapshotWriter::write(path, KIND, VERSION, |file| {
            self.save(file, SnapshotTimes::of(self.clock.now()))
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
    ) -> Result<u64, SnapshotError> {
        file.words(&[VERSION, self.hasher.seed()])?;
        file.words(&hash_probes(&self.hasher))?;
        file.word(times.wall.as_nanos())?;
        let (now, anchor) = (self.table.table_time(times.now), self.table.anchor());
        let (mut keys, mut words) = (0, Vec::new());
        for shard in self.table.shards() {
            shard.for_each_active(anchor, now, |fingerprint, word, now| {
                words.extend([fingerprint, word.moved(units::from_time(now)).0]);
            });
            keys += words.len() as u64 / 2;
            file.words(&words)?;
            words.clear();
        }
        file.words(&[0, keys])?;
        for (tag, interval) in self.table.intervals().known_intervals() {
            words.extend([tag, interval]);
        }
        file.word(words.len() as u64 / 2)?;
        file.words(&words)?;
        words.clear();
        if let Some(shard) = self.table.shards().next() {
            shard.for_each_shared(anchor, now, |tag, word, now| {
                words.extend([tag, word.moved(units::from_time(now)).0]);
            });
        }
        file.word(words.len() as u64 / 2)?;
        file.words(&words)?;
        Ok(keys)
    }
}

impl<C: ClockChoice, T> Builder<C, T> {
    /// Builds the limiter with the keys of a file that [`KeyedLimiter::snapshot`] wrote, after the time that has passed
    /// since by the wall clock. If the wall clock went back, no time has passed.
    ///
    /// # Errors
    /// If the file can't be read, is no intact snapshot of this format and build, or holds more active keys than the
    /// table has slots for; or if GCRA can't represent the rate.
    pub fn restore(
        self,
        path: impl AsRef<Path>,
    ) -> Result<KeyedLimiter<C::Clock, T>, SnapshotError> {
        let builder = self.resolve_clock();
        let capacity = builder.settings.capacity;
        SnapshotReader::read(path, KIND, VERSION, capacity, |file| {
            let times = SnapshotTimes::of(builder.clock.now());
            builder.load(file, times)
        })
    }
}

impl<C: Clock, T> Builder<C, T> {
    /// Builds the limiter with the keys of a section that [`KeyedLimiter::save`] wrote, at these times. It works as
    /// [`restore`](Self::restore), but a key that finds no slot is counted, and is no error.
    ///
    /// # Errors
    /// If the file can't be read, or the section isn't of this format and build; or if GCRA can't represent the rate.
    ///
    /// [`SnapshotWriter`] has an example.
    pub fn load(
        self,
        file: &mut SnapshotReader,
        times: SnapshotTimes,
    ) -> Result<(KeyedLimiter<C, T>, LoadCounts), SnapshotError> {
        file.expect_version(VERSION)?;
        let [seed, own @ .., wall] = file.words::<6>()?;
        if own != hash_probes(&KeyHasher::with_seed(seed)) {
            return Err(file.different_hash_error());
        }
        let elapsed = units::from_nanos(times.nanos_since(wall));
        let table = self.table(times.now);
        let moment = table.table_time(times.now);
        let loaded = load_keys(&table, file, moment, elapsed)?;
        let intervals = table.intervals();
        for _ in 0..file.word()? {
            let [tag, interval] = file.words()?;
            if !intervals.restore(IntervalTag::from_bits(tag), interval) {
                return Err(file.different_hash_error());
            }
        }
        for _ in 0..file.word()? {
            let [tag, word] = file.words()?;
            let word = KeyWord(word).rebased_to(moment, elapsed);
            let shared = intervals.shared(IntervalTag::from_bits(tag));
            shared.store(word.0, Ordering::Relaxed);
        }
        let limiter = self.with_seed(seed).build_on(table);
        Ok((limiter.map_err(SnapshotError::Limit)?, loaded))
    }
}

/// Stores the keys of a section that are still active. The intervals follow the keys in the file, so the lookup uses
/// each fingerprint as the section has it, with its tag.
fn load_keys(
    table: &Table,
    file: &mut SnapshotReader,
    moment: TableTime,
    elapsed: u64,
) -> Result<LoadCounts, SnapshotError> {
    let mut loaded = LoadCounts::default();
    let mut keys = 0;
    loop {
        let fingerprint = file.word()?;
        if fingerprint == 0 {
            break;
        }
        keys += 1;
        let word = KeyWord(file.word()?);
        let need = if word.is_blocked() {
            SlotNeed::ForBlock
        } else {
            SlotNeed::IdleOnly
        };
        let word = word.rebased_to(moment, elapsed);
        if word.idle_at() <= units::from_time(moment.now) {
            continue;
        }
        // No rate: the word is stored whatever its interval. No other thread uses the table yet.
        let ask = ChargeRequest {
            fingerprint,
            tag: IntervalTag::NONE,
            pace: GcraParams::UNLIMITED,
            time: moment,
            anchor: table.anchor(),
            cost: 0,
            patience: 0,
        };
        if table.shard(fingerprint).set_word(&ask, need, |_, _| word) {
            loaded.keys += 1;
        } else {
            loaded.skipped += 1;
        }
    }
    match file.word()? {
        written if written == keys => Ok(loaded),
        _ => Err(file.corrupt_error()),
    }
}

impl KeyWord {
    /// A word of a section counted as in a table at this moment, `elapsed` units after the section was written.
    fn rebased_to(self, moment: TableTime, elapsed: u64) -> Self {
        self.moved(elapsed).shifted_by(units::from_time(moment.now))
    }

    /// The same word counted from a time that is earlier by these units.
    fn shifted_by(self, by: u64) -> Self {
        self.with_times(|time| time.saturating_add(by))
    }
}

/// The hashes of four kinds of keys in this build.
fn hash_probes(hasher: &KeyHasher) -> [u64; 4] {
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
        let restored = block.moved(4 * SECOND).shifted_by(1_000 * SECOND);
        assert_eq!(restored.until(), 1_006 * SECOND);
        assert_eq!(restored.idle_at(), 1_006 * SECOND + owed);
        // After the block only the debt remains, and then nothing.
        let over = block.moved(30 * SECOND);
        assert_eq!(over, KeyWord(block.idle_at() - 30 * SECOND));
        assert_eq!(block.moved(1_000 * SECOND), KeyWord::NEW);
        let tat = KeyWord(5 * SECOND);
        assert_eq!(
            tat.moved(SECOND).shifted_by(2 * SECOND),
            KeyWord(6 * SECOND)
        );
        assert_eq!(
            KeyWord(KeyWord::LAST).shifted_by(SECOND),
            KeyWord(KeyWord::LAST)
        );
    }
}
