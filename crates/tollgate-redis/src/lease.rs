//! Leases: tokens that this node has taken from the store, and spends without a query.
//!
//! Tokens that are out don't drain in the store, so the fleet never exceeds a limit, whatever its nodes do with
//! their leases. A node measures a lease's duration on its own clock from *before* the query, so no two clocks
//! are compared, and it stops spending before the store counts the tokens as lost.

mod admin;
mod book;
mod hold;
mod refill;
mod request;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use derive_more::Debug;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use futures_util::stream::{self, StreamExt};
use tollgate::{Clock, Decision, Outcome, Timestamp};
use tollgate_engine::backend::{Limit, RefundResult};
use tollgate_engine::policy::Counting;

use crate::error::StoreError;
use crate::host::{Host, HostClock, HostWall, ProcessIdentity};
use crate::local_limits::LocalLimits;
use crate::query::LimitParams;
use crate::store::{RequestDeadline, Store};
use crate::stored_limit::{LeaseCheck, LeaseKey};

pub(crate) use book::SpendStamp;
use book::{LeaseBook, SpendOutcome};
use hold::HoldKind;
pub(crate) use hold::{AdjustableCharge, LeaseHold};
use refill::RefillOutcome;
pub(crate) use request::FORGIVE_ALL;
use request::RefillGoal;

const SHARDS: usize = 64;
/// Concurrent queries when all leases are returned.
const MAX_CONCURRENT_RETURNS: usize = 64;

/// The terms on which leases are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    /// For how long tokens are leased.
    pub(crate) duration: Duration,
    /// A node holds at most the burst divided by this.
    pub(crate) burst_divisor: u64,
    /// How many keys may have a lease in this process.
    pub(crate) max_keys: usize,
}

/// All leases of this node.
#[derive(Debug)]
#[debug("Leases({terms:?})")]
pub(crate) struct Leases {
    store: Arc<Store>,
    terms: LeaseTerms,
    /// The holder for tokens that are spent immediately and not kept.
    transient_holder: ProcessIdentity,
    /// This process's share of the limits, which records what is spent.
    local: Arc<LocalLimits<HostClock, HostWall>>,
    /// How often limits were reset by this process. A denial from before a reset may be outdated.
    resets: AtomicU64,
    shards: Box<[Shard]>,
    clock: HostClock,
    host: Host,
}

/// A shard of the leases. Lookups are far more frequent than insertions, so each insertion copies the map.
type Shard = ArcSwap<HashMap<LeaseKey, Arc<Lease>, SeedableRandomState>>;

/// The lease of one key on this node.
pub(crate) struct Lease {
    lease_key: LeaseKey,
    /// The key in the store.
    key: Box<str>,
    /// The holder's name in the store. Two leases of one key are two holders.
    holder: ProcessIdentity,
    book: LeaseBook,
    numbers: LimitParams,
    /// The engine's limit, to record what was spent.
    limit: Limit,
    /// The number of resets when the store was last queried.
    resets: AtomicU64,
    /// Held during a refill: one task at a time refills.
    refill_lock: Arc<tokio::sync::Mutex<()>>,
}

/// When a request's tokens are spent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChargeTiming {
    /// Immediately: no other limit can deny the request.
    Now,
    /// Once all limits of the request have allowed it.
    WhenAllPass,
    /// Once the request's actual cost is known, or after this duration.
    Estimate(Duration),
}

/// The result of taking a cost from a lease.
pub(crate) struct TakenTokens {
    pub(crate) decision: Decision,
    /// Whether the decision needed no query.
    pub(crate) is_known: bool,
    /// The tokens that were taken and aren't spent yet.
    pub(crate) hold: Option<LeaseHold>,
}

