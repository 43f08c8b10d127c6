//! What operators do with a leased key: forgive some or all of its debt, and peek at what remains.
//!
//! Leased tokens stay out, and stay owed: tokens in the bucket and tokens out are together never more than the
//! burst.

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
    /// Forgives this many tokens that a check's key owes, or all of them (`FORGIVE_ALL`). The same call reports
    /// what this node has spent, so that it is forgiven too. What other nodes have spent and not reported stays
    /// owed.
    pub(crate) async fn forgive(
        self: &Arc<Self>,
        check: LeaseCheck<'_>,
        forgiven: u64,
        patience: &mut RequestDeadline,
    ) -> Result<(), StoreError> {
        let done = self.forgive_owed(check, forgiven, patience).await;
        // The reset counts even if the query fails: earlier denials are no longer repeated.
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
            // The query is a task of its own, so granted tokens aren't lost if the caller is cancelled.
            let asker = Arc::clone(self);
            let asked = self.host.spawn(async move {
                // The tokens here go back to the store, where they are available to every node.
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

    /// What a cost would get from the tokens here and in the store, without taking any.
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

    /// Queries the store about a key, as a holder without tokens.
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
