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
    TooLittle(Duration),
    /// It may be had, by asking again.
    TooLate,
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
            let _alone = lease.asking.lock().await;
            // Another task may have asked meanwhile. If it fails, the next request that needs it asks.
            if lease.book.runs_low(asker.clock.now()) {
                let _ = asker.ask(&lease, RefillGoal::More(0), None).await;
            }
            lease.book.end_renewal();
        });
    }

    /// Whether a lease is kept for others to find: one beyond the most keys, or that was forgotten, isn't.
    pub(super) fn keeps(&self, lease: &Arc<Lease>) -> bool {
        let shard = self.shard(lease.place).load();
        let kept = shard.get(&lease.place);
        kept.is_some_and(|kept| Arc::ptr_eq(kept, lease))
    }

    /// Returns what came back, and pays what is owed. Of several calls at once, the first does it for all.
    pub(super) fn tell(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let _alone = lease.asking.lock().await;
            if lease.book.has_unreported(asker.clock.now()) {
                // If it fails, the task that looks after leases tries again.
                let _ = asker.ask(&lease, RefillGoal::Nothing, None).await;
            }
        });
    }

    /// Returns what the store gave for one request alone, which didn't run.
    pub(super) fn return_transient_tokens(self: &Arc<Self>, lease: &Arc<Lease>, cost: u64) {
        let question = LeaseRequest {
            holder: self.holder(&self.passing),
            returns: cost,
            ..LeaseRequest::of_nobody(self.terms.life)
        };
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let record = question.record(&lease.numbers);
            // If the store can't be told, it runs out by itself.
            let _ = asker.store.lease(lease.key.clone(), record, None).await;
        });
    }

    /// What is done for leases beside the requests, a few times in each one's life: returns what isn't needed, holds on to
    /// what is, and forgets keys that nobody asks about.
    pub(super) async fn keep(self: &Arc<Self>) -> bool {
        let now = self.clock.now();
        for lease in self.all() {
            // A request that asks for it now looks after it.
            let Ok(_asking) = lease.asking.try_lock() else {
                continue;
            };
            let wants = match lease.book.look_after(now, self.terms.life) {
                Upkeep::None => continue,
                Upkeep::Return => RefillGoal::Nothing,
                Upkeep::Renew => RefillGoal::Enough,
                Upkeep::Forget => {
                    // With it goes what is known of its tokens.
                    let (key, spent) = (lease.place.fingerprint, lease.book.note_spent());
                    self.local.note_spent(&lease.limit, key, spent);
                    // A request that has found it before still spends what it gets, and the next one asks anew.
                    self.shard(lease.place).rcu(|shard| {
                        let mut fewer = HashMap::clone(shard);
                        fewer.remove(&lease.place);
                        fewer
                    });
                    continue;
                }
            };
            if self.ask(&lease, wants, None).await.is_err() {
                // The others would fail too, and this comes round again soon.
                break;
            }
        }
        true
    }

    /// One call: says what is held, and takes or returns. What is wanted at least is spent before anyone else
    /// sees what came.
    pub(super) async fn ask(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        wants: RefillGoal,
        hold: Option<Timestamp>,
    ) -> Result<RefillOutcome, StoreError> {
        let numbers = lease.numbers;
        let resets = self.resets.load(Ordering::Acquire);
        let before = self.clock.now();
        // Noted now, so that it drains from now on if the store goes away.
        let key = lease.place.fingerprint;
        self.local
            .note_spent(&lease.limit, key, lease.book.note_spent());
        let check = Check::by_fingerprint(&lease.limit, key, 0);
        let owed = self.local.owed(&check);
        // If the store is asked about each request, nothing is taken ahead.
        let part = match lease.limit.counting() {
            Counting::Leased => (numbers.limit / self.terms.part).max(1),
            _ => 0,
        };
        let forgiven = match wants {
            // First of what the store doesn't know of.
            RefillGoal::Forgiveness(tokens) => lease.book.forgive(tokens),
            _ => 0,
        };
        let asks = LeaseQuery::new(&lease.book, wants, before, part, numbers);
        let (holder, number) = match wants {
            // Several may be under way, in any order.
            RefillGoal::Just(_) => (self.holder(&self.passing), 0),
            _ => (self.holder(&lease.holder), lease.book.plans()),
        };
        let question = asks.question(LeaseRequest {
            holder,
            number,
            spent: owed.as_ref().map_or(0, |owed| numbers.owed(owed)),
            forgiven,
            ..LeaseRequest::of_nobody(self.terms.life)
        });
        let record = question.record(&numbers);
        let reply = self.store.lease(lease.key.clone(), record, None).await?;
        let reply = LeaseReply::read(&reply)?;
        if let Some(owed) = &owed {
            self.local.told(&check, owed);
        }
        let (least, granted) = (asks.least, asks.granted(&reply, before + self.terms.life));
        lease.resets.store(resets, Ordering::Relaxed);
        let spent = lease.book.take(self.clock.now(), &granted, least, hold);
        let stamp = lease.book.stamp(before);
        Ok(match spent {
            Some((left, number)) => {
                let claim = number.map_or(HoldKind::Spent(stamp), HoldKind::Held);
                RefillOutcome::Enough(left, self.hold(lease, least, claim))
            }
            None if asks.is_too_little(&reply) => RefillOutcome::TooLittle(granted.retry_after),
            None => RefillOutcome::TooLate,
        })
    }
}
