//! A rule or a tier, compiled: all that a decision reads of it.

use std::slice;
use std::time::Duration;

use tollgate::{OnMissingKey, Timestamp};

use crate::engine::overload::Overload;
use crate::engine::rollout::Rollout;
use crate::engine::seen::KeySeen;
use crate::engine::turns::Demand;
use crate::engine::warm::{WarmUp, is_gate};
use crate::limits::{Check, KeyPlan, Limit, RequestKey};
use crate::policy::Mode;
use crate::verdict::percent_of;

/// A rule or a tier, ready to be applied to a request.
// All that a decision reads lies in here, so that one wait for memory is enough for a rule.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) name: Box<str>,
    pub(crate) key: KeyPlan,
    /// What happens to requests without the key.
    pub(crate) on_missing_key: OnMissingKey,
    /// Whether that was chosen, so that nobody has to be told that the key is never there.
    pub(crate) is_missing_expected: bool,
    /// Whether any request had the key.
    pub(crate) seen: KeySeen,
    pub(crate) limits: OwnLimits,
    pub(crate) cost: Option<u32>,
    pub(crate) default_cost: u64,
    /// Whether any request said its cost, if a fact should.
    pub(crate) cost_seen: KeySeen,
    pub(crate) mode: Mode,
    /// For how long a request that is over it may wait.
    pub(crate) waits: Option<Duration>,
    /// Numbers of the rules that it takes the place of.
    pub(crate) replaces: Box<[u32]>,
    /// Whether it has slots or an estimate to hold while the request runs.
    pub(crate) holds: bool,
    /// Whether its cost is an estimate: at least one, or there would be nothing to settle.
    pub(crate) is_estimated: bool,
    pub(crate) is_tier: bool,
    /// Whether other rules may count in the same state.
    pub(crate) shares: bool,
    /// For which keys it is enforced, if for a part of them.
    pub(crate) rollout: Option<Rollout>,
    /// Whether more than its limits is to be looked at: one of the next two is there.
    pub(crate) has_more: bool,
    /// What stands beside its rates until it is warm.
    pub(crate) warm: Option<Box<WarmUp>>,
    /// What it does about overload.
    pub(crate) overload: Option<Box<Overload>>,
    /// Where it is counted.
    pub(crate) tally: u32,
}

impl Applied {
    /// Whether it is enforced for one key, or only counts.
    #[inline]
    pub(crate) fn mode_for(&self, key: &RequestKey<'_>) -> Mode {
        match self.rollout {
            None => self.mode,
            Some(rollout) => rollout.mode(key),
        }
    }

    /// For how many keys in a hundred it is enforced.
    pub(crate) fn enforced_percent(&self) -> u8 {
        let part = self.rollout.map(|rollout| rollout.percent);
        part.unwrap_or(percent_of(self.mode))
    }

    /// What stands beside its rates now.
    #[inline]
    pub(crate) fn gates(&self, now: Option<Timestamp>) -> &[Limit] {
        let warm = self.warm.as_ref().zip(now);
        warm.map_or(&[], |(warm, now)| warm.gates(now))
    }

    /// What a request that one of its checks refused asks for in line.
    pub(crate) fn demand(&self, check: &Check<'_>, now: Option<Timestamp>) -> Demand {
        let demand = Demand::of(check).of_class(self.class_of(check.limit));
        let own = self.limits.as_slice().first();
        match (own, self.warm.as_ref().zip(now)) {
            (Some(own), Some((warm, now))) if is_gate(check.limit) => {
                demand.beside(own.id, warm.changes_at(now))
            }
            _ => demand,
        }
    }

    /// What stood beside them at a time.
    pub(crate) fn gates_at(&self, at: Option<Timestamp>) -> &[Limit] {
        let warm = self.warm.as_ref().zip(at);
        warm.map_or(&[], |(warm, at)| warm.gates_at(at))
    }
}

/// The limits of a rule: the only one, as most have, in place.
#[derive(Debug)]
pub(crate) enum OwnLimits {
    One(Limit),
    Others(Box<[Limit]>),
}

impl OwnLimits {
    pub(super) fn new(mut limits: Vec<Limit>) -> Self {
        match (limits.pop(), limits.is_empty()) {
            (Some(only), true) => Self::One(only),
            (last, _) => {
                limits.extend(last);
                Self::Others(limits.into())
            }
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Limit] {
        match self {
            Self::One(limit) => slice::from_ref(limit),
            Self::Others(limits) => limits,
        }
    }
}
