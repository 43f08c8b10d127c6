//! The first step of a request: what each of its checks needs, and what is known without asking.

use tollgate::Decision;
use tollgate_engine::backend::{Answer, Check, DenyVersion, Source};

use super::{Direct, StoredLimit};
use crate::error::StoreError;
use crate::lease::Leased;
use crate::question::Question;

/// How a request is to be answered.
pub(super) enum Plan<'a> {
    /// It is refused, as is known here.
    Refused(Answer),
    /// What is to be done about each of its checks, all or none.
    Ask(Vec<Need<'a>>),
}

/// What one check needs.
pub(super) enum Need<'a> {
    /// Nothing: this is known here.
    Nothing(Decision),
    /// Tokens of a lease.
    Tokens(&'a StoredLimit, Leased),
    /// An answer of the store.
    Answer(Box<Question>),
}

impl Direct {
    /// What each check needs, unless one of them is known to be refused.
    pub(super) fn plan<'a>(&self, checks: &[Check<'a>]) -> Result<Plan<'a>, StoreError> {
        let mut needs = Vec::with_capacity(checks.len());
        let now = self.store_time();
        for (number, check) in checks.iter().enumerate() {
            let stored = self.stored(check.limit)?;
            needs.push(match self.known(check, stored) {
                Some(known) if !known.is_allowed() => {
                    let mut answer = Answer::new(Some(number), known);
                    answer.source = Source::Known;
                    return Ok(Plan::Refused(answer));
                }
                Some(known) => Need::Nothing(known),
                None => match stored.leased {
                    Some(leased) => Need::Tokens(stored, leased),
                    None => Need::Answer(Box::new(self.decide(check, stored, now)?)),
                },
            });
        }
        Ok(Plan::Ask(needs))
    }

    /// What is known of a check without asking.
    pub(super) fn known(&self, check: &Check<'_>, stored: &StoredLimit) -> Option<Decision> {
        let known = stored.form.known(check.cost);
        known.or_else(|| self.known_refusal(check, stored))
    }

    /// A refusal that still holds. What is left of a lease says so itself.
    fn known_refusal(&self, check: &Check<'_>, stored: &StoredLimit) -> Option<Decision> {
        if stored.leased.is_some() || !self.refusals.are_kept() {
            return None;
        }
        let (now, epoch) = self.before();
        let version = || DenyVersion(stored.version, epoch);
        self.refusals.find(check, now, version)
    }
}
