//! A limit in the store's terms, and the names of its keys.

use std::fmt::Write as _;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::quality::SeedableRandomState;
use tollgate_engine::backend::{Check, Limit};
use tollgate_engine::policy::Counting;

use crate::error::StoreLimitError;
use crate::query::{LimitForm, LimitParams};
use crate::store_key::{self, CountingMode};

/// A limit in the store's terms.
#[derive(Debug)]
pub(crate) struct StoredLimit {
    pub(crate) form: LimitForm,
    /// The parameters for its leases, if it has any.
    pub(crate) leased: Option<LimitParams>,
    /// The prefix of its keys, up to the hash tag.
    key_prefix: String,
    /// The name of its counter, escaped.
    counter: String,
    /// The fact whose value is the hash tag.
    hash_tag_fact: Option<Box<str>>,
    /// A hash of its key names and its parameters: limits that differ in either have different versions,
    /// whatever their policy.
    pub(crate) version: u64,
}

/// A lease's limit, by its version, and the fingerprint of a key. Tokens leased by one limit can't be spent by
/// another, even by its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseKey {
    pub(crate) version: u64,
    pub(crate) fingerprint: [u64; 2],
}

impl LeaseKey {
    #[inline]
    pub(crate) fn of(stored: &StoredLimit, check: &Check<'_>) -> Self {
        Self {
            version: stored.version,
            fingerprint: check.key.fingerprint(),
        }
    }
}

/// A check of a leased limit.
#[derive(Clone, Copy)]
pub(crate) struct LeaseCheck<'a> {
    pub(crate) check: &'a Check<'a>,
    pub(crate) numbers: LimitParams,
    stored: &'a StoredLimit,
}

impl<'a> LeaseCheck<'a> {
    /// The check, if its limit is leased.
    pub(crate) fn of(check: &'a Check<'a>, stored: &'a StoredLimit) -> Option<Self> {
        let numbers = stored.leased?;
        Some(Self {
            check,
            numbers,
            stored,
        })
    }

    /// The key of its lease.
    pub(crate) fn lease_key(&self) -> LeaseKey {
        LeaseKey::of(self.stored, self.check)
    }

    /// The name of its key in the store.
    pub(crate) fn store_key(&self) -> Box<str> {
        self.stored.key(self.check).into()
    }
}

/// How a client names the keys of its limits.
pub(crate) struct KeyNaming {
    /// Prefix of all keys.
    pub(crate) prefix: Box<str>,
    /// How long a permit is held without a renewal.
    pub(crate) slot_life: Duration,
    /// Hashes limits to versions.
    pub(crate) hasher: SeedableRandomState,
}

/// Bytes for the values of most keys.
const VALUES_CAPACITY: usize = 48;

/// The values of a key to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyValues {
    /// Those that make up the hash tag.
    OfTag,
    Others,
}

impl StoredLimit {
    pub(crate) fn new(limit: &Limit, naming: &KeyNaming) -> Result<Self, StoreLimitError> {
        let form = LimitForm::from_limit(limit, naming.slot_life)?;
        // Estimates that are held of a level are tracked in the same way as leases.
        let level = form.level();
        let keeps_track = limit.keeps_estimates() && level.is_some();
        let is_leased = limit.counting() == Counting::Leased || keeps_track;
        let sharing = if is_leased {
            CountingMode::Leased
        } else {
            CountingMode::Exact
        };
        let carry_over = limit.carry_over();
        // An override shares the rule's counter, whatever its own period.
        let named = limit.counter_kind();
        let head = store_key::key_prefix(&naming.prefix, named, sharing, carry_over);
        let mut counter = String::new();
        store_key::escape(&limit.counter().name, &mut counter);
        let _ = write!(counter, ":{}", limit.counter().ordinal);
        let slot: Option<Box<str>> = limit.hash_tag().map(Into::into);
        let what = (&head, &counter, &slot, format!("{form:?}"));
        let version = naming.hasher.hash_one(what);
        let leased = level.filter(|_| is_leased);
        if is_leased && leased.is_none() && form.known_decision(0).is_none() {
            return Err(StoreLimitError::not_a_level("a lease", limit.kind()));
        }
        Ok(Self {
            key_prefix: head,
            version,
            form,
            leased,
            counter,
            hash_tag_fact: slot,
        })
    }

    /// The name of a check's key. Its first value is the hash tag, unless the limit names another.
    pub(crate) fn key(&self, check: &Check<'_>) -> String {
        let mut key =
            String::with_capacity(self.key_prefix.len() + self.counter.len() + VALUES_CAPACITY);
        key.push_str(&self.key_prefix);
        key.push('{');
        if self.write_values(check, &mut key, KeyValues::OfTag) == 0 {
            key.push_str(&self.counter);
        }
        key.push_str("}:");
        key.push_str(&self.counter);
        self.write_values(check, &mut key, KeyValues::Others);
        key
    }

    /// Appends these values of a key, and returns how many there were.
    fn write_values(&self, check: &Check<'_>, key: &mut String, which: KeyValues) -> usize {
        let (mut number, mut written) = (0, 0);
        // A fallback key may lack the chosen fact. Its first value is the hash tag then; without one, all such
        // keys would be on one node.
        let mut slot = None;
        if let Some(chosen) = self.hash_tag_fact.as_deref() {
            check.key.each(&mut |fact, _| {
                if fact == chosen {
                    slot = Some(chosen);
                }
            });
        }
        check.key.each(&mut |fact, value| {
            let is_tag = match slot {
                Some(slot) => slot == fact,
                None => number == 0,
            };
            number += 1;
            if is_tag != (which == KeyValues::OfTag) {
                return;
            }
            match (written, which) {
                (0, KeyValues::OfTag) => {}
                (0, KeyValues::Others) => key.push(':'),
                _ => key.push(','),
            }
            written += 1;
            store_key::escape(fact, key);
            key.push('=');
            store_key::escape(value, key);
        });
        written
    }
}
