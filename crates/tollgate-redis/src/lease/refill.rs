//! Asking the store for more tokens of a key, or returning some.

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

/// What came of asking for a cost.
pub(super) enum RefillOutcome {
    /// So much is left, and this is had.
    Enough(u64, LeaseHold),
    /// Not before this time has passed.
    NotEnough(Duration),
    /// It may be had, by asking again.
    Retry,
}

impl Leases {
    /// Asks for more before it is needed, off the path of requests.
    #[cold]
    pub(super) fn refill_in_background(self: &Arc<Self>, lease: &Arc<Lease>) {
        if !lease.book.begin_renewal() {
            return;
        }
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let _alone = lease.refill_lock.lock().await;
            // Another task may have asked meanwhile. If it fails, the next request that needs it asks.
            if lease.book.runs_low(asker.clock.now()) {
                let _ = asker.refill(&lease, RefillGoal::More(0), None).await;
            }
            lease.book.end_renewal();
        });
    }

    /// Whether a lease is kept for others to find: one beyond the most keys, or that was forgotten, isn't.
    pub(super) fn is_registered(&self, lease: &Arc<Lease>) -> bool {
        let shard = self.shard(lease.lease_key).load();
        let kept = shard.get(&lease.lease_key);
        kept.is_some_and(|kept| Arc::ptr_eq(kept, lease))
    }

    /// Returns what came back, and pays what is owed. Of several calls at once, the first does it for all.
    pub(super) fn report_in_background(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let _alone = lease.refill_lock.lock().await;
            if lease.book.has_unreported(asker.clock.now()) {
                // If it fails, the task that looks after leases tries again.
                let _ = asker.refill(&lease, RefillGoal::ReturnAll, None).await;
            }
        });
    }

    /// Returns what the store gave for one request alone, which didn't run.
    pub(super) fn return_transient_tokens(self: &Arc<Self>, lease: &Arc<Lease>, cost: u64) {
        let question = LeaseRequest {
            holder: self.holder(&self.transient_holder),
            returns: cost,
            ..LeaseRequest::anonymous(self.terms.duration)
        };
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let record = question.encode(&lease.numbers);
            // If the store can't be told, it runs out by itself.
            let _ = asker.store.lease(lease.key.clone(), record, None).await;
        });
    }

    /// What is done for leases beside the requests, a few times in each one's life: returns what isn't needed, holds on to
    /// what is, and forgets keys that nobody asks about.
    pub(super) async fn run_upkeep(self: &Arc<Self>) -> bool {
        let now = self.clock.now();
        for lease in self.all_leases() {
            // A request that asks for it now looks after it.
            let Ok(_asking) = lease.refill_lock.try_lock() else {
                continue;
            };
            let wants = match lease.book.needed_upkeep(now, self.terms.duration) {
                Upkeep::None => continue,
                Upkeep::Return => RefillGoal::ReturnAll,
                Upkeep::Renew => RefillGoal::Enough,
                Upkeep::Forget => {
                    // With it goes what is known of its tokens.
                    let (key, spent) = (lease.lease_key.fingerprint, lease.book.take_newly_spent());
                    self.local.record_spent(&lease.limit, key, spent);
                    // A request that has found it before still spends what it gets, and the next one asks anew.
                    self.shard(lease.lease_key).rcu(|shard| {
                        let mut fewer = HashMap::clone(shard);
                        fewer.remove(&lease.lease_key);
                        fewer
                    });
                    continue;
                }
            };
            if self.refill(&lease, wants, None).await.is_err() {
                // The others would fail too, and this comes round again soon.
                break;
            }
        }
        true
    }

    /// One call: says what is held, and takes or returns. What is wanted at least is spent before anyone else
    /// sees what came.
    pub(super) async fn refill(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        wants: RefillGoal,
        hold: Option<Timestamp>,
    ) -> Result<RefillOutcome, StoreError> {
        let numbers = lease.numbers;
        let resets = self.resets.load(Ordering::Acquire);
        let before = self.clock.now();
        // Noted now, so that it drains from now on if the store goes away.
        let key = lease.lease_key.fingerprint;
        self.local
            .record_spent(&lease.limit, key, lease.book.take_newly_spent());
        let check = Check::by_fingerprint(&lease.limit, key, 0);
        let owed = self.local.unreported_usage(&check);
        // If the store is asked about each request, nothing is taken ahead.
        let part = match lease.limit.counting() {
            Counting::Leased => (numbers.max_burst / self.terms.burst_divisor).max(1),
            _ => 0,
        };
        let forgiven = match wants {
            // First of what the store doesn't know of.
            RefillGoal::ForgiveOwed(tokens) => lease.book.forgive(tokens),
            _ => 0,
        };
        let asks = LeaseQuery::new(&lease.book, wants, before, part, numbers);
        let (holder, number) = match wants {
            // Several may be under way, in any order.
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
