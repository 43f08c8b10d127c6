//! Forgiving what is owed of a key: an operator gives some of it back, or all.
//!
//! What is out stays out, and owed: tokens in the bucket and tokens out are never more than the burst.

use std::sync::Arc;

use tollgate_engine::backend::Check;

use super::asks::Wants;
use super::said::{EVERYTHING, Lent, Lessee};
use super::{LeaseKey, Leased, Leases};
use crate::error::StoreError;
use crate::store::Patience;

/// How much is forgiven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgiven {
    Tokens(u64),
    All,
}

impl Forgiven {
    pub(super) fn tokens(self) -> u64 {
        match self {
            Self::Tokens(tokens) => tokens.min(EVERYTHING - 1),
            Self::All => EVERYTHING,
        }
    }
}

impl Leases {
    /// Forgives what is owed of a check's key. What this node has spent is told in the same call, so that it is
    /// forgiven too; what other nodes have spent and not told stays owed.
    pub(crate) async fn forgive(
        &self,
        check: &Check<'_>,
        limit: &Leased,
        (key, forgiven): (impl FnOnce() -> Box<str>, Forgiven),
        patience: &mut Patience,
    ) -> Result<(), StoreError> {
        let inner = &self.inner;
        let place = LeaseKey::of(limit, check);
        let lease = inner.shard(place).load().get(&place).cloned();
        let Some(lease) = lease else {
            let question = Lessee {
                forgiven: forgiven.tokens(),
                ..Lessee::of_nobody(inner.terms.life)
            };
            let asking = inner
                .store
                .lease(key(), question.record(&limit.numbers), None);
            return match patience.wait(asking).await {
                Ok(reply) => Lent::read(&reply?).map(drop),
                Err(why) => Err(inner.store.gave_up(why)),
            };
        };
        let asking = async {
            let alone = Arc::clone(&lease.asking).lock_owned().await;
            // A task of its own: what the store gives isn't lost if the caller gives up.
            let asker = Arc::clone(inner);
            let asked = inner.host.spawn(async move {
                // What is here goes back, so that it is there for whoever asks first.
                let wants = (Wants::Nothing, None);
                let asked = asker.ask_and_forgive(&lease, wants, forgiven).await;
                drop(alone);
                asked
            });
            asked.await.map_err(|_| StoreError::Stopped)?.map(drop)
        };
        match patience.wait(asking).await {
            Ok(done) => done,
            Err(why) => Err(inner.store.gave_up(why)),
        }
    }
}
