//! The active keys in a file, to go on where another process stopped.
//!
//! # Format, version 1
//! Little-endian words of eight bytes:
//!
//! | words | what |
//! |---|---|
//! | 1 | `tollgate` as bytes |
//! | 1 | the version |
//! | 1 | the seed of the hash: the file is secret |
//! | 4 | the fingerprints of four fixed keys: another hash is another build |
//! | 1 | wall time, nanoseconds since 1970 |
//! | 1 | how many keys |
//! | 2 a key | its fingerprint; time until it is idle in 1/64 ns, with the top bit if it is blocked |
//! | 1 | FNV-1a of all bytes before |

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::LimitError;

use super::hasher::KeyHasher;
use super::shard::Need;
use super::word::{KeyWord, units};
use super::{KeyedBuilder, KeyedLimiter};
use crate::clock::{Clock, Monotonic};

const MAGIC: u64 = u64::from_le_bytes(*b"tollgate");
const VERSION: u64 = 1;
/// Words before the keys.
const HEADER: usize = 9;
const WORD: usize = size_of::<u64>();

/// Why a snapshot was not written, or nothing was restored from it.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file can't be written or read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a snapshot.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a later version of the format.
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
    /// The file was cut short, or went on.
    Length {
        /// The file.
        path: PathBuf,
        /// The bytes that it has.
        bytes: u64,
        /// The bytes that it should have.
        expected: u64,
    },
    /// The checksum does not fit the contents.
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// The build that wrote the file hashes keys in another way.
    OtherBuild {
        /// The file.
        path: PathBuf,
    },
    /// The file holds more active keys than find a slot.
    TooManyKeys {
        /// The file.
        path: PathBuf,
        /// The keys in it that are still active.
        keys: u64,
        /// The capacity of the limiter that was to be built.
        capacity: usize,
    },
    /// The rate of the limiter that was to be built can't be represented.
    Limit(LimitError),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "snapshot {}: {source}", path.display()),
            Self::Foreign { path } => {
                write!(f, "{} is not a snapshot of a limiter", path.display())
            }
            Self::Newer { path, version } => write!(
                f,
                "snapshot {} has version {version}, but this build reads versions up to {VERSION}",
                path.display()
            ),
            Self::Length {
                path,
                bytes,
                expected,
            } => write!(
                f,
                "snapshot {} has {bytes} bytes instead of {expected}: it was cut short or changed",
                path.display()
            ),
            Self::Corrupt { path } => write!(
                f,
                "snapshot {} is corrupt: its checksum doesn't fit",
                path.display()
            ),
            Self::OtherBuild { path } => write!(
                f,
                "snapshot {} was written by a build that hashes keys in another way",
                path.display()
            ),
            Self::TooManyKeys {
                path,
                keys,
                capacity,
            } => write!(
                f,
                "snapshot {} holds {keys} active keys, too many for a capacity of {capacity}",
                path.display()
            ),
            Self::Limit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Limit(error) => error.source(),
            _ => None,
        }
    }
}

impl<C: Clock> KeyedLimiter<C> {
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
    /// assert_eq!(restored.peek("user:42").remaining, 2);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tollgate::SnapshotError>(())
    /// ```
    pub fn snapshot(&self, path: &Path) -> Result<u64, SnapshotError> {
        let mut words = vec![MAGIC, VERSION, self.hasher.seed()];
        words.extend(probes(&self.hasher));
        words.extend([wall_nanos(), 0]);
        let now = self.table.since_anchor(self.clock.now());
        for shard in self.table.shards() {
            shard.for_each_active(now, |fingerprint, word| {
                words.extend([fingerprint, word.earlier(units(now)).0]);
            });
        }
        let keys = (words.len() - HEADER) as u64 / 2;
        words[HEADER - 1] = keys;
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(checksum(&bytes).to_le_bytes());
        match replace(path, &bytes) {
            Ok(()) => Ok(keys),
            Err(source) => Err(SnapshotError::Io {
                path: path.to_owned(),
                source,
            }),
        }
    }
}

impl KeyedBuilder {
    /// Builds it on the default clock with the keys of a file that [`KeyedLimiter::snapshot`] wrote,
    /// as they are after the time that has passed since by the wall clock. A wall clock that went
    /// back counts as no time passed.
    ///
    /// # Errors
    /// If the file can't be read, is no intact snapshot of this format and build, or holds more
    /// active keys than find a slot; or if GCRA can't represent the rate.
    pub fn restore(self, path: &Path) -> Result<KeyedLimiter, SnapshotError> {
        self.clock(Monotonic::new()).restore(path)
    }
}

