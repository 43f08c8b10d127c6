//! Limits that are counted in this process although there is a store. They are checked first.
//!
//! If one of them denies, the store isn't queried. If they allow, their cost is held while the store is queried
//! about the rest. It is refunded if the store denies, or if the request is dropped: all or none.

use std::convert::Infallible;

use tollgate::{Clock, Decision};
use tollgate_engine::backend::{Answer, Check, CheckResult};

use super::{Fallback, RemoteBackend, is_local, is_remote, set_decider_result};

impl<B: RemoteBackend, C: Clock + 'static, W: Clock + 'static> Fallback<B, C, W> {
    /// The answer to checks of which some are counted here. After a local denial, the checks in the store have
    /// no results.
    pub(super) async fn ask_local_then_store(
        &self,
        checks: &[Check<'_>],
        each: Option<&mut Vec<CheckResult>>,
    ) -> Result<Answer, Infallible> {
        let (here, there) = (
            CheckSubset::of(checks, is_local),
            CheckSubset::of(checks, is_remote),
        );
        let memory = self.local.memory();
        let mut by_store = Vec::new();
        let rest = async {
            let mut answer = if there.checks.is_empty() {
                Answer::known(None, Decision::UNLIMITED)
            } else {
                let each = each.is_some().then_some(&mut by_store);
                let Ok(answer) = self.ask_store(&there.checks, each).await;
                answer
            };
            answer.decider = there.original_index(answer.decider);
            answer
        };
        let mut answer = match memory.hold_while(&here.checks, rest).await {
            Ok(answer) => answer,
            Err((number, denied)) => Answer::known(Some(here.indices[number]), denied),
        };
        if !answer.allowed && each.is_none() {
            return Ok(answer);
        }
        let left = memory.left_of_each(&here.checks);
        if answer.allowed {
            here.replace_decider_if_tighter(&left, &mut answer);
        }
        if let Some(each) = each {
            *each = vec![Ok(Decision::UNLIMITED); checks.len()];
            there.write_results(each, by_store);
            here.write_results(each, left.into_iter().map(Ok));
            set_decider_result(each, &answer);
        }
        Ok(answer)
    }
}

/// Some of a request's checks, with their positions in the request.
pub(super) struct CheckSubset<'a> {
    pub(super) indices: Vec<usize>,
    pub(super) checks: Vec<Check<'a>>,
}

impl<'a> CheckSubset<'a> {
    /// Selects the checks for which `is_part` is true.
    pub(super) fn of(checks: &[Check<'a>], is_part: impl Fn(&Check<'_>) -> bool) -> Self {
        let all = checks.iter().copied().enumerate();
        let (numbers, checks) = all.filter(|(_, check)| is_part(check)).unzip();
        Self {
            indices: numbers,
            checks,
        }
    }

    /// The position in the request of a check of this subset.
    pub(super) fn original_index(&self, own: Option<usize>) -> Option<usize> {
        own.and_then(|number| self.indices.get(number).copied())
    }

    /// Writes the results of this subset into the list of all results.
    pub(super) fn write_results(
        &self,
        all: &mut [CheckResult],
        own: impl IntoIterator<Item = CheckResult>,
    ) {
        for (number, said) in self.indices.iter().zip(own) {
            all[*number] = said;
        }
    }

    /// If a check of this subset has less remaining than the check that decided, it decides instead. Of equal
    /// ones, the first decides.
    fn replace_decider_if_tighter(&self, left: &[Decision], answer: &mut Answer) {
        let own = Answer::from_decisions(&self.checks, left);
        let number = self.original_index(own.decider);
        let rank = |answer: &Answer, number: Option<usize>| {
            (answer.decision.remaining, number.unwrap_or(usize::MAX))
        };
        if rank(&own, number) < rank(answer, answer.decider) {
            (answer.decider, answer.decision) = (number, own.decision);
        }
    }
}
