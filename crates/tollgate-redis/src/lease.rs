//! Leases: tokens that this node has taken from the store, and spends without asking.
//!
//! What is out doesn't drain in the store, so the fleet never exceeds a limit, whatever its nodes do with
//! what they hold. A node counts a lease's life on its own clock from *before* it asked, so no two
//! clocks are compared, and it stops spending before the store takes the tokens for lost.

mod asks;
mod book;
mod estimate;
mod forgive;
mod keep;
mod refill;
mod said;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use futures_util::stream::{self, StreamExt};
use tollgate::{Clock, Decision, Outcome, Timestamp};
use tollgate_engine::backend::{Gift, Limit};
use tollgate_engine::policy::Counting;

use crate::error::StoreError;
use crate::host::{Host, HostClock, HostWall, Identity};
use crate::local::Local;
use crate::question::Numbers;
use crate::store::{Patience, Store};
use crate::stored::{LeaseCheck, LeaseKey};

use asks::Wants;
pub(crate) use book::Stamp;
use book::{Book, Spent};
pub(crate) use estimate::Estimate;
pub(crate) use forgive::Forgiven;
use keep::keep;
use refill::Came;
pub(crate) use taken::{Had, Here, Taken};

const SHARDS: usize = 64;
/// Leases that are returned at once when all are.
const AT_ONCE: usize = 64;

/// How leases are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// For how long tokens are taken.
    pub(crate) life: Duration,
    /// A node holds at most the burst divided by this.
    pub(crate) part: u64,
    /// How many keys may have a lease here.
    pub(crate) most_keys: usize,
}

/// All leases of this node.
pub(crate) struct Leases {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<Store>,
    terms: Terms,
    /// The holder of what is spent at once, and not kept.
    passing: Identity,
    /// This process's part of the limits, which is told what is spent.
    local: Arc<Local<HostClock, HostWall>>,
    /// How often limits were reset here: what was refused before may pass.
    resets: AtomicU64,
    shards: Box<[Shard]>,
    clock: HostClock,
    host: Host,
}

/// A part of the leases, which are looked up far more often than any is added.
type Shard = ArcSwap<HashMap<LeaseKey, Arc<Lease>, SeedableRandomState>>;

/// What this node holds of one key.
pub(crate) struct Lease {
    place: LeaseKey,
    /// In the store.
    key: Box<str>,
    /// The holder's name in the store. Two leases of one key are two holders.
    holder: Identity,
    book: Book,
    numbers: Numbers,
    /// As the engine has it, to note what was spent.
    limit: Limit,
    /// Resets so far when the store was last asked.
    resets: AtomicU64,
    /// Held while more is asked for, which one task does at a time.
    asking: Arc<tokio::sync::Mutex<()>>,
}

impl Leases {
    pub(crate) fn new(
        store: Arc<Store>,
        local: Arc<Local<HostClock, HostWall>>,
        terms: Terms,
        host: Host,
    ) -> Self {
        // Its keys are fingerprints by a secret seed already.
        let hasher = SeedableRandomState::with_seed(host.random(), SharedSeed::global_fixed());
        let shard = |_| Shard::from_pointee(HashMap::with_hasher(hasher.clone()));
        let inner = Arc::new(Inner {
            store,
            terms,
            passing: Identity::new(&host),
            local,
            resets: AtomicU64::new(0),
            shards: (0..SHARDS).map(shard).collect(),
            clock: host.clock(),
            host,
        });
        let keeper = Arc::downgrade(&inner);
        inner.host.spawn(keep(keeper, terms.life / 4));
        Self { inner }
    }

    /// Spends a cost of what is held, if that can be decided without a question to the store.
    #[inline]
    pub(crate) fn try_spend(&self, place: LeaseKey, cost: u64) -> Option<Decision> {
        let shard = self.inner.shard(place).load();
        let lease = shard.get(&place)?;
        self.inner.try_spend(lease, cost)
    }

    /// Spends what the only check of a request costs, after asking the store for more if need be.
    pub(crate) async fn spend(
        &self,
        check: LeaseCheck<'_>,
        patience: &mut Patience,
    ) -> Result<Had, StoreError> {
        let cost = check.check.cost;
        if let Some(decision) = self.try_spend(check.lease_key(), cost) {
            return Ok(Had::known(decision, None));
        }
        let (lease, is_kept) = self.inner.find_or_make(check);
        let wants = if is_kept {
            Wants::More(cost)
        } else {
            Wants::Just(cost)
        };
        let (decision, _) = self.have(lease, cost, wants, None, patience).await?;
        Ok(Had::asked(decision, None))
    }