impl Leases {
    pub(crate) fn new(
        store: Arc<Store>,
        local: Arc<LocalLimits<HostClock, HostWall>>,
        terms: LeaseTerms,
        host: Host,
    ) -> Arc<Self> {
        // The keys are already fingerprints with a secret seed.
        let hasher = SeedableRandomState::with_seed(host.random(), SharedSeed::global_fixed());
        let shard = |_| Shard::from_pointee(HashMap::with_hasher(hasher.clone()));
        let leases = Arc::new(Self {
            store,
            terms,
            transient_holder: ProcessIdentity::new(&host),
            local,
            resets: AtomicU64::new(0),
            shards: (0..SHARDS).map(shard).collect(),
            clock: host.clock(),
            host,
        });
        let keep = async |leases: Arc<Self>| leases.run_upkeep().await;
        leases.host.spawn_every(terms.duration / 4, &leases, keep);
        leases
    }

    /// Spends a cost from the lease, if that can be decided without a query.
    #[inline]
    pub(crate) fn try_spend(self: &Arc<Self>, place: LeaseKey, cost: u64) -> Option<Decision> {
        let shard = self.shard(place).load();
        let lease = shard.get(&place)?;
        self.spend(lease, cost)
    }

    /// What [`try_spend`](Self::try_spend) would decide, without spending anything.
    pub(crate) fn peek_held(self: &Arc<Self>, place: LeaseKey, cost: u64) -> Option<Decision> {
        let shard = self.shard(place).load();
        let (lease, now) = (shard.get(&place)?, self.clock.now());
        let said = || self.decision_of(lease, now, lease.book.peek(now, cost));
        self.never_decision(lease, cost).or_else(said)
    }

    /// Spends a cost from the lease, to be [restored](Self::restore) if another limit of the same request
    /// denies.
    pub(crate) fn try_spend_revocable(
        self: &Arc<Self>,
        place: LeaseKey,
        cost: u64,
    ) -> Option<(Decision, SpendStamp)> {
        let shard = self.shard(place).load();
        let lease = shard.get(&place)?;
        let stamp = lease.book.stamp(self.clock.now());
        let said = self.spend(lease, cost)?;
        said.is_allowed().then_some((said, stamp))
    }

    /// Puts back what was spent of a lease.
    pub(crate) fn restore(&self, place: LeaseKey, cost: u64, stamp: SpendStamp) {
        if let Some(lease) = self.shard(place).load().get(&place) {
            lease.book.restore(self.clock.now(), cost, stamp);
        }
    }

    /// Puts back what a cancelled request has spent, after all of its limits had allowed it.
    pub(crate) fn restore_after_report(&self, place: LeaseKey, cost: u64) {
        if let Some(lease) = self.shard(place).load().get(&place) {
            lease.book.restore_after_report(cost, self.clock.now());
        }
    }

    /// Takes a check's cost from its lease, after a refill if necessary. A node has one record for each key in
    /// the store, however many requests hold tokens of it.
    pub(crate) async fn take(
        self: &Arc<Self>,
        check: LeaseCheck<'_>,
        charge: ChargeTiming,
        patience: &mut RequestDeadline,
    ) -> Result<TakenTokens, StoreError> {
        let (place, cost) = (check.lease_key(), check.check.cost);
        let until = match charge {
            ChargeTiming::Now => None,
            ChargeTiming::WhenAllPass => Some(Timestamp::MAX),
            ChargeTiming::Estimate(within) => Some(self.clock.now() + within),
        };
        // The shard isn't borrowed across the query.
        let had = {
            let here = self.shard(place).load();
            (here.get(&place)).and_then(|lease| self.try_take(lease, cost, until))
        };
        if let Some((decision, hold)) = had {
            return Ok(TakenTokens {
                decision,
                is_known: true,
                hold,
            });
        }
        let (lease, is_registered) = self.get_or_create(check);
        let (wants, until) = match charge {
            ChargeTiming::Now | ChargeTiming::WhenAllPass if !is_registered => {
                (RefillGoal::Exactly(cost), None)
            }
            _ => (RefillGoal::More(cost), until),
        };
        let (decision, mut hold) = self
            .take_or_refill(lease, cost, wants, until, patience)
            .await?;
        if matches!(charge, ChargeTiming::Now) {
            hold.take().into_iter().for_each(LeaseHold::spend);
        }
        Ok(TakenTokens {
            decision,
            is_known: false,
            hold,
        })
    }

