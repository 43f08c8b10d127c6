//! Two copies of one limit of every kind: one is charged by a composite, the other by plain verbs.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, ConcurrencyLimiter, Decision, KeyedConcurrencyLimiter, KeyedLimiter, Limit, Limiter,
    Outcome, Rate, StoredKeyLimiter, Tier, Timestamp,
    concurrency::{self, KeyedPermit, Permit},
    core::WindowAlignment,
    keyed,
    stack::LimitKind,
    stored_keys,
};
#[cfg(feature = "quota")]
use tollgate::{Quota, QuotaLimiter, quota};

pub(crate) const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];
pub(crate) const START: Timestamp = Timestamp::from_secs(1_000);
pub(crate) const STRIPED: usize = ALGORITHMS.len();

/// What one level of a random stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    Limiter(usize),
    Key(u8),
    KeyAtRate(u8),
    Exact(usize, u8),
    Slots,
    KeySlots(u8),
    Quota(u8),
}

impl Pick {
    /// The same for picks that meet the same state.
    pub(crate) fn state(self) -> Self {
        match self {
            Self::KeyAtRate(key) => Self::Key(key),
            other => other,
        }
    }

    pub(crate) fn kind(self) -> LimitKind {
        match self {
            Self::Slots | Self::KeySlots(_) => LimitKind::Concurrency,
            Self::Quota(_) => LimitKind::Quota,
            _ => LimitKind::Rate,
        }
    }
}

pub(crate) struct World {
    pub(crate) clock: Manual,
    pub(crate) limiters: Vec<Limiter<Manual>>,
    keyed: KeyedLimiter<Manual>,
    other_rate: Tier,
    exact: Vec<StoredKeyLimiter<String, Manual>>,
    pub(crate) slots: Arc<ConcurrencyLimiter<Manual>>,
    key_slots: Arc<KeyedConcurrencyLimiter<u8, Manual>>,
    #[cfg(feature = "quota")]
    quota: QuotaLimiter<Manual>,
    names: [String; 3],
}