    /// Holds a cost until it is settled, and for so long at most: one record of this node and key in the store, however many
    /// requests hold some. The decision, and what holds it if it passed.
    pub(crate) async fn hold(
        &self,
        check: LeaseCheck<'_>,
        within: Duration,
        patience: &mut Patience,
    ) -> Result<(Decision, Option<Estimate>), StoreError> {
        let (lease, _) = self.inner.find_or_make(check);
        let (cost, until) = (check.check.cost, self.inner.clock.now() + within);
        self.have(lease, cost, Wants::More(cost), Some(until), patience)
            .await
    }

    /// Has a cost, of what is here or by asking the store.
    async fn have(
        &self,
        lease: Arc<Lease>,
        cost: u64,
        wants: Wants,
        hold: Option<Timestamp>,
        patience: &mut Patience,
    ) -> Result<(Decision, Option<Estimate>), StoreError> {
        let inner = &self.inner;
        let asking = async {
            loop {
                if let Some(had) = inner.try_have(&lease, cost, hold) {
                    return Ok(had);
                }
                let alone = Arc::clone(&lease.asking).lock_owned().await;
                // Another one may have asked meanwhile.
                if let Some(had) = inner.try_have(&lease, cost, hold) {
                    return Ok(had);
                }
                // A task of its own: what the store gives isn't lost if the caller gives up.
                let (asker, own) = (Arc::clone(inner), Arc::clone(&lease));
                let asked = inner.host.spawn(async move {
                    let asked = asker.ask(&own, wants, hold).await;
                    drop(alone);
                    asked
                });
                match asked.await.map_err(|_| StoreError::Stopped)?? {
                    Came::Enough(spent) => return Ok(spent.heard()),
                    Came::TooLittle(retry_after) => {
                        let left = lease.book.held(inner.clock.now());
                        if left.saturating_add(lease.book.spared()) >= cost {
                            // Some of what requests held came back meanwhile, here or there.
                            continue;
                        }
                        return Ok((lease.decision(Outcome::Denied, left, retry_after), None));
                    }
                    // Others have spent what was held, or it was over when the answer came.
                    Came::TooLate => {}
                }
            }
        };
        inner.wait(asking, patience).await
    }

    /// A limit was reset: what was refused is asked about again.
    pub(crate) fn was_reset(&self) {
        self.inner.resets.fetch_add(1, Ordering::Release);
    }

    /// What was spent of a lease and not noted, and what is left of it, which counts as spent from now on.
    pub(crate) fn spent_ahead(&self, place: LeaseKey) -> u64 {
        let shard = self.inner.shard(place).load();
        let lease = shard.get(&place);
        lease.map_or(0, |lease| lease.book.note_all(self.inner.clock.now()))
    }

    /// How much is held of all keys together.
    pub(crate) fn held(&self) -> u64 {
        let now = self.inner.clock.now();
        let leases = self.inner.all();
        leases.iter().map(|lease| lease.book.held(now)).sum()
    }

    /// Returns all that is held: whether the store has heard of it. What can't be returned runs out by itself.
    pub(crate) async fn close(&self) -> Gift {
        let returning = stream::iter(self.inner.all()).map(|lease| async move {
            let _asking = lease.asking.lock().await;
            let has_any = lease.book.is_unsaid(self.inner.clock.now());
            let asked = self.inner.ask(&lease, Wants::Nothing, None).await;
            if has_any && asked.is_err() {
                Gift::Lost
            } else {
                Gift::Given
            }
        });
        let returned = returning.buffer_unordered(AT_ONCE);
        returned
            .fold(Gift::Given, |all, one| async move { all.max(one) })
            .await
    }
}