impl<C: Clock> KeyedBuilder<C> {
    /// Builds it with the keys of a file that [`KeyedLimiter::snapshot`] wrote, as they are after
    /// the time that has passed since by the wall clock. A wall clock that went back counts as no
    /// time passed.
    ///
    /// # Errors
    /// If the file can't be read, is no intact snapshot of this format and build, or holds more
    /// active keys than find a slot; or if GCRA can't represent the rate.
    pub fn restore(self, path: &Path) -> Result<KeyedLimiter<C>, SnapshotError> {
        let contents = Contents::read(path)?;
        let elapsed = wall_nanos().saturating_sub(contents.wall_nanos);
        let elapsed = elapsed.saturating_mul(64);
        let limiter = self.seed(contents.seed).build();
        let limiter = limiter.map_err(SnapshotError::Limit)?;
        let now = limiter.table.since_anchor(limiter.clock.now());
        let still_active = |word: &KeyWord| word.idle_at() > elapsed;
        let all_fit = contents.keys.iter().all(|&(fingerprint, word)| {
            let need = if word.is_blocked() {
                Need::Block
            } else {
                Need::Idle
            };
            let word = word.earlier(elapsed).later(units(now));
            let shard = limiter.table.shard(fingerprint);
            word.idle_at() <= units(now) || shard.set(fingerprint, now, need, |_| word)
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
    /// Words count from the time of the snapshot.
    keys: Vec<(u64, KeyWord)>,
}

impl Contents {
    fn read(path: &Path) -> Result<Self, SnapshotError> {
        let owned = || path.to_owned();
        let bytes = fs::read(path).map_err(|source| SnapshotError::Io {
            path: owned(),
            source,
        })?;
        let (chunks, _) = bytes.as_chunks::<WORD>();
        let words: Vec<u64> = chunks
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        if words.first() != Some(&MAGIC) || words.get(1) == Some(&0) {
            return Err(SnapshotError::Foreign { path: owned() });
        }
        if let Some(&version) = words.get(1)
            && version > VERSION
        {
            let path = owned();
            return Err(SnapshotError::Newer { path, version });
        }
        let expected = match words.get(HEADER - 1) {
            Some(keys) => keys.saturating_mul(2).saturating_add(HEADER as u64 + 1),
            None => HEADER as u64 + 1,
        };
        let expected = expected.saturating_mul(WORD as u64);
        if bytes.len() as u64 != expected {
            return Err(SnapshotError::Length {
                path: owned(),
                bytes: bytes.len() as u64,
                expected,
            });
        }
        let (body, sum) = words.split_at(words.len() - 1);
        if sum != [checksum(&bytes[..bytes.len() - WORD])] {
            return Err(SnapshotError::Corrupt { path: owned() });
        }
        let (header, keys) = body.split_at(HEADER);
        if header[3..7] != probes(&KeyHasher::with_seed(header[2])) {
            return Err(SnapshotError::OtherBuild { path: owned() });
        }
        let (pairs, _) = keys.as_chunks::<2>();
        Ok(Self {
            seed: header[2],
            wall_nanos: header[7],
            keys: pairs
                .iter()
                .map(|&[key, word]| (key, KeyWord(word)))
                .collect(),
        })
    }
}

impl KeyWord {
    /// The same at a time that is counted from later on: nothing is left below zero.
    fn earlier(self, by: u64) -> Self {
        self.with_idle_at(self.idle_at().saturating_sub(by))
    }

    /// The same at a time that is counted from earlier on.
    fn later(self, by: u64) -> Self {
        self.with_idle_at(self.idle_at().saturating_add(by))
    }

    fn with_idle_at(self, idle_at: u64) -> Self {
        if self.is_blocked() {
            Self::blocked_until(idle_at)
        } else {
            // Below the flag.
            Self(idle_at.min(Self::blocked_until(u64::MAX).idle_at()))
        }
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

#[expect(
    clippy::disallowed_methods,
    reason = "no monotonic clock tells how long no process ran"
)]
fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// FNV-1a: tells a damaged file, not a forged one.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Writes a file beside `path` that only its owner can read, and puts it in its place.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?
        .to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    // One that was left behind may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_private(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file: File = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
