//! Questions on their way: what was decided without the store goes before them, and calendars may go twice.

use tollgate_engine::backend::Check;

use super::StoreClient;
use super::estimate::is_estimate;
use crate::error::StoreError;
use crate::local_limits::UnreportedUsage;
use crate::query::{QueryReplies, RawReply, StoreKind, StoreOp, StoreQuery};
use crate::store::RequestDeadline;

/// Questions of one call: as many as requests are merged into.
const MAX_QUERIES_PER_CALL: usize = 128;

/// What a check's key owes, and the question that tells the store so.
type UsageReport = (usize, UnreportedUsage, StoreQuery);

fn is_calendar(question: &StoreQuery) -> bool {
    question.params.kind == StoreKind::Calendar
}

impl StoreClient {
    /// A question about the key of a check.
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
            // A request takes one slot, however much it costs, and one that is looked for is one.
            cost: match op {
                StoreOp::Peek if is_slots => 1,
                _ if is_slots => check.cost.min(1),
                _ => check.cost,
            },
            holder: is_slots.then(|| self.holders.next_holder_name()),
        })
    }

    /// The question whether a check passes.
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
            // A request takes one slot, also at no cost.
            question.cost = 1;
        }
        Ok(question)
    }

    /// Asks questions of one lane.
    ///
    /// This is part of every decision's future, which is to stay small enough for the allocator's fast path. What takes
    /// more is boxed by itself.
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

    /// Asks, and in the same call first tells the store what was decided here without it. A calendar that the
    /// store's clock isn't in is sent once more.
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
            // Nothing was told: it goes with the next question.
            self.record_store_time(answers.now);
            for (question, number) in questions.iter_mut().zip(numbers) {
                let form = &self.stored(checks[*number].limit)?.form;
                question.params = form.params_at(answers.now).unwrap_or(question.params);
            }
        }
        // The clock has stepped meanwhile, or the calendar doesn't reach as far: that is no refusal.
        let what = "the store's clock is in no period that it was told of";
        Err(StoreError::garbled(what))
    }

    /// What the keys of these questions owe that the store wasn't told of.
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

    /// Questions that can go together, in their order. No call has so many that the store works on it for
    /// long: others wait meanwhile.
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
