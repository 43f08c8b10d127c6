//! What is done for leases beside the requests: a few times in each one's life.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use tollgate::Clock;

use super::book::Care;
use super::{Inner, Wants};

/// Returns what isn't needed, holds on to what is, and forgets keys that nobody asks about.
pub(super) async fn keep(leases: Weak<Inner>, every: Duration) {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(inner) = leases.upgrade() else {
            return;
        };
        let now = inner.clock.now();
        for lease in inner.all() {
            // A request that asks for it now looks after it.
            let Ok(_asking) = lease.asking.try_lock() else {
                continue;
            };
            let asked = match lease.book.look_after(now, inner.terms.life) {
                Care::None => Ok(()),
                Care::Return => inner.ask(&lease, Wants::Nothing, None).await.map(drop),
                Care::Renew => inner.ask(&lease, Wants::Enough, None).await.map(drop),
                Care::Forget => {
                    // With it goes what is known of its tokens.
                    let spent = lease.book.note_spent();
                    inner
                        .local
                        .note_spent(&lease.limit, lease.place.fingerprint, spent);
                    // A request that has found it before still spends what it gets, and the next one asks anew.
                    inner.shard(lease.place).rcu(|shard| {
                        let mut fewer = HashMap::clone(shard);
                        fewer.remove(&lease.place);
                        fewer
                    });
                    Ok(())
                }
            };
            if asked.is_err() {
                // The others would fail too, and this comes round again soon.
                break;
            }
        }
    }
}
