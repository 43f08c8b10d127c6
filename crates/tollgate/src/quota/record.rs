//! The binary format of keys: a batch of records, each a key with its accounts.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | the floor: unknown keys are evaluated no earlier than this time |
//! | 2 · 2 | a record: the length of its key, the number of its accounts; 0 accounts if it was removed |
//! | as stated | the key |
//! | 8 | the time of the latest charge; absent if the key was removed |
//! | 2 · 2 · 8 | an account: the length of its period's text, the number of its lots, the peak |
//! | as stated | the text, as a quota prints it after its count |
//! | 16 a lot | the time until which it counts, and the amount |
//!
//! Numbers are little-endian.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::Quota;
use super::denied::QuotaDenied;
use super::entry::{MAX_LOTS, MAX_PERIODS, PeriodAccount, QuotaEntry, UsageLot};
use super::period::Period;

/// Records that are written together.
pub(super) struct RecordBatch {
    bytes: Vec<u8>,
    records: usize,
    floor: u64,
    /// A buffer for the text of a period.
    text: String,
}

impl RecordBatch {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; 8],
            records: 0,
            floor: 0,
            text: String::new(),
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

    /// Adds a key. `latest` gives the amount to write for the latest lot of each account.
    pub(super) fn add_entry(&mut self, entry: &QuotaEntry, latest: impl Fn(&PeriodAccount) -> u64) {
        // An emptied account is like one that never existed.
        let accounts = || entry.accounts().filter(|account| !account.lots.is_empty());
        self.begin(&entry.key, accounts().count());
        if accounts().next().is_none() {
            return;
        }
        self.number(entry.last_charge_nanos);
        for account in accounts() {
            self.text.clear();
            // Writing to a string doesn't fail.
            let _ = write!(self.text, "{}", account.period);
            self.lengths([self.text.len(), account.lots.len()]);
            self.number(account.peak);
            self.bytes.extend(self.text.as_bytes());
            let last = account.lots.len() - 1;
            for (place, lot) in account.lots.iter().enumerate() {
                self.number(lot.until);
                self.number(if place == last {
                    latest(account)
                } else {
                    lot.amount
                });
            }
        }
    }

    /// Adds the removal of a key.
    pub(super) fn add_removal(&mut self, key: &[u8]) {
        self.begin(key, 0);
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes[..8].copy_from_slice(&self.floor.to_le_bytes());
        self.bytes
    }

    fn begin(&mut self, key: &[u8], accounts: usize) {
        self.lengths([key.len(), accounts]);
        self.bytes.extend(key);
        self.records += 1;
    }

    /// Writes two lengths, which are far below the range of 16 bits.
    fn lengths(&mut self, lengths: [usize; 2]) {
        for length in lengths {
            let length = u16::try_from(length).unwrap_or(u16::MAX);
            self.bytes.extend(length.to_le_bytes());
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes.extend(number.to_le_bytes());
    }
}

/// The periods of a file by their texts, so that each is parsed once.
#[derive(Default)]
pub(super) struct PeriodCache(HashMap<String, Arc<Period>>);

impl PeriodCache {
    fn get(&mut self, text: &str) -> Option<Arc<Period>> {
        if let Some(period) = self.0.get(text) {
            return Some(Arc::clone(period));
        }
        let quota: Quota = format!("1{text}").parse().ok()?;
        let period = Arc::clone(quota.period()?);
        self.0.insert(text.to_owned(), Arc::clone(&period));
        Some(period)
    }
}

/// A key of a batch, with its entry; none if the key was removed.
pub(super) type Record = (Arc<[u8]>, Option<QuotaEntry>);

/// Reads a batch; none if it is malformed.
pub(super) fn read(bytes: &[u8], periods: &mut PeriodCache) -> Option<(u64, Vec<Record>)> {
    let mut reader = RecordReader {
        rest: bytes,
        periods,
    };
    let floor = reader.u64()?;
    let mut records = Vec::new();
    while !reader.rest.is_empty() {
        records.push(reader.record()?);
    }
    Some((floor, records))
}

struct RecordReader<'a, 'p> {
    rest: &'a [u8],
    periods: &'p mut PeriodCache,
}

impl<'a> RecordReader<'a, '_> {
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

    fn record(&mut self) -> Option<Record> {
        let (key, accounts) = (self.length()?, self.length()?);
        if key > QuotaDenied::MAX_KEY_BYTES || accounts > MAX_PERIODS {
            return None;
        }
        let key: Arc<[u8]> = Arc::from(self.bytes(key)?);
        if accounts == 0 {
            return Some((key, None));
        }
        let latest = self.u64()?;
        let mut entry = QuotaEntry::new(Arc::clone(&key), 0, self.account()?);
        entry.last_charge_nanos = latest;
        for _ in 1..accounts {
            let account = self.account()?;
            let known = |own: &PeriodAccount| own.period.tag == account.period.tag;
            if entry.accounts().any(known) {
                return None;
            }
            entry.previous.push(account);
        }
        Some((key, Some(entry)))
    }

    fn account(&mut self) -> Option<PeriodAccount> {
        let (text, lots) = (self.length()?, self.length()?);
        let peak = self.u64()?;
        let text = std::str::from_utf8(self.bytes(text)?).ok()?;
        if lots == 0 || lots > MAX_LOTS {
            return None;
        }
        let mut account = PeriodAccount::new(self.periods.get(text)?);
        account.peak = peak;
        for _ in 0..lots {
            let (until, amount) = (self.u64()?, self.u64()?);
            if until < account.idle_at() {
                return None;
            }
            account.lots.push(UsageLot { until, amount });
        }
        Some(account)
    }
}
