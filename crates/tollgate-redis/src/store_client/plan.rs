//! The first step of a request: what each of its checks needs, and what is known without a query.

use tollgate::Decision;
use tollgate_engine::backend::{
    Answer, AnswerSource, Check, DenyRecheck, DenyVersion, KnownDenial,
};

use super::StoreClient;
use crate::error::StoreError;
use crate::query::StoreQuery;
use crate::stored_limit::{LeaseCheck, StoredLimit};

/// How a request is answered.
pub(super) enum Plan<'a, 'd> {
    /// It is denied, without a query.
    Denied(Answer),
    /// What each of its checks needs, all or none; and the denial that is checked again.
    Query(Vec<CheckPlan<'a>>, Option<DenyRecheck<'d>>),
}

/// What one check needs.
pub(super) enum CheckPlan<'a> {
    /// Nothing: the decision is known.
    Known(Decision),
    /// Tokens of a lease.
    LeasedTokens(LeaseCheck<'a>),
    /// A query to the store.
    StoreQuery(Box<StoreQuery>),
}

impl StoreClient {
    /// Plans what each check needs, unless one is known to be denied. Nothing is spent before all were planned.
    pub(super) fn plan<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Plan<'a, 'a>, StoreError> {
        let mut needs = Vec::with_capacity(checks.len());
        let mut refused: Option<Vec<Decision>> = None;
        let mut due = None;
        let now = self.estimated_store_time();
        for (number, check) in checks.iter().enumerate() {
            let stored = self.stored(check.limit)?;
            let known = stored.form.known_decision(check.cost);
            let known = known.or_else(|| match self.remembered_denial(check, stored) {
                KnownDenial::Repeat(_, denied) => Some(denied),
                // One recheck in a request is enough: the other denials are rechecked by later requests.
                KnownDenial::Due(recheck) => {
                    due.get_or_insert(recheck);
                    None
                }
                KnownDenial::None => self.lease_denial(check, stored),
            });
            needs.push(match (known, LeaseCheck::of(check, stored)) {
                (Some(known), _) => {
                    if !known.is_allowed() {
                        let all = || vec![Decision::UNLIMITED; checks.len()];
                        refused.get_or_insert_with(all)[number] = known;
                    }
                    CheckPlan::Known(known)
                }
                (None, Some(lent)) => CheckPlan::LeasedTokens(lent),
                (None, None) => {
                    CheckPlan::StoreQuery(Box::new(self.build_decide_query(check, now)?))
                }
            });
        }
        let Some(refused) = refused else {
            return Ok(Plan::Query(needs, due));
        };
        let mut answer = Answer::from_decisions(checks, &refused);
        let decider = answer.decider.map(|number| &checks[number]);
        answer.source = match decider {
            Some(check) if self.is_leased(check) => self.leased_source(),
            _ => AnswerSource::Cached,
        };
        Ok(Plan::Denied(answer))
    }

    /// The denial of a lease that has too few tokens.
    fn lease_denial(&self, check: &Check<'_>, stored: &StoredLimit) -> Option<Decision> {
        let lent = LeaseCheck::of(check, stored)?;
        let known = self.leases.peek_held(lent.lease_key(), check.cost);
        known.filter(|known| !known.is_allowed())
    }

    /// A remembered denial of a check. A leased limit needs none, because its lease knows.
    fn remembered_denial(&self, check: &Check<'_>, stored: &StoredLimit) -> KnownDenial<'_> {
        if stored.leased.is_some() || !self.refusals.is_enabled() {
            return KnownDenial::None;
        }
        let moment = self.epoch_time();
        let version = DenyVersion(stored.version, moment.epoch);
        self.refusals.look_up(check, moment.at, version)
    }

    /// An earlier denial that hasn't expired.
    pub(crate) fn find_known_denial(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        let moment = self.epoch_time();
        self.refusals.find(checks, moment.at, |check| {
            let stored = self.stored(check.limit).ok()?;
            Some(DenyVersion(stored.version, moment.epoch))
        })
    }
}
