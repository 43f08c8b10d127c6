//! Questions on their way: what was decided without the store goes before them, and calendars may go twice.

use tollgate_engine::backend::Check;

use super::Direct;
use crate::error::StoreError;
use crate::question::{Answers, Kind, Op, Question};
use crate::store::Patience;

/// Questions of one call: as many as requests are merged into.
const MOST_TOGETHER: usize = 128;

impl Direct {
    /// Asks questions of one lane. A calendar that the store's clock isn't in is sent once more.
    pub(crate) async fn ask(
        &self,
        checks: &[Check<'_>],
        numbers: &[usize],
        (questions, at): (Vec<Question>, Option<u64>),
        patience: &mut Patience,
    ) -> Result<Answers, StoreError> {
        let is_calendar = |question: &Question| question.numbers.kind == Kind::Calendar;
        let again = questions.iter().any(is_calendar).then(|| questions.clone());
        let answers = self
            .tell_and_ask(checks, numbers, (questions, at), patience)
            .await?;
        let Some(mut again) = again else {
            return Ok(answers);
        };
        if !answers.each.iter().any(|raw| raw.is_of_another_time()) {
            return Ok(answers);
        }
        self.note_time(answers.now);
        for (question, number) in again.iter_mut().zip(numbers) {
            let compiled = self.compiled(checks[*number].limit)?;
            question.numbers = compiled
                .form
                .numbers_at(answers.now)
                .unwrap_or(question.numbers);
        }
        let answers = self
            .tell_and_ask(checks, numbers, (again, at), patience)
            .await?;
        // The clock has stepped meanwhile, or nobody's calendar reaches as far: that is no refusal.
        match answers.each.iter().any(|raw| raw.is_of_another_time()) {
            true => Err(StoreError::Garbled {
                what: "the store's clock is in no period that it was told of".to_owned(),
            }),
            false => Ok(answers),
        }
    }

    /// Asks, after telling the store in the same breath what was decided here without it.
    async fn tell_and_ask(
        &self,
        checks: &[Check<'_>],
        numbers: &[usize],
        (mut questions, at): (Vec<Question>, Option<u64>),
        patience: &mut Patience,
    ) -> Result<Answers, StoreError> {
        let decides = questions.iter().all(|question| question.op == Op::Decide);
        let mut told = Vec::new();
        for (question, number) in questions.iter().zip(numbers).filter(|_| decides) {
            let Some(owed) = self.local.owed(&checks[*number]) else {
                continue;
            };
            let raise = Question {
                op: Op::Raise(question.numbers.owed(&owed)),
                cost: owed.used,
                holder: None,
                ..question.clone()
            };
            told.push((*number, owed, raise));
        }
        if told.is_empty() {
            return self.store.ask_with(patience, questions, at).await;
        }
        questions.splice(0..0, told.iter().map(|(_, _, raise)| raise.clone()));
        let mut answers = self.store.ask_with(patience, questions, at).await?;
        answers.each.drain(..told.len());
        // Unless its calendar wasn't of this time: then it is told with the next question.
        if !answers.each.iter().any(|raw| raw.is_of_another_time()) {
            for (number, owed, _) in &told {
                self.local.told(&checks[*number], owed);
            }
        }
        Ok(answers)
    }

    /// Questions that can go together, in their order. No call has so many that the store works on it for
    /// long: others wait meanwhile.
    pub(super) fn groups(&self, asked: Vec<(usize, Question)>) -> Vec<Vec<(usize, Question)>> {
        let mut groups: Vec<(u16, Vec<(usize, Question)>)> = Vec::new();
        for (number, question) in asked {
            let lane = self.store.lane(&question.key);
            let has_room =
                |(other, group): &&mut (u16, Vec<_>)| *other == lane && group.len() < MOST_TOGETHER;
            match groups.iter_mut().find(has_room) {
                Some((_, group)) => group.push((number, question)),
                None => groups.push((lane, vec![(number, question)])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }
}
