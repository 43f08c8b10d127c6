//! This process's share of the limits, for when the store is unreachable.
//!
//! It records what the store admits here, so that an outage begins where the store stopped. It records what is
//! decided here during an outage, to report it to the store afterwards. Recording never denies, and fills the
//! share at most: a node that gets all of the fleet's requests owes no more than its share.

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

/// How many keys can be corrected concurrently.
const LOCK_STRIPES: usize = 64;

/// This process's share of all limits: a [`Memory`] whose limits are divided by the number of nodes.
///
/// [`Fallback`](crate::Fallback) decides by it while the store is unreachable. The store's client
/// [records](Self::record_decision) in it what the store decided, and [reports](Self::unreported_usage) to the
/// store what was decided here.
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
/// // The store has allowed 8 of 10: then 2 remain here.
/// let said = local.memory().answer(&[check]).decision;
/// # let local = LocalLimits::new(Memory::builder().capacity(100).clock(Manual::new()).wall(Manual::new()).build());
/// local.record_decision(&check, &said);
/// assert!(!local.decide(&[limit.check(&ada, 3)]).allowed);
/// assert!(local.decide(&[limit.check(&ada, 2)]).allowed);
/// // And 10 are to be reported to the store.
/// assert_eq!(local.unreported_usage(&check).expect("decided here").used, 10);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[debug("LocalLimits({nodes:?}, {unreported:?})")]
pub struct LocalLimits<C: Clock = Monotonic, W: Clock = Wall> {
    memory: Memory<C, W>,
    /// The share of each limit, cached with the limit.
    shares: Prepared<ArcSwap<LocalShare>>,
    nodes: NodeCounts,
    unreported: UnreportedKeys,
    /// Records for keys that the memory has no room for.
    unrecorded: AtomicU64,
    /// Held while a key's usage is raised to the store's.
    stripes: [Mutex<()>; LOCK_STRIPES],
}

/// One process's share of a limit, cached with the limit.
#[derive(Debug)]
struct LocalShare {
    of: Divisor,
    part: Limit,
}

impl LocalShare {
    /// The same check, of the share instead of the limit.
    fn part_of<'a>(&'a self, check: &Check<'a>) -> Check<'a> {
        Check {
            limit: &self.part,
            ..*check
        }
    }
}

/// How the store's decisions about a limit are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordMode {
    /// Each allowed cost.
    Cost,
    /// The usage that the store reports, which includes other nodes' usage.
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
    /// Keeps the share in this memory, for a fleet of one node.
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

    /// The memory that has the counters.
    pub fn memory(&self) -> &Memory<C, W> {
        &self.memory
    }

    /// Sets the number of nodes in the fleet, this one included. It may change at any time. A share is the
    /// limit × 2 ÷ nodes, at most the limit. It shrinks immediately. It grows only when all that was recorded
    /// in the smaller share has expired, so nothing is granted twice.
    pub fn set_node_count(&self, nodes: u64) {
        self.nodes.set(nodes.max(1), self.memory.clock().now());
    }

    /// The number of nodes in the fleet.
    pub fn node_count(&self) -> u64 {
        self.nodes.current()
    }

    /// Decides by this node's share of each limit, all or none, and marks the keys for a report to the store.
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
        // Marked before the charge, so that every later query to the store includes a report.
        let told = || own.iter().filter(|check| is_told(check));
        for check in told() {
            self.unreported
                .begin(check, now, debt_lifetime(check.limit.kind()));
        }
        let answer = self.memory.answer(&own);
        told().for_each(|check| self.unreported.end(check, answer.allowed));
        answer
    }

    /// What this node's share of a limit would decide about a check.
    pub(crate) fn peek(&self, check: &Check<'_>) -> Decision {
        let share = self.local_share(check.limit);
        let said = self.memory.peek_each(&[share.part_of(check)]);
        said.first().copied().unwrap_or(Decision::UNLIMITED)
    }

    /// Records the store's decision about a check.
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

    /// Records that tokens of a lease were spent.
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

    /// Counts a permit that the store granted, for as long as the return value is kept, even beyond the share.
    /// `None` if the limit isn't decided locally, or isn't a concurrency limit.
    pub fn hold_permit(&self, check: &Check<'_>) -> Option<tollgate::stack::HeldPermits> {
        is_decided_locally(check.limit)
            .then(|| self.memory.hold_permit(check))
            .flatten()
    }

    /// The usage of this key that the store doesn't know of; `None` if it knows of all.
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
                // Usage that came from the store isn't reported back: it has other times here, and includes
                // other nodes' usage. Usage that was admitted here and has expired since isn't reported as new.
                RecordMode::Used => admitted.min(used),
                _ => used,
            },
            resets_in: left.reset_after,
            rate,
        })
    }

    /// Marks a key's usage as reported to the store.
    pub fn mark_reported(&self, check: &Check<'_>, owed: &UnreportedUsage) {
        self.unreported.mark_reported(check, owed.since);
    }

    /// Decisions that one side will never know of: the store's, because the memory has no room for more keys,
    /// and those made here, because too many keys wait to be reported.
    pub fn lost_reports(&self) -> u64 {
        let beyond = self.unrecorded.load(Ordering::Relaxed);
        self.unreported.lost_reports().saturating_add(beyond)
    }

    /// Sets a key's usage to the store's; not below what was admitted here and isn't reported yet.
    fn raise_usage_to(&self, own: &Check<'_>, used: u64) {
        let place = usize::try_from(own.key.fingerprint()[0] % LOCK_STRIPES as u64).unwrap_or(0);
        // Two concurrent calls would each charge the difference.
        let _alone = lock(&self.stripes[place]);
        let left = self.memory.answer(&[Check { cost: 0, ..*own }]).decision;
        let used = used.min(left.limit);
        let mut is_used = left.limit.saturating_sub(left.remaining);
        // The store reports less than this share has, and nothing here is unreported: the store was reset, so
        // the share follows it.
        if is_used > used && self.unreported.find(own).is_none() {
            self.memory.clear_key(own);
            is_used = 0;
        }
        let missing = used.saturating_sub(is_used);
        if missing > 0 {
            // A request that is decided in between has charged some of this itself.
            let mut charged = self.memory.answer(&[Check {
                cost: missing,
                ..*own
            }]);
            charged.pass.settle(missing);
        }
    }

    /// This node's share of a limit, as cached or made anew.
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
            // A limit that can't be divided is decided whole.
            part: limit
                .scale_down(2, of.nodes)
                .unwrap_or_else(|_| limit.clone()),
        }
    }
}

/// Whether a limit is decided here while the store is unreachable.
fn is_decided_locally(limit: &Limit) -> bool {
    use OnStoreFailure::{CircuitBreak, Local};
    matches!(limit.on_store_failure(), Local | CircuitBreak)
}

/// How long anything that was recorded in a share can count.
fn part_lifetime(kind: &LimitKind) -> Duration {
    match kind {
        LimitKind::Rate { .. } => debt_lifetime(kind),
        LimitKind::Quota(quota) => {
            let calendar = quota.period_at(Timestamp::ZERO);
            let calendar = calendar.map(|(start, end)| end - start);
            let period = calendar.or(quota.rolling_period()).unwrap_or_default();
            // No month or day is twice as long as another, and a rolling period expires gradually.
            2 * period
        }
        // Permits count for as long as they are held.
        _ => Duration::ZERO,
    }
}

/// How long a debt of a limit can last.
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
