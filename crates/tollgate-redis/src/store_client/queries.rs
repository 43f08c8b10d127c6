//! Queries on their way: they carry reports of what was decided without the store, and calendars may be sent
//! twice.

use tollgate_engine::backend::Check;

use super::StoreClient;
use super::estimate::is_estimate;
use crate::error::StoreError;
use crate::local_limits::UnreportedUsage;
use crate::query::{QueryReplies, RawReply, StoreKind, StoreOp, StoreQuery};
use crate::store::RequestDeadline;

/// The most queries in one call: as many as requests are merged into.
const MAX_QUERIES_PER_CALL: usize = 128;

/// The check's number, its key's unreported usage, and the query that reports it.
type UsageReport = (usize, UnreportedUsage, StoreQuery);

fn is_calendar(question: &StoreQuery) -> bool {
    question.params.kind == StoreKind::Calendar
}

impl StoreClient {
    /// A query about the key of a check.
    pub(super) fn build_query(
        &self,
        check: &Check<'_>,
        op: StoreOp,
        now: u64,
    ) -> Result<StoreQuery, StoreError> {
        let stored = self.stored(check.limit)?;
        let numbers = stored.form.params_at(now);
        let nothing = || StoreError::garbled("a limit that nothing is kept of");
        let numbers = numbers.ok_or_else(nothing)?;
        let is_slots = numbers.kind == StoreKind::Concurrency;
        Ok(StoreQuery {
            key: stored.key(check).into(),
            op,
            params: numbers,
            // A request takes one permit, whatever its cost, and a peek looks for one.
            cost: match op {
                StoreOp::Peek if is_slots => 1,
                _ if is_slots => check.cost.min(1),
                _ => check.cost,
            },
            holder: is_slots.then(|| self.holders.next_holder_name()),
        })
    }

    /// The query that decides a check.
    pub(super) fn build_decide_query(
        &self,
        check: &Check<'_>,
        now: u64,
    ) -> Result<StoreQuery, StoreError> {
        let op = if is_estimate(check) {
            StoreOp::Hold
        } else {
            StoreOp::Decide
        };
        let mut question = self.build_query(check, op, now)?;
        if question.holder.is_some() {
            // A request takes one permit, even for a cost of 0.
            question.cost = 1;
        }
        Ok(question)
    }

    /// Sends queries of one lane.
    ///
    /// This is part of every decision's future, which has to stay small enough for the allocator's fast path.
    /// Larger parts are boxed.
    pub(crate) async fn send(
        &self,
        checks: &[Check<'_>],
        numbers: &[usize],
        questions: Vec<StoreQuery>,
        at: Option<u64>,
        patience: &mut RequestDeadline,
    ) -> Result<QueryReplies, StoreError> {
        let is_plain = !questions.iter().any(is_calendar);
        if is_plain
            && self
                .collect_unreported(checks, numbers, &questions)
                .is_empty()
        {
            return self.store.ask_with(patience, questions, at).await;
        }
        Box::pin(self.report_and_send(checks, numbers, questions, at, patience)).await
    }

    /// Sends queries, and in the same call before them reports what was decided here without the store. A
    /// calendar whose period doesn't contain the store's time is sent once more.
    async fn report_and_send(
        &self,
        checks: &[Check<'_>],
        numbers: &[usize],
        mut questions: Vec<StoreQuery>,
        at: Option<u64>,
        patience: &mut RequestDeadline,
    ) -> Result<QueryReplies, StoreError> {
        for _ in 0..2 {
            let told = self.collect_unreported(checks, numbers, &questions);
            let raises = told.iter().map(|(_, _, raise)| raise);
            let all = raises.chain(&questions).cloned().collect();
            let mut answers = self.store.ask_with(patience, all, at).await?;
            answers.replies.drain(..told.len());
            if !answers.replies.iter().any(RawReply::is_wrong_period) {
                for (number, owed, _) in &told {
                    self.local.mark_reported(&checks[*number], owed);
                }
                return Ok(answers);
            }
            // The report wasn't executed: it is sent again with the next attempt.
            self.record_store_time(answers.now);
            for (question, number) in questions.iter_mut().zip(numbers) {
                let form = &self.stored(checks[*number].limit)?.form;
                question.params = form.params_at(answers.now).unwrap_or(question.params);
            }
        }
        // The clock stepped in between, or the calendar doesn't reach as far. That is an error, not a denial.
        let what = "the store's clock is outside of the calendar periods that were sent";
        Err(StoreError::garbled(what))
    }

    /// The unreported usage of the keys of these queries.
    fn collect_unreported(
        &self,
        checks: &[Check<'_>],
        numbers: &[usize],
        questions: &[StoreQuery],
    ) -> Vec<UsageReport> {
        let decides =
            |question: &StoreQuery| matches!(question.op, StoreOp::Decide | StoreOp::Hold);
        let decides = questions.iter().all(decides);
        let told = |(question, number): (&StoreQuery, &usize)| {
            let owed = self.local.unreported_usage(&checks[*number])?;
            let raise = StoreQuery {
                op: StoreOp::RaiseUsage(question.params.owed_units(&owed)),
                cost: owed.used,
                holder: None,
                ..question.clone()
            };
            Some((*number, owed, raise))
        };
        let asked = questions.iter().zip(numbers).filter(|_| decides);
        asked.filter_map(told).collect()
    }

    /// Groups queries that can share a call, in their order. The size of a call is bounded, because other
    /// clients wait while the store executes it.
    pub(super) fn group_by_lane(
        &self,
        asked: Vec<(usize, StoreQuery)>,
    ) -> Vec<Vec<(usize, StoreQuery)>> {
        let mut groups: Vec<(u16, Vec<(usize, StoreQuery)>)> = Vec::new();
        for (number, question) in asked {
            let lane = self.store.lane(&question.key);
            let has_room = |(other, group): &&mut (u16, Vec<_>)| {
                *other == lane && group.len() < MAX_QUERIES_PER_CALL
            };
            match groups.iter_mut().find(has_room) {
                Some((_, group)) => group.push((number, question)),
                None => groups.push((lane, vec![(number, question)])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }
}
