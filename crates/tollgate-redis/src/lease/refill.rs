//! Refills: queries to the store that lease more tokens of a key, or return some.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::{Clock, Timestamp};
use tollgate_engine::backend::Check;
use tollgate_engine::policy::Counting;

use super::book::Upkeep;
use super::hold::HoldKind;
use super::request::{LeaseQuery, LeaseReply, LeaseRequest, RefillGoal};
use super::{Lease, LeaseHold, Leases};
use crate::error::StoreError;

/// The outcome of a refill.
pub(super) enum RefillOutcome {
    /// These tokens remain, and the request holds its cost.
    Enough(u64, LeaseHold),
    /// There are too few tokens before this time has passed.
    NotEnough(Duration),
    /// Another attempt may get them.
    Retry,
}

impl Leases {
    /// Refills before tokens run out, off the path of requests.
    #[cold]
    pub(super) fn refill_in_background(self: &Arc<Self>, lease: &Arc<Lease>) {
        if !lease.book.begin_renewal() {
            return;
        }
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let _alone = lease.refill_lock.lock().await;
            // Another task may have refilled the lease in the meantime. If this refill fails, the next request
            // that needs it queries the store.
            if lease.book.runs_low(asker.clock.now()) {
                let _ = asker.refill(&lease, RefillGoal::More(0), None).await;
            }
            lease.book.end_renewal();
        });
    }

    /// Whether a lease is registered for other requests to find. One beyond the maximum number of keys isn't,
    /// nor one that was forgotten.
    pub(super) fn is_registered(&self, lease: &Arc<Lease>) -> bool {
        let shard = self.shard(lease.lease_key).load();
        let kept = shard.get(&lease.lease_key);
        kept.is_some_and(|kept| Arc::ptr_eq(kept, lease))
    }

    /// Returns tokens that came back, and pays what is owed. Of several concurrent calls, the first does it for
    /// all.
    pub(super) fn report_in_background(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let _alone = lease.refill_lock.lock().await;
            if lease.book.has_unreported(asker.clock.now()) {
                // If it fails, the maintenance task tries again.
                let _ = asker.refill(&lease, RefillGoal::ReturnAll, None).await;
            }
        });
    }

    /// Returns tokens that were granted for one request alone, which didn't run.
    pub(super) fn return_transient_tokens(self: &Arc<Self>, lease: &Arc<Lease>, cost: u64) {
        let question = LeaseRequest {
            holder: self.holder(&self.transient_holder),
            returns: cost,
            ..LeaseRequest::anonymous(self.terms.duration)
        };
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let record = question.encode(&lease.numbers);
            // If the store is unreachable, they expire by themselves.
            let _ = asker.store.lease(lease.key.clone(), record, None).await;
        });
    }

    /// Maintains the leases beside the requests, a few times in each lease's duration: returns unneeded tokens,
    /// renews the others, and forgets keys without requests. Returns whether it should go on.
    pub(super) async fn run_upkeep(self: &Arc<Self>) -> bool {
        let now = self.clock.now();
        for lease in self.all_leases() {
            // A request that refills the lease maintains it.
            let Ok(_asking) = lease.refill_lock.try_lock() else {
                continue;
            };
            let wants = match lease.book.needed_upkeep(now, self.terms.duration) {
                Upkeep::None => continue,
                Upkeep::Return => RefillGoal::ReturnAll,
                Upkeep::Renew => RefillGoal::Enough,
                Upkeep::Forget => {
                    // Removing the lease loses its count of spent tokens, so record it first.
                    let (key, spent) = (lease.lease_key.fingerprint, lease.book.take_newly_spent());
                    self.local.record_spent(&lease.limit, key, spent);
                    // A request that looked up the lease before spends what it gets, and the next one creates a
                    // new lease.
                    self.shard(lease.lease_key).rcu(|shard| {
                        let mut fewer = HashMap::clone(shard);
                        fewer.remove(&lease.lease_key);
                        fewer
                    });
                    continue;
                }
            };
            if self.refill(&lease, wants, None).await.is_err() {
                // The others would fail too, and the next round is soon.
                break;
            }
        }
        true
    }

    /// One query: reports what is held, and leases or returns tokens. The request's own cost is spent before
    /// any other request sees the grant.
    pub(super) async fn refill(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        wants: RefillGoal,
        hold: Option<Timestamp>,
    ) -> Result<RefillOutcome, StoreError> {
        let numbers = lease.numbers;
        let resets = self.resets.load(Ordering::Acquire);
        let before = self.clock.now();
        // Recorded now, so that it drains from now on if the store becomes unreachable.
        let key = lease.lease_key.fingerprint;
        self.local
            .record_spent(&lease.limit, key, lease.book.take_newly_spent());
        let check = Check::by_fingerprint(&lease.limit, key, 0);
        let owed = self.local.unreported_usage(&check);
        // A limit that queries the store for each request leases nothing in advance.
        let part = match lease.limit.counting() {
            Counting::Leased => (numbers.max_burst / self.terms.burst_divisor).max(1),
            _ => 0,
        };
        let forgiven = match wants {
            // Forgive what the store doesn't know of first.
            RefillGoal::ForgiveOwed(tokens) => lease.book.forgive(tokens),
            _ => 0,
        };
        let asks = LeaseQuery::new(&lease.book, wants, before, part, numbers);
        let (holder, number) = match wants {
            // Several of these may be in flight, and arrive in any order.
            RefillGoal::Exactly(_) => (self.holder(&self.transient_holder), 0),
            _ => (self.holder(&lease.holder), lease.book.plan_count()),
        };
        let question = asks.request_for(LeaseRequest {
            holder,
            number,
            spent: owed.as_ref().map_or(0, |owed| numbers.owed_units(owed)),
            forgiven,
            ..LeaseRequest::anonymous(self.terms.duration)
        });
        let record = question.encode(&numbers);
        let reply = self.store.lease(lease.key.clone(), record, None).await?;
        let reply = LeaseReply::parse(&reply)?;
        if let Some(owed) = &owed {
            self.local.mark_reported(&check, owed);
        }
        let (least, granted) = (
            asks.least,
            asks.grant_until(&reply, before + self.terms.duration),
        );
        lease.resets.store(resets, Ordering::Relaxed);
        let spent = lease.book.take(self.clock.now(), &granted, least, hold);
        let stamp = lease.book.stamp(before);
        Ok(match spent {
            Some((left, number)) => {
                let claim = number.map_or(HoldKind::Spent(stamp), HoldKind::Held);
                RefillOutcome::Enough(left, self.hold(lease, least, claim))
            }
            None if asks.is_too_little(&reply) => RefillOutcome::NotEnough(granted.retry_after),
            None => RefillOutcome::Retry,
        })
    }
}
