//! Keys in the form of the tables: by a counter and a fingerprint, or for quotas by the key itself.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use tollgate::{
    Clock, Decision, KeyedConcurrencyLimiter, Limit as ComposedLimit, Tier, concurrency, keyed,
    quota, stored_keys,
};

use super::Memory;
use crate::limits::{Check, CompiledLimit};

/// The bytes of a quota's key, with the counter's name, that need no allocation.
const INLINE_BYTES: usize = 80;
/// Limits of a request are told apart by their index, so they need no name.
pub(super) const UNNAMED: &str = "";

/// A key of a counter: the counter's number, and the key's fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CounterKey(pub(super) u64, pub(super) [u64; 2]);

/// Hashes two integers of full width. A derived implementation would hash the slice's length, and byte by byte.
impl Hash for CounterKey {
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self(counter, [low, high]) = *self;
        hasher.write_u128(u128::from(high) << 64 | u128::from(low));
        hasher.write_u64(counter);
    }
}

impl CounterKey {
    #[inline]
    pub(super) fn of(check: &Check<'_>) -> Self {
        Self(check.limit.id, check.key.fingerprint())
    }
}

/// A key with a limit that was compiled for its table. It has the table's algorithm, so there is no error.
#[inline]
pub(super) fn gcra_key_at<'a, C: Clock>(key: keyed::Key<'a, C>, tier: &Tier) -> keyed::Key<'a, C> {
    key.at(tier).unwrap_or(key)
}

/// The same in a table of exact keys.
#[inline]
pub(super) fn exact_key_at<'a, C: Clock>(
    key: stored_keys::Key<'a, CounterKey, CounterKey, C>,
    tier: &'a Tier,
) -> stored_keys::Key<'a, CounterKey, CounterKey, C> {
    key.at(tier).unwrap_or(key)
}

/// A key of one table, during a decision.
pub(super) enum TableKey<'a, C: Clock + 'static, W: Clock + 'static> {
    Nothing,
    Rate(keyed::Key<'a, C>),
    Exact(stored_keys::Key<'a, CounterKey, CounterKey, C>),
    Window(stored_keys::Key<'a, CounterKey, CounterKey, W>),
    Slot(concurrency::Key<'a, Arc<KeyedConcurrencyLimiter<CounterKey, C>>, CounterKey>),
    Quota(quota::Key<'a, W>),
}

/// The storage that some keys borrow from.
pub(super) enum KeyStorage {
    Nothing,
    Key(CounterKey),
    Bytes(QuotaBytes),
}

/// A counter's name and a key, in the form of quotas: the same in every process.
#[derive(Clone, Debug)]
pub(super) struct QuotaBytes {
    short: [u8; INLINE_BYTES],
    used: usize,
    /// All bytes, if they exceed the inline storage.
    long: Vec<u8>,
}

impl QuotaBytes {
    pub(super) fn of(check: &Check<'_>) -> Self {
        let mut own = Self {
            short: [0; INLINE_BYTES],
            used: 0,
            long: Vec::new(),
        };
        let counter = check.limit.counter();
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
        own.add(&number(counter.name.len()));
        own.add(counter.name.as_bytes());
        own.add(&number(counter.ordinal));
        check.key.write_bytes(&mut |bytes| own.add(bytes));
        own
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.long.is_empty()
            && let Some(room) = self.short.get_mut(self.used..self.used + bytes.len())
        {
            room.copy_from_slice(bytes);
            self.used += bytes.len();
            return;
        }
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.used]);
        }
        self.long.extend_from_slice(bytes);
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.used]
        } else {
            &self.long
        }
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// The key of a check, in the table of its limit.
    #[inline]
    pub(super) fn table_key<'a>(
        &'a self,
        check: Option<&Check<'a>>,
        owned: &'a KeyStorage,
    ) -> TableKey<'a, C, W> {
        let Some(check) = check else {
            return TableKey::Nothing;
        };
        match (&check.limit.compiled, owned) {
            (CompiledLimit::Gcra(tier), _) => {
                TableKey::Rate(gcra_key_at(self.rates.key(&CounterKey::of(check)), tier))
            }
            (CompiledLimit::Exact(table, tier), KeyStorage::Key(key)) => {
                TableKey::Exact(exact_key_at(self.exact_tables[*table].key(key), tier))
            }
            (CompiledLimit::Window(tier), KeyStorage::Key(key)) => {
                TableKey::Window(exact_key_at(self.windows.key(key), tier))
            }
            (CompiledLimit::Concurrency(limit), KeyStorage::Key(key)) => {
                TableKey::Slot(self.concurrency.key_owned(key).at(*limit))
            }
            (CompiledLimit::Quota(quota), KeyStorage::Bytes(bytes)) => {
                TableKey::Quota(self.quotas.key(bytes.as_slice()).at(quota))
            }
            _ => TableKey::Nothing,
        }
    }
}