/// The borrowed parts of a limit while it is charged.
pub(crate) enum Owner<'a> {
    None,
    Exact(stored_keys::Key<'a, String, str, Manual>),
    Slots(concurrency::Key<'a, Arc<KeyedConcurrencyLimiter<u8, Manual>>, u8>),
    #[cfg(feature = "quota")]
    Quota(quota::Key<'a, Manual>),
}

/// A permit of the twin.
pub(crate) enum Slot<'a> {
    Shared(Permit<&'a ConcurrencyLimiter<Manual>>),
    Key(KeyedPermit<'a, u8, Manual>),
}

impl Slot<'_> {
    pub(crate) fn success(self) {
        match self {
            Self::Shared(permit) => permit.success(),
            Self::Key(permit) => permit.success(),
        }
    }
}

impl World {
    pub(crate) fn new(count: u64) -> Self {
        let clock = Manual::starting_at(START);
        let rate = Rate::per_second(count);
        let mut limiters: Vec<_> = ALGORITHMS
            .into_iter()
            .map(|algorithm| {
                let builder = Limiter::builder(rate).algorithm(algorithm);
                builder
                    .clock(clock.clone())
                    .build()
                    .expect("a rate that fits")
            })
            .collect();
        let striped = Limiter::builder(rate.burst(64)).stripes(4);
        limiters.push(
            striped
                .clock(clock.clone())
                .build()
                .expect("a rate that fits"),
        );
        let exact = |algorithm| {
            let builder = StoredKeyLimiter::builder(rate, 64).algorithm(algorithm);
            builder
                .clock(clock.clone())
                .build()
                .expect("a rate that fits")
        };
        let keyed = KeyedLimiter::builder(rate, 64).clock(clock.clone());
        Self {
            limiters,
            keyed: keyed.build().expect("a rate that fits"),
            other_rate: Tier::new(Algorithm::Gcra, rate.burst(2 * count))
                .expect("a rate that fits"),
            exact: ALGORITHMS.into_iter().map(exact).collect(),
            slots: Arc::new(ConcurrencyLimiter::builder(6).clock(clock.clone()).build()),
            key_slots: Arc::new(
                KeyedConcurrencyLimiter::builder(3, 64)
                    .clock(clock.clone())
                    .build()
                    .expect("what it can do"),
            ),
            #[cfg(feature = "quota")]
            quota: QuotaLimiter::builder(
                Quota::rolling(4 * count, Duration::from_secs(3)).expect("a period"),
                1_000_000,
            )
            .clock(clock.clone())
            .build()
            .expect("what it can do"),
            names: ["ada", "bo", "cy"].map(String::from),
            clock,
        }
    }

    pub(crate) fn advance(&self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
    }

    fn name(&self, key: u8) -> &str {
        &self.names[usize::from(key)]
    }

    fn key(&self, pick: Pick) -> keyed::Key<'_, Manual> {
        match pick {
            Pick::KeyAtRate(key) => self
                .keyed
                .key(&key)
                .at(&self.other_rate)
                .expect("what it can do"),
            Pick::Key(key) => self.keyed.key(&key),
            _ => unreachable!("no key of the table"),
        }
    }

    pub(crate) fn owner(&self, pick: Pick) -> Owner<'_> {
        const KEYS: [u8; 3] = [0, 1, 2];
        match pick {
            Pick::Exact(index, key) => Owner::Exact(self.exact[index].key(self.name(key))),
            Pick::KeySlots(key) => Owner::Slots(self.key_slots.key_owned(&KEYS[usize::from(key)])),
            #[cfg(feature = "quota")]
            Pick::Quota(key) => Owner::Quota(self.quota.key(self.name(key))),
            _ => Owner::None,
        }
    }

    pub(crate) fn level<'a>(
        &'a self,
        pick: Pick,
        name: &'a str,
        owner: &'a Owner<'a>,
    ) -> Limit<'a> {
        match (pick, owner) {
            (Pick::Limiter(index), _) => Limit::new(name, &self.limiters[index]),
            (Pick::Slots, _) => Limit::new(name, &self.slots),
            (_, Owner::Exact(key)) => Limit::new(name, key),
            (_, Owner::Slots(key)) => Limit::new(name, key),
            #[cfg(feature = "quota")]
            (_, Owner::Quota(key)) => Limit::new(name, key),
            _ => Limit::new(name, &self.key(pick)),
        }
    }

    /// What is left, by the limit's own peek.
    pub(crate) fn peek(&self, pick: Pick) -> Decision {
        match pick {
            Pick::Limiter(index) => self.limiters[index].peek(),
            Pick::Exact(index, key) => self.exact[index].key(self.name(key)).peek(),
            #[cfg(feature = "quota")]
            Pick::Quota(key) => self.quota.peek(self.name(key)),
            Pick::Slots | Pick::KeySlots(_) => {
                let seen = match pick {
                    Pick::KeySlots(key) => self.key_slots.peek(&key),
                    _ => self.slots.peek(),
                };
                let (limit, left) = (u64::from(seen.limit), u64::from(seen.available()));
                Decision::new(
                    Outcome::Allowed,
                    limit,
                    left,
                    Duration::ZERO,
                    Duration::ZERO,
                )
            }
            _ => self.key(pick).check_n(0),
        }
    }

    /// Charges by the limit's own verb; returns the decision, and the permit.
    pub(crate) fn charge(&self, pick: Pick, cost: u64) -> (Decision, Option<Slot<'_>>) {
        let weight = u32::try_from(cost).unwrap_or(u32::MAX);
        let decision = match pick {
            Pick::Limiter(STRIPED) => {
                // By the shared word, as a stack does: a check would fill a stripe.
                let slot = self.limiters[STRIPED].reserve(cost);
                match slot {
                    Ok(slot) if slot.delay().is_zero() => drop(slot),
                    Ok(slot) => {
                        let wait = slot.delay();
                        slot.cancel();
                        let seen = self.peek(pick);
                        let (limit, left, reset) = (seen.limit, seen.remaining, seen.reset_after);
                        let denied = Decision::new(Outcome::Denied, limit, left, wait, reset);
                        return (denied, None);
                    }
                    Err(refused) => return (*refused.decision(), None),
                }
                self.peek(pick)
            }
            Pick::Limiter(index) => self.limiters[index].check_n(cost),
            Pick::Exact(index, key) => self.exact[index].check_n(self.name(key), cost),
            #[cfg(feature = "quota")]
            Pick::Quota(key) => self.quota.check_n(self.name(key), cost),
            Pick::Slots if cost > 0 => {
                let permit = self.slots.try_acquire_n(weight);
                return (self.peek(pick), permit.ok().map(Slot::Shared));
            }
            Pick::KeySlots(key) if cost > 0 => {
                let permit = self.key_slots.key(&key).try_acquire_n(weight);
                return (self.peek(pick), permit.ok().map(Slot::Key));
            }
            Pick::Slots | Pick::KeySlots(_) => self.peek(pick),
            _ => self.key(pick).check_n(cost),
        };
        (decision, None)
    }
}
