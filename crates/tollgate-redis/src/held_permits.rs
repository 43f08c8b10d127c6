//! Permits that requests of this node hold. The node renews them; those of a dead node expire.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use derive_more::Debug;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::host::{CallerClock, Host, ProcessIdentity};
use crate::lock::lock;
use crate::query::{QueryReplies, StoreOp, StoreQuery};
use crate::store::Store;

/// How many permits are renewed or released concurrently. More would queue in the store, and delay decisions.
const MAX_CONCURRENT_CALLS: usize = 128;
/// How many permits can wait to be released. Others expire.
const MAX_PENDING_RELEASES: usize = 65_536;
/// The pause between attempts to release: this at first, doubled each time up to `MAX_RETRY_PAUSE`.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(10);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// All permits of this node.
#[derive(Debug)]
#[debug("HeldPermits({permit_ttl:?})")]
pub(crate) struct HeldPermits {
    store: Arc<Store>,
    /// The query that took each permit, by the name of its holder.
    held: Mutex<BTreeMap<Box<str>, StoreQuery>>,
    ended: Mutex<ReleaseQueue>,
    permit_ttl: Duration,
    /// Replaces the store's clock.
    time: Option<CallerClock>,
    /// Distinguishes this node from all others.
    node: ProcessIdentity,
    next: AtomicU64,
    /// Permits that expired although they were held, and that other nodes have now: the node was suspended, the
    /// store unreachable, or its clock stepped.
    lost: AtomicU64,
    /// Held during a renewal of permits.
    renewing: tokio::sync::Mutex<()>,
    /// Notified when all ended permits are released.
    all_released: Notify,
    host: Host,
}

/// Permits to release.
#[derive(Debug, Default)]
struct ReleaseQueue {
    /// In the order in which they ended, with the time of that.
    pending: VecDeque<(StoreQuery, Instant)>,
    /// Those whose release failed. Their node may be unreachable while others work, so they come after those
    /// that weren't tried.
    failed: VecDeque<(StoreQuery, Instant)>,
    /// Whether a task is releasing.
    is_releasing: bool,
}

impl HeldPermits {
    pub(crate) fn new(
        store: Arc<Store>,
        time: Option<CallerClock>,
        host: Host,
        life: Duration,
    ) -> Arc<Self> {
        let permits = Arc::new(Self {
            store,
            held: Mutex::default(),
            ended: Mutex::default(),
            permit_ttl: life,
            time,
            node: ProcessIdentity::new(&host),
            next: AtomicU64::new(1),
            lost: AtomicU64::new(0),
            renewing: tokio::sync::Mutex::default(),
            all_released: Notify::new(),
            host,
        });
        // Three renewals in a permit's duration: two may fail before it expires.
        let renew = async |permits: Arc<Self>| permits.renew_all().await;
        permits.host.spawn_every(life / 3, &permits, renew);
        permits
    }

