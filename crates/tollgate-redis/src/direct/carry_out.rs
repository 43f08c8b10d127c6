//! The second step of a request: what was planned is done, all or none.

use std::ops::ControlFlow;

use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, DenyVersion};
use tollgate_engine::policy::Counting;

use super::estimate::{hold_estimate, is_held};
use super::plan::Need;
use super::undo::Undo;
use super::{Direct, StoredLimit};
use crate::error::StoreError;
use crate::lease::Leased;
use crate::question::Question;
use crate::store::Patience;

/// What came of a request.
pub(super) struct CarriedOut {
    pub(super) answer: Answer,
    /// What each check said, unless one refused before all were asked.
    pub(super) each: Option<Vec<Decision>>,
}

/// A request that is being carried out. Dropped before its end, it has charged nothing.
struct Carrying<'a, 'c> {
    direct: &'a Direct,
    checks: &'a [Check<'c>],
    decisions: Vec<Decision>,
    undo: Undo<'a>,
    /// For all that is asked, one after the other.
    patience: Patience,
    /// Whether nothing was asked so far.
    is_known: bool,
}

/// It goes on, or is refused.
type Went = ControlFlow<CarriedOut>;

impl Direct {
    /// Does what was planned.
    pub(super) async fn carry_out(
        &self,
        checks: &[Check<'_>],
        needs: Vec<Need<'_>>,
    ) -> Result<CarriedOut, StoreError> {
        let mut carrying = Carrying {
            direct: self,
            checks,
            decisions: vec![Decision::UNLIMITED; checks.len()],
            undo: Undo::new(self),
            patience: self.store.patience(),
            is_known: true,
        };
        let mut asked: Vec<(usize, Question)> = Vec::new();
        for (number, need) in needs.into_iter().enumerate() {
            match need {
                Need::Nothing(known) => carrying.decisions[number] = known,
                Need::Tokens(stored, leased) => {
                    let went = carrying.take_tokens(number, (stored, &leased)).await?;
                    if let ControlFlow::Break(refused) = went {
                        return Ok(refused);
                    }
                }
                Need::Answer(question) => asked.push((number, *question)),
            }
        }
        for group in self.groups(asked) {
            if let ControlFlow::Break(refused) = carrying.ask_group(group).await? {
                return Ok(refused);
            }
        }
        Ok(carrying.passed())
    }

    /// Does what was planned, for those who want to know no more than the answer.
    pub(super) async fn answer(
        &self,
        checks: &[Check<'_>],
        needs: Vec<Need<'_>>,
    ) -> Result<Answer, StoreError> {
        Ok(self.carry_out(checks, needs).await?.answer)
    }

    /// Asks the only question of a request, which takes no slot: there is nothing to put back.
    pub(super) async fn ask_one(
        &self,
        checks: &[Check<'_>],
        question: Question,
    ) -> Result<Answer, StoreError> {
        let limit = question.numbers.limit;
        let (question, mut patience) = ((vec![question], self.at()), self.store.patience());
        // Before the question: whatever improves after it makes its answer old.
        let before = self.before();
        // The answer is noted: what that needs is fetched while the store decides.
        let (noted, key) = (checks[0].limit, &checks[0].key);
        self.local.memory().prefetch(noted, key.fingerprint());
        let answers = self.ask(checks, &[0], question, &mut patience).await?;
        let decision = answers.each[0].decision(limit);
        self.local.note(&checks[0], &decision);
        Ok(if decision.is_allowed() {
            Answer::new(Some(0), decision)
        } else {
            self.refused(checks, &[decision], &[0], before)
        })
    }

    /// The answer to a request that some of these refused.
    fn refused(
        &self,
        checks: &[Check<'_>],
        decisions: &[Decision],
        numbers: &[usize],
        (at, epoch): (Timestamp, u64),
    ) -> Answer {
        let mut refusals = vec![Decision::UNLIMITED; checks.len()];
        for number in numbers {
            refusals[*number] = decisions[*number];
        }
        let answer = Answer::over(checks, &refusals);
        if let Some(check) = answer.decider.map(|number| &checks[number])
            && let Ok(stored) = self.stored(check.limit)
        {
            let version = || DenyVersion(stored.version, epoch);
            self.refusals.note(check, &answer.decision, at, version);
        }
        answer
    }

    /// Whether a limit is spent by leases, whatever is taken ahead.
    fn is_lent(&self, check: &Check<'_>) -> bool {
        let stored = self.stored(check.limit);
        stored.is_ok_and(|stored| stored.leased.is_some())
    }
}

impl Carrying<'_, '_> {
    /// Takes what a check costs, or is estimated to, of a lease.
    async fn take_tokens(
        &mut self,
        number: usize,
        of: (&StoredLimit, &Leased),
    ) -> Result<Went, StoreError> {
        let check = &self.checks[number];
        if is_held(check) {
            self.is_known = false;
            let held = self.direct.hold(check, of, &mut self.patience);
            let (decision, estimate) = held.await?;
            let Some(estimate) = estimate else {
                return Ok(self.refused_by(number, decision));
            };
            self.decisions[number] = decision;
            self.undo.estimates.push((number, estimate));
            return Ok(Went::Continue(()));
        }
        let spent = self.direct.spend(check, of, &mut self.patience).await?;
        self.is_known &= spent.is_known;
        if !spent.decision.is_allowed() {
            return Ok(self.refused_by(number, spent.decision));
        }
        self.decisions[number] = spent.decision;
        self.undo.leases.push((spent.key, check.cost, spent.plans));
        Ok(Went::Continue(()))
    }

    /// One check has refused before all were asked.
    fn refused_by(&self, number: usize, decision: Decision) -> Went {
        let mut answer = Answer::new(Some(number), decision);
        if self.is_known {
            answer.source = self.direct.source_ahead();
        }
        Went::Break(CarriedOut { answer, each: None })
    }

    /// Asks questions that go together.
    async fn ask_group(&mut self, group: Vec<(usize, Question)>) -> Result<Went, StoreError> {
        let (numbers, questions): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        // Before the question: whatever improves after it makes its answer old.
        let before = self.direct.before();
        self.is_known = false;
        // It may be carried out although no answer comes, or nobody waits for it any more.
        let slots = questions.iter().filter(|asked| asked.holder.is_some());
        self.undo.unsure.extend(slots.cloned());
        let asked = (questions.clone(), self.direct.at());
        let asking = self
            .direct
            .ask(self.checks, &numbers, asked, &mut self.patience);
        let answers = asking.await?;
        self.undo.unsure.clear();
        let mut is_refused = false;
        for ((number, question), raw) in numbers.iter().zip(&questions).zip(&answers.each) {
            self.decisions[*number] = raw.decision(question.numbers.limit);
            is_refused |= !self.decisions[*number].is_allowed();
        }
        if is_refused {
            return Ok(Went::Break(self.refused_together(&numbers, before)));
        }
        let charged = numbers.into_iter().zip(questions);
        let charged = charged.filter(|(_, question)| question.cost > 0);
        let charged = charged.map(|(number, question)| (number, question, answers.now));
        self.undo.charges.extend(charged);
        Ok(Went::Continue(()))
    }

    /// Some of these checks, which were asked together, have refused.
    fn refused_together(&mut self, numbers: &[usize], before: (Timestamp, u64)) -> CarriedOut {
        for number in numbers {
            // Those that would have passed weren't charged either.
            let uncharged = Check {
                cost: 0,
                ..self.checks[*number]
            };
            let said = &self.decisions[*number];
            self.direct.local.note(&uncharged, said);
        }
        let answer = (self.direct).refused(self.checks, &self.decisions, numbers, before);
        let asked_all = numbers.len() == self.checks.len();
        let each = asked_all.then(|| std::mem::take(&mut self.decisions));
        CarriedOut { answer, each }
    }

    /// All have passed: what was charged stays so, and the answer holds what the request has while it runs.
    fn passed(mut self) -> CarriedOut {
        let (direct, checks) = (self.direct, self.checks);
        let mut answer = Answer::over(checks, &self.decisions);
        if self.is_known {
            answer.source = direct.source_ahead();
        }
        for (check, decision) in checks.iter().zip(&self.decisions) {
            // What is spent of a lease is noted when the store is next asked.
            if check.limit.counting() == Counting::Exact && !direct.is_lent(check) {
                direct.local.note(check, decision);
            }
            if let Some(slot) = direct.local.hold_slot(check) {
                answer.pass = std::mem::take(&mut answer.pass).and(slot);
            }
        }
        let (charges, estimates) = self.undo.keep();
        for (number, question, since) in charges {
            if let Some(end) = direct.holders.hold(&question) {
                answer.pass.hold(move |_| end());
            } else if is_held(&checks[number]) {
                direct.hold_charge(&checks[number], (question, since), &mut answer.pass);
            }
        }
        for (number, estimate) in estimates {
            hold_estimate(&checks[number], estimate, &mut answer.pass);
        }
        CarriedOut {
            answer,
            each: Some(self.decisions),
        }
    }
}