    /// Takes a cost from the lease, or refills it first.
    async fn take_or_refill(
        self: &Arc<Self>,
        lease: Arc<Lease>,
        cost: u64,
        wants: RefillGoal,
        hold: Option<Timestamp>,
        patience: &mut RequestDeadline,
    ) -> Result<(Decision, Option<LeaseHold>), StoreError> {
        let asking = async {
            loop {
                if let Some(had) = self.try_take(&lease, cost, hold) {
                    return Ok(had);
                }
                let alone = Arc::clone(&lease.refill_lock).lock_owned().await;
                // Another task may have refilled the lease in the meantime.
                if let Some(had) = self.try_take(&lease, cost, hold) {
                    return Ok(had);
                }
                // The refill is a task of its own, so granted tokens aren't lost if the caller is cancelled.
                let (asker, own) = (Arc::clone(self), Arc::clone(&lease));
                let asked = self.host.spawn(async move {
                    let asked = asker.refill(&own, wants, hold).await;
                    drop(alone);
                    asked
                });
                match asked.await.map_err(|_| StoreError::Stopped)?? {
                    RefillOutcome::Enough(left, had) => {
                        let decision = lease.decision(Outcome::Allowed, left, Duration::ZERO);
                        return Ok((decision, Some(had)));
                    }
                    RefillOutcome::NotEnough(retry_after) => {
                        let left = lease.book.held(self.clock.now());
                        if left.saturating_add(lease.book.store_remaining()) >= cost {
                            // Other requests have released some in the meantime, here or in the store.
                            continue;
                        }
                        return Ok((lease.decision(Outcome::Denied, left, retry_after), None));
                    }
                    // Other requests have spent the tokens, or the lease had expired when the reply came.
                    RefillOutcome::Retry => {}
                }
            }
        };
        patience.wait(asking).await
    }

    /// Tokens of a lease that were spent and not recorded yet, and those that remain, which count as spent from
    /// now on.
    pub(crate) fn take_unreported_spending(&self, place: LeaseKey) -> u64 {
        let shard = self.shard(place).load();
        let lease = shard.get(&place);
        lease.map_or(0, |lease| lease.book.take_all_as_spent(self.clock.now()))
    }

    /// The tokens held of all keys together.
    pub(crate) fn held_tokens(&self) -> u64 {
        let now = self.clock.now();
        let leases = self.all_leases();
        leases.iter().map(|lease| lease.book.held(now)).sum()
    }

    /// Returns all tokens to the store, and whether the store got them. Tokens that can't be returned expire by
    /// themselves.
    pub(crate) async fn close(self: &Arc<Self>) -> RefundResult {
        let returning = stream::iter(self.all_leases()).map(|lease| async move {
            let _asking = lease.refill_lock.lock().await;
            let has_any = lease.book.has_unreported(self.clock.now());
            let asked = self.refill(&lease, RefillGoal::ReturnAll, None).await;
            if has_any && asked.is_err() {
                RefundResult::Lost
            } else {
                RefundResult::Refunded
            }
        });
        let returned = returning.buffer_unordered(MAX_CONCURRENT_RETURNS);
        returned
            .fold(
                RefundResult::Refunded,
                |all, one| async move { all.max(one) },
            )
            .await
    }

    #[inline]
    fn shard(&self, place: LeaseKey) -> &Shard {
        // Fingerprints are as evenly spread as random numbers, so 6 bits choose the shard.
        let number = usize::try_from(place.fingerprint[1] >> 58).unwrap_or(0);
        &self.shards[number % SHARDS]
    }