    /// A unique name for the holder of a permit.
    pub(crate) fn next_holder_name(&self) -> Box<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let node = self.node.number(&self.host);
        format!("{node:016x}-{number:x}").into()
    }

    /// Registers a permit that was taken: it is renewed until the returned closure is called.
    pub(crate) fn hold(
        self: &Arc<Self>,
        question: &StoreQuery,
    ) -> Option<impl FnOnce() + Send + Sync + 'static + use<>> {
        let name = question.holder.clone()?;
        lock(&self.held).insert(name.clone(), question.clone());
        let permits = Arc::clone(self);
        Some(move || {
            let held = lock(&permits.held).remove(&name);
            held.into_iter()
                .for_each(|held| permits.queue_release(held));
        })
    }

    /// Releases a permit that the store may or may not have granted.
    pub(crate) fn release_if_taken(self: &Arc<Self>, question: &StoreQuery) {
        if let Some(end) = self.hold(question) {
            end();
        }
    }

    /// Releases all permits, held or not, and waits until the store has confirmed it.
    pub(crate) async fn close(self: &Arc<Self>) {
        // A renewal in progress would take them again.
        let renewing = self.renewing.lock().await;
        let held = std::mem::take(&mut *lock(&self.held));
        drop(renewing);
        held.into_values().for_each(|held| self.queue_release(held));
        loop {
            // Registered before the check, so that a notification in between isn't lost.
            let released = self.all_released.notified();
            if !lock(&self.ended).is_releasing {
                return;
            }
            released.await;
        }
    }

    pub(crate) fn held_count(&self) -> usize {
        lock(&self.held).len()
    }

    pub(crate) fn lost_count(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    async fn ask(&self, held: &StoreQuery, op: StoreOp) -> Result<QueryReplies, StoreError> {
        let at = self.time.as_ref().map(|time| time.now().as_nanos() / 1000);
        let question = StoreQuery {
            op,
            cost: 1,
            ..held.clone()
        };
        self.store.ask(vec![question], at).await
    }

    /// Queues a permit for its release.
    fn queue_release(self: &Arc<Self>, held: StoreQuery) {
        let mut ended = lock(&self.ended);
        if ended.pending.len() + ended.failed.len() < MAX_PENDING_RELEASES {
            // A permit beyond the bound isn't queued, and expires by itself.
            ended.pending.push_back((held, Instant::now()));
        }
        let is_said = std::mem::replace(&mut ended.is_releasing, true);
        drop(ended);
        if !is_said {
            self.host.spawn(release_ended_permits(Arc::clone(self)));
        }
    }

    /// Renews all permits.
    async fn renew_all(self: &Arc<Self>) -> bool {
        let _renewing = self.renewing.lock().await;
        let held = lock(&self.held).clone();
        let renewals = held.into_iter().map(|(name, held)| self.renew(name, held));
        let renewals = stream::iter(renewals).buffer_unordered(MAX_CONCURRENT_CALLS);
        renewals.collect::<()>().await;
        true
    }

    /// Renews a permit. If it had expired, the renewal takes it again if there is room.
    async fn renew(self: &Arc<Self>, name: Box<str>, held: StoreQuery) {
        // It may have been released since.
        if !lock(&self.held).contains_key(&name) {
            return;
        }
        // A failed renewal is tried again.
        if let Ok(answers) = self.ask(&held, StoreOp::Renew).await {
            self.handle_renewal(&name, held, &answers);
        }
    }

    fn handle_renewal(self: &Arc<Self>, name: &str, held: StoreQuery, answers: &QueryReplies) {
        let is_had = answers.replies.iter().all(|raw| raw.outcome == 1);
        let mut all = lock(&self.held);
        if !is_had {
            // Other nodes have the permit now: it can't be renewed or released.
            let lost = all.remove(name).is_some();
            self.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
        } else if !all.contains_key(name) {
            // The permit ended during the query, so the renewal may have taken it again after its release.
            drop(all);
            self.queue_release(held);
        }
    }

    /// The next permits to release; `None` if there are none.
    fn next_releases(&self) -> Option<Vec<(StoreQuery, Instant)>> {
        let mut guard = lock(&self.ended);
        let ended = &mut *guard;
        if ended.pending.is_empty() && ended.failed.is_empty() {
            ended.is_releasing = false;
            self.all_released.notify_waiters();
            return None;
        }
        let untried = ended.pending.len().min(MAX_CONCURRENT_CALLS);
        let again = ended.failed.len().min(MAX_CONCURRENT_CALLS - untried);
        let next = ended.pending.drain(..untried);
        Some(next.chain(ended.failed.drain(..again)).collect())
    }

    /// Requeues permits whose release failed. Returns whether all others were tried too.
    fn requeue_failed(&self, slots: Vec<(StoreQuery, Instant)>) -> bool {
        let mut ended = lock(&self.ended);
        ended.failed.extend(slots);
        ended.pending.is_empty()
    }
}

/// Releases ended permits until all are released or have expired.
async fn release_ended_permits(permits: Arc<HeldPermits>) {
    let mut pause = MIN_RETRY_PAUSE;
    while let Some(some) = permits.next_releases() {
        let results = some.into_iter().map(async |(held, since)| {
            let result = permits.ask(&held, StoreOp::Release).await;
            result.is_err().then_some((held, since))
        });
        let failed = join_all(results).await.into_iter().flatten();
        let is_due = |(_, since): &(_, Instant)| since.elapsed() < permits.permit_ttl;
        let due: Vec<_> = failed.filter(is_due).collect();
        if due.is_empty() {
            pause = MIN_RETRY_PAUSE;
            continue;
        }
        if permits.requeue_failed(due) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_engine::backend::LimitKind;
    use tollgate_testkit::redis::Server;

    use super::*;
    use crate::Redis;

    #[tokio::test]
    async fn a_slot_that_was_given_back_while_it_was_renewed_is_free() {
        let server = Server::start();
        let builder = Redis::builder(&server.url()).unwrap();
        let redis = builder.timeout(Duration::from_secs(5)).build().unwrap();
        let jobs = redis.limiter_with_kind("jobs", LimitKind::Concurrency(1));
        let jobs = jobs.build().unwrap();
        let free = async |want: u64| {
            let freed = async {
                while jobs.peek("k").await.unwrap().remaining != want {
                    tokio::task::yield_now().await;
                }
            };
            let deadline = Duration::from_secs(20);
            tokio::time::timeout(deadline, freed).await.unwrap();
        };
        let pass = jobs.try_check("k", 1).await.unwrap();
        let permits = &redis.store_client().unwrap().holders;
        let (name, held) = lock(&permits.held).clone().into_iter().next().unwrap();
        drop(pass);
        free(1).await;
        // A renewal in progress comes after it.
        let answers = permits.ask(&held, StoreOp::Renew).await.unwrap();
        free(0).await;
        permits.handle_renewal(&name, held, &answers);
        free(1).await;
        assert_eq!((redis.stats().permits, redis.stats().lost_permits), (0, 0));
    }
}
