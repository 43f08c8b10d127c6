//! This process's part of the limits, for when a store can't be asked.
//!
//! It remembers: what the store admits here is noted, so that an outage begins where the store left off, and
//! what was decided here during one is told to the store afterwards. A note never refuses, and never says more
//! than that the part is used up: a node that has all of the fleet's demand owes no more than its part.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use derive_more::Debug;
use tollgate::clock::{Monotonic, Wall};
use tollgate::{Algorithm, Clock, Decision, Rate, Timestamp};

use tollgate_engine::backend::{Answer, Check, Limit, LimitKind, Memory, Prepared};
use tollgate_engine::policy::OnStoreFailure;

use crate::lock::lock;

mod node_count;
mod unreported;

pub use unreported::UnreportedUsage;

use node_count::{Divisor, NodeCounts};
use unreported::UnreportedKeys;

/// So many keys can be set at the same time.
const LOCK_STRIPES: usize = 64;

/// This process's part of all limits: a [`Memory`] that limits are cut down for, by the number of nodes.
///
/// [`Fallback`](crate::Fallback) decides by it while the store can't be asked; the store's client
/// [notes](Self::note) in it what the store said, and [carries](Self::owed) to the store what was decided here.
///
/// ```
/// use tollgate::{Algorithm, Rate, clock::Manual};
/// use tollgate_engine::backend::{LimitKind, Memory, StandaloneLimit};
/// use tollgate_redis::LocalLimits;
///
/// let clock = Manual::new();
/// let local = LocalLimits::new(Memory::builder().capacity(100).clock(clock.clone()).wall(clock).build());
/// let kind = LimitKind::Rate { rate: Rate::per_hour(10), algorithm: Algorithm::Gcra };
/// let (limit, ada) = (StandaloneLimit::new("logins", kind)?, StandaloneLimit::facts("ada"));
/// let check = limit.check(&ada, 8);
/// // The store has let 8 of 10 pass: then 2 are left here.
/// let said = local.memory().answer(&[check]).decision;
/// # let local = LocalLimits::new(Memory::builder().capacity(100).clock(Manual::new()).wall(Manual::new()).build());
/// local.record_decision(&check, &said);
/// assert!(!local.decide(&[limit.check(&ada, 3)]).allowed);
/// assert!(local.decide(&[limit.check(&ada, 2)]).allowed);
/// // And the store is to be told of 10.
/// assert_eq!(local.unreported_usage(&check).expect("decided here").used, 10);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[debug("Local({nodes:?}, {unreported:?})")]
pub struct LocalLimits<C: Clock = Monotonic, W: Clock = Wall> {
    memory: Memory<C, W>,
    /// What limits keep for it.
    shares: Prepared<ArcSwap<LocalShare>>,
    nodes: NodeCounts,
    unreported: UnreportedKeys,
    /// Notes of keys that the memory has no room for.
    unrecorded: AtomicU64,
    /// Held while what the store says is used of a key is noted.
    stripes: [Mutex<()>; LOCK_STRIPES],
}

/// The part of a limit that is one process's, kept with the limit.
#[derive(Debug)]
struct LocalShare {
    of: Divisor,
    part: Limit,
}

impl LocalShare {
    /// A check of the limit as one of the part.
    fn part_of<'a>(&'a self, check: &Check<'a>) -> Check<'a> {
        Check {
            limit: &self.part,
            ..*check
        }
    }
}

/// How what a store says of a limit is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordMode {
    /// Hit by hit.
    Cost,
    /// By what the store says is used, of which others may have used some.
    Used,
    /// Not at all.
    No,
}

impl RecordMode {
    fn of(limit: &Limit) -> Self {
        match limit.kind() {
            _ if !is_decided_locally(limit) => Self::No,
            LimitKind::Rate {
                algorithm: Algorithm::SlidingLog,
                ..
            }
            | LimitKind::Quota(_) => Self::Used,
            LimitKind::Rate { .. } => Self::Cost,
            _ => Self::No,
        }
    }
}