    /// The lease, and whether it is registered for other requests to find.
    fn get_or_create(&self, check: LeaseCheck<'_>) -> (Arc<Lease>, bool) {
        let place = check.lease_key();
        let shard = self.shard(place);
        if let Some(lease) = shard.load().get(&place) {
            return (Arc::clone(lease), true);
        }
        let lease = Arc::new(Lease {
            lease_key: place,
            key: check.store_key(),
            holder: ProcessIdentity::new(&self.host),
            book: LeaseBook::default(),
            numbers: check.numbers,
            limit: check.check.limit.clone(),
            resets: AtomicU64::new(0),
            refill_lock: Arc::default(),
        });
        let most = self.terms.max_keys.div_ceil(SHARDS);
        if shard.load().len() >= most {
            return (lease, false);
        }
        shard.rcu(|shard| {
            // This closure may run several times, so it checks the bound for each map that it sees.
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

    /// The holder's identity as the store gets it: a number from 1 to 2^53.
    fn holder(&self, holder: &ProcessIdentity) -> u64 {
        (holder.number(&self.host) >> 11).max(1)
    }

    fn all_leases(&self) -> Vec<Arc<Lease>> {
        let shards = self.shards.iter();
        let of = |shard: &Shard| shard.load().values().cloned().collect::<Vec<_>>();
        shards.flat_map(of).collect()
    }

    fn spend(self: &Arc<Self>, lease: &Arc<Lease>, cost: u64) -> Option<Decision> {
        let now = self.clock.now();
        self.never_decision(lease, cost)
            .or_else(|| self.decision_of(lease, now, lease.book.spend(now, cost)))
    }

    /// Takes a cost from the tokens that are here: spent immediately, or held until then.
    fn try_take(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        cost: u64,
        hold: Option<Timestamp>,
    ) -> Option<(Decision, Option<LeaseHold>)> {
        let Some(until) = hold else {
            return Some((self.spend(lease, cost)?, None));
        };
        if let Some(never) = self.never_decision(lease, cost) {
            return Some((never, None));
        }
        let now = self.clock.now();
        let (spent, number) = lease.book.hold(now, cost, until);
        let hold = number.map(|number| self.hold(lease, cost, HoldKind::Held(number)));
        Some((self.decision_of(lease, now, spent)?, hold))
    }

    fn hold(self: &Arc<Self>, lease: &Arc<Lease>, cost: u64, claim: HoldKind) -> LeaseHold {
        LeaseHold {
            leases: Arc::clone(self),
            lease: Arc::clone(lease),
            cost,
            claim: Some(claim),
        }
    }

    /// The denial of a cost that exceeds the burst.
    fn never_decision(&self, lease: &Lease, cost: u64) -> Option<Decision> {
        let left = || lease.book.held(self.clock.now());
        let is_beyond = cost > lease.numbers.max_burst;
        is_beyond.then(|| lease.decision(Outcome::Never, left(), Duration::MAX))
    }

    /// The decision for a spending's outcome; `None` if the store has to be queried.
    fn decision_of(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        now: Timestamp,
        spent: SpendOutcome,
    ) -> Option<Decision> {
        let zero = Duration::ZERO;
        match spent {
            SpendOutcome::Passed { left, runs_low } => {
                if runs_low {
                    self.refill_in_background(lease);
                }
                Some(lease.decision(Outcome::Allowed, left, zero))
            }
            SpendOutcome::Denied { left, until } => {
                let resets = self.resets.load(Ordering::Acquire);
                let holds = lease.resets.load(Ordering::Relaxed) == resets;
                holds.then(|| lease.decision(Outcome::Denied, left, until - now))
            }
            SpendOutcome::Unknown => None,
        }
    }
}

impl Lease {
    fn decision(&self, outcome: Outcome, left: u64, retry_after: Duration) -> Decision {
        let limit = self.numbers.max_burst;
        // A limit that queries the store for each request has its remaining tokens there.
        let there = match self.limit.counting() {
            Counting::Leased => 0,
            _ => self.book.store_remaining(),
        };
        let (left, zero) = (left.saturating_add(there).min(limit), Duration::ZERO);
        Decision::new(outcome, limit, left, retry_after, zero)
    }
}
