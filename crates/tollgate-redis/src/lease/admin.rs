//! What operators do about a key: they forgive some of what it owes, or all, and look at what is left of it.
//!
//! What is out stays out, and owed: tokens in the bucket and tokens out are never more than the burst.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::{Clock, Decision, Outcome};

use super::Leases;
use super::request::{LeaseReply, LeaseRequest, RefillGoal};
use crate::error::StoreError;
use crate::store::RequestDeadline;
use crate::stored_limit::LeaseCheck;

impl Leases {
    /// Forgives so many tokens that are owed of a check's key, or all of them (`FORGIVE_ALL`). What this node has spent is told in the same call, so that it is
    /// forgiven too; what other nodes have spent and not told stays owed.
    pub(crate) async fn forgive(
        self: &Arc<Self>,
        check: LeaseCheck<'_>,
        forgiven: u64,
        patience: &mut RequestDeadline,
    ) -> Result<(), StoreError> {
        let done = self.forgive_owed(check, forgiven, patience).await;
        // A limit was reset, even if that failed: what was refused is asked about again.
        self.resets.fetch_add(1, Ordering::Release);
        done
    }

    async fn forgive_owed(
        self: &Arc<Self>,
        check: LeaseCheck<'_>,
        forgiven: u64,
        patience: &mut RequestDeadline,
    ) -> Result<(), StoreError> {
        let place = check.lease_key();
        let lease = self.shard(place).load().get(&place).cloned();
        let Some(lease) = lease else {
            let question = LeaseRequest {
                forgiven,
                ..LeaseRequest::anonymous(self.terms.duration)
            };
            return self.ask_alone(check, question, patience).await.map(drop);
        };
        let asking = async {
            let alone = Arc::clone(&lease.refill_lock).lock_owned().await;
            // A task of its own: what the store gives isn't lost if the caller gives up.
            let asker = Arc::clone(self);
            let asked = self.host.spawn(async move {
                // What is here goes back, so that it is there for whoever asks first.
                let asked = asker
                    .refill(&lease, RefillGoal::ForgiveOwed(forgiven), None)
                    .await;
                drop(alone);
                asked
            });
            asked.await.map_err(|_| StoreError::Stopped)?.map(drop)
        };
        patience.wait(asking).await
    }

    /// What a cost would be told, of what is here and in the store: nothing is taken.
    pub(crate) async fn peek(
        &self,
        check: LeaseCheck<'_>,
        patience: &mut RequestDeadline,
    ) -> Result<Decision, StoreError> {
        let place = check.lease_key();
        let (cost, limit) = (check.check.cost, check.numbers.max_burst);
        let here = match self.shard(place).load().get(&place) {
            Some(lease) => lease.book.held(self.clock.now()),
            None => 0,
        };
        let question = LeaseRequest {
            least: cost.saturating_sub(here).min(limit),
            ..LeaseRequest::anonymous(self.terms.duration)
        };
        let reply = self.ask_alone(check, question, patience).await?;
        let left = here.saturating_add(reply.remaining).min(limit);
        let (outcome, wait) = match cost {
            cost if cost > limit => (Outcome::Never, Duration::MAX),
            cost if cost > left => (Outcome::Denied, reply.retry_after),
            _ => (Outcome::Allowed, Duration::ZERO),
        };
        Ok(Decision::new(outcome, limit, left, wait, Duration::ZERO))
    }

    /// Asks the store about a key in the name of nobody.
    async fn ask_alone(
        &self,
        check: LeaseCheck<'_>,
        question: LeaseRequest,
        patience: &mut RequestDeadline,
    ) -> Result<LeaseReply, StoreError> {
        let record = question.encode(&check.numbers);
        let asking = self.store.lease(check.store_key(), record, None);
        LeaseReply::parse(&patience.wait(asking).await?)
    }
}