impl<C: Clock + 'static, W: Clock + 'static> LocalLimits<C, W> {
    /// Keeps it in this memory, for a fleet of one.
    pub fn new(memory: Memory<C, W>) -> Self {
        Self {
            memory,
            shares: Prepared::new(),
            nodes: NodeCounts::single(),
            unreported: UnreportedKeys::default(),
            unrecorded: AtomicU64::new(0),
            stripes: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Where it is kept.
    pub fn memory(&self) -> &Memory<C, W> {
        &self.memory
    }

    /// How many nodes the fleet has, this one included. It may change at any time: a part is the limit
    /// divided by it, times two, and never more than the limit. It shrinks at once; it grows when all that was
    /// noted in the smaller part has run out, so that nothing is granted twice.
    pub fn set_node_count(&self, nodes: u64) {
        self.nodes.set(nodes.max(1), self.memory.clock().now());
    }

    /// How many nodes the fleet has.
    pub fn node_count(&self) -> u64 {
        self.nodes.current()
    }

    /// Decides by this node's part of each limit, all or none, and remembers to tell the store of it.
    pub fn decide(&self, checks: &[Check<'_>]) -> Answer {
        let shares: Vec<_> = checks
            .iter()
            .map(|check| self.local_share(check.limit))
            .collect();
        let own = checks.iter().zip(&shares);
        let own: Vec<_> = own.map(|(check, share)| share.part_of(check)).collect();
        let now = self.memory.clock().now();
        let is_told = |check: &Check<'_>| {
            check.cost > 0 && !matches!(check.limit.kind(), LimitKind::Concurrency(_))
        };
        // Before it is charged: every question to the store from then on tells of it.
        let told = || own.iter().filter(|check| is_told(check));
        for check in told() {
            self.unreported
                .begin(check, now, debt_lifetime(check.limit.kind()));
        }
        let answer = self.memory.answer(&own);
        told().for_each(|check| self.unreported.end(check, answer.allowed));
        answer
    }

    /// What a check would be told by this node's part of its limit.
    pub(crate) fn peek(&self, check: &Check<'_>) -> Decision {
        let share = self.local_share(check.limit);
        let said = self.memory.peek_each(&[share.part_of(check)]);
        said.first().copied().unwrap_or(Decision::UNLIMITED)
    }

    /// The store said this to a check.
    pub fn record_decision(&self, check: &Check<'_>, said: &Decision) {
        let noted = RecordMode::of(check.limit);
        let is_charged = said.is_allowed() && check.cost > 0;
        if noted == RecordMode::No || (noted == RecordMode::Cost && !is_charged) {
            return;
        }
        let share = self.local_share(check.limit);
        let own = share.part_of(check);
        match noted {
            RecordMode::Cost => self.charge_part(&own),
            _ => self.raise_usage_to(&own, said.limit.saturating_sub(said.remaining)),
        }
    }

    /// So much of a limit was spent of what a store had given ahead.
    pub fn record_spent(&self, limit: &Limit, fingerprint: [u64; 2], tokens: u64) {
        if tokens > 0 && RecordMode::of(limit) == RecordMode::Cost {
            let share = self.local_share(limit);
            let part = Check::by_fingerprint(&share.part, fingerprint, tokens);
            self.charge_part(&part);
        }
    }

    fn charge_part(&self, own: &Check<'_>) {
        if !self.memory.charge_available(own) {
            self.unrecorded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The store gave this request a permit: it counts here too, for as long as this is kept, whatever the
    /// part. None if the limit isn't judged here, or isn't of concurrency.
    pub fn hold_permit(&self, check: &Check<'_>) -> Option<tollgate::stack::HeldPermits> {
        let has_leased_tokens = is_decided_locally(check.limit);
        has_leased_tokens
            .then(|| self.memory.hold_permit(check))
            .flatten()
    }

    /// What this key owes of decisions that the store wasn't told of; none if it was told of all.
    #[inline]
    pub fn unreported_usage(&self, check: &Check<'_>) -> Option<UnreportedUsage> {
        if self.unreported.is_empty() {
            None
        } else {
            self.owed_by(check)
        }
    }

    #[cold]
    fn owed_by(&self, check: &Check<'_>) -> Option<UnreportedUsage> {
        let (since, admitted) = self.unreported.find(check)?;
        let share = self.local_share(check.limit);
        let own = Check {
            cost: 0,
            ..share.part_of(check)
        };
        let left = self.memory.answer(&[own]).decision;
        let used = left.limit.saturating_sub(left.remaining);
        let rate = match share.part.kind() {
            LimitKind::Rate { rate, .. } => *rate,
            _ => Rate::unlimited(),
        };
        Some(UnreportedUsage {
            since,
            used: match RecordMode::of(check.limit) {
                // What the store told isn't told back: it has other times here, and others may have used some of it. And
                // what has run out here since it was admitted isn't to be told as if it were new.
                RecordMode::Used => admitted.min(used),
                _ => used,
            },
            resets_in: left.reset_after,
            rate,
        })
    }

    /// The store was told of what a key owed.
    pub fn mark_reported(&self, check: &Check<'_>, owed: &UnreportedUsage) {
        self.unreported.mark_reported(check, owed.since);
    }

    /// Decisions that one side will never know of: of the store's, because the memory has no room for more keys, and of
    /// those made here, because too many keys wait to be told.
    pub fn lost_reports(&self) -> u64 {
        let beyond = self.unrecorded.load(Ordering::Relaxed);
        self.unreported.lost_reports().saturating_add(beyond)
    }

    /// So many are used, as the store says; no fewer if more was admitted here that it doesn't know of.
    fn raise_usage_to(&self, own: &Check<'_>, used: u64) {
        let place = usize::try_from(own.key.fingerprint()[0] % LOCK_STRIPES as u64).unwrap_or(0);
        // Two at a time would each charge what is missing.
        let _alone = lock(&self.stripes[place]);
        let left = self.memory.answer(&[Check { cost: 0, ..*own }]).decision;
        let used = used.min(left.limit);
        let mut is_used = left.limit.saturating_sub(left.remaining);
        if is_used > used && self.unreported.find(own).is_none() {
            self.memory.clear_key(own);
            is_used = 0;
        }
        let missing = used.saturating_sub(is_used);
        if missing > 0 {
            // If a request is decided in between, it has charged some of this itself.
            let mut charged = self.memory.answer(&[Check {
                cost: missing,
                ..*own
            }]);
            charged.pass.settle(missing);
        }
    }

    /// This node's part of a limit.
    fn local_share(&self, limit: &Limit) -> Arc<LocalShare> {
        let make = || Ok::<_, Infallible>(ArcSwap::from_pointee(self.make_share(limit)));
        let Ok(share) = self.shares.get_or_make(limit, make);
        let cut = share.load();
        if self.nodes.is_current(&cut.of, || self.memory.clock().now()) {
            return Arc::clone(&cut);
        }
        let cut = Arc::new(self.make_share(limit));
        share.store(Arc::clone(&cut));
        cut
    }

    fn make_share(&self, limit: &Limit) -> LocalShare {
        let of = (self.nodes).divisor(part_lifetime(limit.kind()), self.memory.clock().now());
        LocalShare {
            of,
            // A limit that can't be cut is judged whole.
            part: limit
                .scale_down(2, of.nodes)
                .unwrap_or_else(|_| limit.clone()),
        }
    }
}

/// Whether a limit is judged here while the store can't be asked.
fn is_decided_locally(limit: &Limit) -> bool {
    use OnStoreFailure::{CircuitBreak, Local};
    matches!(limit.on_store_failure(), Local | CircuitBreak)
}

/// After so long nothing counts any more that was noted in a part of a limit.
fn part_lifetime(kind: &LimitKind) -> Duration {
    match kind {
        LimitKind::Rate { .. } => debt_lifetime(kind),
        LimitKind::Quota(quota) => {
            let calendar = quota.period_at(Timestamp::ZERO);
            let calendar = calendar.map(|(start, end)| end - start);
            let period = calendar.or(quota.rolling_period()).unwrap_or_default();
            // No month or day is twice as long as another, and a rolling one forgets in parts.
            2 * period
        }
        // Permits count for as long as they are held.
        _ => Duration::ZERO,
    }
}

/// After so long nothing of a limit is owed.
fn debt_lifetime(kind: &LimitKind) -> Duration {
    match kind {
        LimitKind::Rate { rate, .. } => match rate.period() {
            Some(period) if !rate.is_zero() => {
                let periods = rate.burst_size().div_ceil(rate.count()).saturating_add(1);
                period.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
            }
            _ => Duration::MAX,
        },
        _ => Duration::MAX,
    }
}