impl Inner {
    /// Waits for what is asked of the store, for as long as the decision may take.
    async fn wait<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
        patience: &mut Patience,
    ) -> Result<T, StoreError> {
        match patience.wait(asking).await {
            Ok(came) => came,
            Err(why) => Err(self.store.gave_up(why)),
        }
    }

    #[inline]
    fn shard(&self, place: LeaseKey) -> &Shard {
        // Fingerprints are as evenly spread as random numbers.
        let number = usize::try_from(place.fingerprint[1] >> 58).unwrap_or(0);
        &self.shards[number % SHARDS]
    }

    /// The lease, and whether it is kept for others to find.
    fn find_or_make(&self, check: LeaseCheck<'_>) -> (Arc<Lease>, bool) {
        let place = check.lease_key();
        let shard = self.shard(place);
        if let Some(lease) = shard.load().get(&place) {
            return (Arc::clone(lease), true);
        }
        let lease = Arc::new(Lease {
            place,
            key: check.name(),
            holder: Identity::new(&self.host),
            book: Book::default(),
            numbers: check.leased.numbers,
            limit: check.check.limit.clone(),
            resets: AtomicU64::new(0),
            asking: Arc::default(),
        });
        let most = self.terms.most_keys.div_ceil(SHARDS);
        if shard.load().len() >= most {
            return (lease, false);
        }
        shard.rcu(|shard| {
            let mut more = HashMap::clone(shard);
            if more.len() < most {
                more.entry(place).or_insert_with(|| Arc::clone(&lease));
            }
            more
        });
        match shard.load().get(&place) {
            Some(kept) => (Arc::clone(kept), true),
            None => (lease, false),
        }
    }

    /// A holder as the store is told of it: a number below 2^53.
    fn holder(&self, holder: &Identity) -> u64 {
        (holder.number(&self.host) >> 11).max(1)
    }

    fn all(&self) -> Vec<Arc<Lease>> {
        let shards = self.shards.iter();
        let of = |shard: &Shard| shard.load().values().cloned().collect::<Vec<_>>();
        shards.flat_map(of).collect()
    }

    fn try_spend(self: &Arc<Self>, lease: &Arc<Lease>, cost: u64) -> Option<Decision> {
        let now = self.clock.now();
        self.never(lease, cost)
            .or_else(|| self.said(lease, now, lease.book.spend(now, cost)))
    }

    /// What is here of a cost, spent or held until then.
    fn try_have(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        cost: u64,
        hold: Option<Timestamp>,
    ) -> Option<(Decision, Option<Estimate>)> {
        let Some(until) = hold else {
            return Some((self.try_spend(lease, cost)?, None));
        };
        if let Some(never) = self.never(lease, cost) {
            return Some((never, None));
        }
        let now = self.clock.now();
        let (spent, number) = lease.book.hold(now, cost, until);
        let estimate = number.map(|number| Estimate::new(self, lease, number));
        Some((self.said(lease, now, spent)?, estimate))
    }

    /// The refusal of a cost that no bucket has room for.
    fn never(&self, lease: &Lease, cost: u64) -> Option<Decision> {
        let left = || lease.book.held(self.clock.now());
        let is_beyond = cost > lease.numbers.limit;
        is_beyond.then(|| lease.decision(Outcome::Never, left(), Duration::MAX))
    }

    /// What came of a cost, as it is told; nothing if the store has to be asked.
    fn said(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        now: Timestamp,
        spent: Spent,
    ) -> Option<Decision> {
        let zero = Duration::ZERO;
        match spent {
            Spent::Passed { left, runs_low } => {
                if runs_low {
                    self.renew_ahead(lease);
                }
                Some(lease.decision(Outcome::Allowed, left, zero))
            }
            Spent::Refused { left, until } => {
                let resets = self.resets.load(Ordering::Acquire);
                let holds = lease.resets.load(Ordering::Relaxed) == resets;
                holds.then(|| lease.decision(Outcome::Denied, left, until - now))
            }
            Spent::Unknown => None,
        }
    }

    fn put_back(&self, lease: &Lease, cost: u64, stamp: Stamp) {
        lease.book.put_back(self.clock.now(), cost, stamp);
    }
}

impl Lease {
    fn decision(&self, outcome: Outcome, left: u64, retry_after: Duration) -> Decision {
        let limit = self.numbers.limit;
        // If the store is asked about each request, what is left is what the store has.
        let there = match self.limit.counting() {
            Counting::Leased => 0,
            _ => self.book.spared(),
        };
        let (left, zero) = (left.saturating_add(there).min(limit), Duration::ZERO);
        Decision::new(outcome, limit, left, retry_after, zero)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("terms", &self.inner.terms)
            .finish_non_exhaustive()
    }
}
