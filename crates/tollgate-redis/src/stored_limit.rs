//! A limit as the store reads it, and the names of its keys.

use std::fmt::Write as _;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::quality::SeedableRandomState;
use tollgate_engine::backend::{Check, Limit};
use tollgate_engine::policy::Counting;

use crate::error::StoreLimitError;
use crate::query::{LimitForm, LimitParams};
use crate::store_key::{self, CountingMode};

/// A limit as the store reads it.
#[derive(Debug)]
pub(crate) struct StoredLimit {
    pub(crate) form: LimitForm,
    /// By which its tokens are leased, if they are.
    pub(crate) leased: Option<LimitParams>,
    /// What its keys begin with, up to the hash tag.
    key_prefix: String,
    /// Its counter, escaped.
    counter: String,
    /// Which value of the key is the hash tag.
    hash_tag_fact: Option<Box<str>>,
    /// A hash of the names of its keys and of what they are judged by: limits that differ in either have different
    /// versions, in whichever policy they are.
    pub(crate) version: u64,
}

/// A limit, as it is called and judged in the store, and the fingerprint of a key. What is leased by one limit
/// isn't spent by another, be it one that took its place.
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

/// A check of a limit that tokens are leased of.
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

    /// Which lease it is of.
    pub(crate) fn lease_key(&self) -> LeaseKey {
        LeaseKey::of(self.stored, self.check)
    }

    /// The name of its key in the store.
    pub(crate) fn store_key(&self) -> Box<str> {
        self.stored.key(self.check).into()
    }
}

/// How limits of a client are called in the store, and told apart.
pub(crate) struct KeyNaming {
    /// What all keys begin with.
    pub(crate) prefix: Box<str>,
    /// For how long a slot is held without a sign of life.
    pub(crate) slot_life: Duration,
    /// Tells limits apart.
    pub(crate) hasher: SeedableRandomState,
}

/// How many bytes the values of most keys take.
const VALUES_CAPACITY: usize = 48;

/// Which values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyValues {
    /// Those that say on which node of a cluster it is.
    OfTag,
    Others,
}

impl StoredLimit {
    pub(crate) fn new(limit: &Limit, naming: &KeyNaming) -> Result<Self, StoreLimitError> {
        let form = LimitForm::from_limit(limit, naming.slot_life)?;
        // Estimates that are held of a level are kept track of in the same way as leases.
        let level = form.level();
        let keeps_track = limit.keeps_estimates() && level.is_some();
        let is_leased = limit.counting() == Counting::Leased || keeps_track;
        let sharing = if is_leased {
            CountingMode::Leased
        } else {
            CountingMode::Exact
        };
        let carry_over = limit.carry_over();
        // An override counts where the rule does, whatever its period.
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

    /// The name of a check's key: its first value is the hash tag, unless the limit says which.
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

    /// Appends these of a key's values, and tells how many there were.
    fn write_values(&self, check: &Check<'_>, key: &mut String, which: KeyValues) -> usize {
        let (mut number, mut written) = (0, 0);
        // A key to fall back to may lack the fact that is chosen: its first value is the tag then, or all such keys would be
        // on one node.
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
