//! Looking at a lease and at what it is of, without taking any.

use std::time::Duration;

use tollgate::{Clock, Decision, Outcome};
use tollgate_engine::backend::Check;

use super::said::{Lent, Lessee};
use super::{LeaseKey, Leased, Leases};
use crate::error::StoreError;
use crate::store::Patience;

impl Leases {
    /// What a cost would be told, of what is here and in the store: nothing is taken.
    pub(crate) async fn look(
        &self,
        check: &Check<'_>,
        limit: &Leased,
        key: impl FnOnce() -> Box<str>,
        patience: &mut Patience,
    ) -> Result<Decision, StoreError> {
        let (inner, numbers) = (&self.inner, limit.numbers);
        let place = LeaseKey::of(limit, check);
        let here = match inner.shard(place).load().get(&place) {
            Some(lease) => lease.book.held(inner.clock.now()),
            None => 0,
        };
        let least = check.cost.saturating_sub(here).min(numbers.limit);
        let question = Lessee {
            least,
            ..Lessee::of_nobody(inner.terms.life)
        };
        let asking = inner.store.lease(key(), question.record(&numbers), None);
        let reply = match patience.wait(asking).await {
            Ok(reply) => Lent::read(&reply?)?,
            Err(why) => return Err(inner.store.gave_up(why)),
        };
        let limit = numbers.limit;
        let left = here.saturating_add(reply.remaining).min(limit);
        let (outcome, wait) = match check.cost {
            cost if cost > limit => (Outcome::Never, Duration::MAX),
            cost if cost > left => (Outcome::Denied, reply.retry_after),
            _ => (Outcome::Allowed, Duration::ZERO),
        };
        Ok(Decision::new(outcome, limit, left, wait, Duration::ZERO))
    }
}