impl KeyStorage {
    #[inline]
    pub(super) fn of(check: Option<&Check<'_>>) -> Self {
        match check.map(|check| (&check.limit.compiled, check)) {
            Some((
                CompiledLimit::Exact(..) | CompiledLimit::Window(_) | CompiledLimit::Concurrency(_),
                check,
            )) => Self::Key(CounterKey::of(check)),
            Some((CompiledLimit::Quota(_), check)) => Self::Bytes(QuotaBytes::of(check)),
            Some((CompiledLimit::Gcra(_), _)) | None => Self::Nothing,
        }
    }
}

#[inline]
pub(super) fn level<'a, C: Clock + 'static, W: Clock + 'static>(
    held: &'a TableKey<'a, C, W>,
    check: &Check<'a>,
) -> Option<ComposedLimit<'a>> {
    Some(match held {
        TableKey::Nothing => return None,
        TableKey::Rate(key) => ComposedLimit::new(UNNAMED, key).cost(check.cost),
        TableKey::Exact(key) => ComposedLimit::new(UNNAMED, key).cost(check.cost),
        TableKey::Window(key) => ComposedLimit::new(UNNAMED, key).cost(check.cost),
        TableKey::Quota(key) => ComposedLimit::new(UNNAMED, key).cost(check.cost),
        // A request takes one permit, whatever its cost.
        TableKey::Slot(key) => ComposedLimit::new(UNNAMED, key),
    })
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// The decision of each check after the charge: what remains of its limit, or why it denies.
    pub(crate) fn decisions_after(&self, checks: &[Check<'_>], are_charged: bool) -> Vec<Decision> {
        if are_charged {
            self.left_of_each(checks)
        } else {
            self.peek_each(checks)
        }
    }

    /// What remains of each limit, without a charge. No permit is taken for this either.
    pub fn left_of_each(&self, checks: &[Check<'_>]) -> Vec<Decision> {
        self.peek_levels(checks, |level| {
            *self.stack.peek(&[level.clone().cost(0)]).decision()
        })
    }

    /// The decision that each check alone would make, without a charge: `remaining` is the present value.
    pub fn peek_each(&self, checks: &[Check<'_>]) -> Vec<Decision> {
        self.peek_levels(checks, |level| {
            let said = |level| *self.stack.peek(&[level]).decision();
            Some(said(level.clone()))
                .filter(|decision| !decision.is_allowed())
                .unwrap_or_else(|| said(level.clone().cost(0)))
        })
    }

    fn peek_levels(
        &self,
        checks: &[Check<'_>],
        look: impl Fn(&ComposedLimit<'_>) -> Decision,
    ) -> Vec<Decision> {
        let each = checks.iter().map(|check| {
            let owned = KeyStorage::of(Some(check));
            let held = self.table_key(Some(check), &owned);
            level(&held, check).map_or(Decision::UNLIMITED, |level| look(&level))
        });
        each.collect()
    }
}
