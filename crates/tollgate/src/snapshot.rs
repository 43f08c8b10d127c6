//! Files that active keys are kept in, to go on where another process stopped: what all kinds of them share.
//!
//! [`KeyedLimiter::snapshot`](crate::KeyedLimiter::snapshot) and
//! [`ExactKeyedLimiter::snapshot`](crate::ExactKeyedLimiter::snapshot) write a file each. Whoever has several tables
//! that belong together writes them to one file, so that they are of one moment: each table is a section of a
//! [`SnapshotWriter`], by its `save`, and is read from a [`SnapshotReader`] in the same order, by its builder's `load`.
//!
//! # Format
//! Little-endian words of eight bytes: what kind of file it is, its version, how many words it has, then what its kind
//! says, and a checksum (FNV-1a) of all bytes but those that say how many there are, which the file itself tells.
//! Reading looks at all of it twice, the first time for the checksum, so that nothing of a damaged file is used; neither
//! that nor writing takes memory for more than one shard of a table.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_core::{Rate, Timestamp};

mod error;
mod reader;
mod writer;

pub use error::SnapshotError;
pub use reader::SnapshotReader;
pub use writer::SnapshotWriter;
pub(crate) use writer::push_bytes;

const WORD: usize = size_of::<u64>();
/// Where the number of all words is.
const LENGTH: usize = 2;
/// Words before what its kind says.
const HEADER: usize = LENGTH + 1;
/// Bytes that are read or written at once.
const CHUNK: usize = 1 << 16;
const FNV_START: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_FACTOR: u64 = 0x0000_0100_0000_01B3;

/// One moment by two clocks: that of a table, and the wall clock, which alone tells how long no process ran.
///
/// Read the table's clock first: time that passes in between then counts as not passed, and grants nothing. For a table
/// whose clock is the wall clock both are one reading, and its times stay what they are.
///
/// ```
/// use tollgate::{Clock, snapshot::Times};
/// use tollgate::clock::{Monotonic, Wall};
///
/// let clock = Monotonic::new();
/// let times = Times { now: clock.now(), wall: Wall.now() };
/// assert!(times.wall > times.now);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// By the clock of the table.
    pub now: Timestamp,
    /// By the wall clock: nanoseconds since 1970.
    pub wall: Timestamp,
}

impl Times {
    /// This moment, for a table that shows this time.
    pub(crate) fn of(now: Timestamp) -> Self {
        let wall = Timestamp::from_nanos(wall_nanos());
        Self { now, wall }
    }

    /// How long after another time this one is by the wall clock, in nanoseconds: none if it went back.
    pub(crate) fn since(self, wall: u64) -> u64 {
        self.wall.as_nanos().saturating_sub(wall)
    }

    /// Whether the table's clock is the wall clock.
    pub(crate) fn is_wall(self) -> bool {
        self.now == self.wall
    }
}

/// How much of a section was taken over.
///
/// ```
/// use tollgate::snapshot::Loaded;
///
/// let none = Loaded::default();
/// assert_eq!((none.keys, none.left_out), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Keys that are active still, and go on.
    pub keys: u64,
    /// Keys that are active still and found no slot: the table has less room than the one that was saved.
    pub left_out: u64,
}

impl Loaded {
    /// Both together.
    ///
    /// ```
    /// use tollgate::snapshot::Loaded;
    ///
    /// assert_eq!(Loaded::default().and(Loaded::default()), Loaded::default());
    /// ```
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            keys: self.keys + other.keys,
            left_out: self.left_out + other.left_out,
        }
    }

    /// An error if any key found no slot.
    pub(crate) fn all(self, path: &Path, capacity: usize) -> Result<(), SnapshotError> {
        if self.left_out == 0 {
            return Ok(());
        }
        Err(SnapshotError::TooManyKeys {
            path: path.to_owned(),
            keys: self.keys + self.left_out,
            capacity,
        })
    }
}

/// A rate: 0 for none, 1 for zero, 2 for a finite one; count, seconds, nanoseconds, burst.
pub(crate) fn words_of(rate: Rate) -> [u64; 5] {
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

pub(crate) fn rate_of(words: [u64; 5]) -> Option<Rate> {
    let [kind, count, secs, nanos, burst] = words;
    let nanos = u32::try_from(nanos).ok().filter(|n| *n < 1_000_000_000)?;
    match kind {
        0 => Some(Rate::unlimited().burst(burst)),
        1 => Some(Rate::zero().burst(burst)),
        2 => Some(Rate::new(count, Duration::new(secs, nanos)).burst(burst)),
        _ => None,
    }
}

fn io_error(path: &Path, source: io::Error) -> SnapshotError {
    SnapshotError::Io {
        path: path.to_owned(),
        source,
    }
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

/// FNV-1a: tells a damaged file, not a forged one. Each step can be undone, so no single byte changes unnoticed.
fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(FNV_FACTOR)
    })
}

/// Makes a rename last: on Unix a folder is synced as a file is.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}
