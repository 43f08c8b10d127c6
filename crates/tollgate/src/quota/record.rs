//! How keys are written down: a batch of records, each a key with its lots.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | the time before which no unknown key is judged |
//! | 2 · 2 | a record: the bytes of its key, its lots; no lots means that the key is gone |
//! | as said | the key |
//! | 8 · 8 · 8 | the latest charge, the peak, the tag of its period; not if it is gone |
//! | 16 a lot | until when it counts, and how much |
//!
//! Numbers are little-endian.

use std::sync::Arc;

use super::entry::{Entry, Lot, MOST_LOTS};
use super::period::Part;
use super::refused::QuotaRefused;

/// Records to be written together.
pub(super) struct Batch {
    bytes: Vec<u8>,
    records: usize,
    floor: u64,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; 8],
            records: 0,
            floor: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(super) fn raise_floor(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
    }

    /// Writes a key down, with this much in its latest lot.
    pub(super) fn put(&mut self, entry: &Entry, latest: u64) {
        // One that was emptied is as one never seen.
        self.begin(&entry.key, entry.lots.len());
        if entry.lots.is_empty() {
            return;
        }
        for number in [entry.latest, entry.peak, entry.tag] {
            self.bytes.extend(number.to_le_bytes());
        }
        let last = entry.lots.len() - 1;
        for (place, lot) in entry.lots.iter().enumerate() {
            let amount = if place == last { latest } else { lot.amount };
            self.bytes.extend(lot.until.to_le_bytes());
            self.bytes.extend(amount.to_le_bytes());
        }
    }

    /// The key is gone.
    pub(super) fn erase(&mut self, key: &[u8]) {
        self.begin(key, 0);
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes[..8].copy_from_slice(&self.floor.to_le_bytes());
        self.bytes
    }

    fn begin(&mut self, key: &[u8], lots: usize) {
        // Keys and lots are bounded far below.
        for length in [key.len(), lots] {
            let length = u16::try_from(length).unwrap_or(u16::MAX);
            self.bytes.extend(length.to_le_bytes());
        }
        self.bytes.extend(key);
        self.records += 1;
    }
}

/// Reads a batch; none if it isn't one. Keys that are gone have no lots.
pub(super) fn read(bytes: &[u8]) -> Option<(u64, Vec<Entry>)> {
    let mut reader = Reader { rest: bytes };
    let floor = reader.u64()?;
    let mut entries = Vec::new();
    while !reader.rest.is_empty() {
        entries.push(reader.entry()?);
    }
    Some((floor, entries))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        self.take().map(u16::from_le_bytes).map(usize::from)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn entry(&mut self) -> Option<Entry> {
        let (key, lots) = (self.length()?, self.length()?);
        if key > QuotaRefused::MOST_KEY_BYTES || lots > MOST_LOTS {
            return None;
        }
        let key: Arc<[u8]> = Arc::from(self.bytes(key)?);
        // An empty part: the first charge looks its own up.
        let part = Part {
            start: 0,
            end: 0,
            until: 0,
        };
        let mut entry = Entry::new(key, 0, 0, part);
        if lots > 0 {
            entry.latest = self.u64()?;
            entry.peak = self.u64()?;
            entry.tag = self.u64()?;
        }
        for _ in 0..lots {
            let (until, amount) = (self.u64()?, self.u64()?);
            if until < entry.idle_at() {
                return None;
            }
            entry.lots.push(Lot { until, amount });
        }
        Some(entry)
    }
}
