//! The second step of a request: what was planned is done, all or none.

use tollgate::Decision;
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, DenyVersion};
use tollgate_engine::policy::Counting;

use super::estimate::{held_within, is_held};
use super::plan::Need;
use super::undo::{Charge, Undo};
use super::{Direct, Moment};
use crate::error::StoreError;
use crate::lease::Here;
use crate::question::Question;
use crate::store::Patience;
use crate::stored::LeaseCheck;

/// What came of a request.
struct CarriedOut {
    answer: Answer,
    /// What each check said, unless one refused before all were asked.
    each: Option<Vec<Decision>>,
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

impl Direct {
    /// Does what was planned.
    async fn carry_out(
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
        if carrying.spend_what_is_here(&needs) {
            return Ok(carrying.passed());
        }
        let (mut tokens, mut asked): (Vec<_>, Vec<(usize, Question)>) = (Vec::new(), Vec::new());
        for (number, need) in needs.into_iter().enumerate() {
            match need {
                Need::Nothing(known) => carrying.decisions[number] = known,
                Need::Tokens(stored) => tokens
                    .extend(LeaseCheck::of(&checks[number], stored).map(|check| (number, check))),
                Need::Answer(question) => asked.push((number, *question)),
            }
        }
        // Those first that the store has to be asked for: what is here of the others is left to everybody meanwhile.
        tokens.sort_by_key(|(_, check)| self.is_here(*check));
        for (place, (number, check)) in tokens.iter().enumerate() {
            if let Some(refused) = carrying.take_tokens(*number, *check).await? {
                let others = tokens[place + 1..].iter().map(|(number, _)| *number);
                let others = others.chain(asked.iter().map(|(number, _)| *number));
                let denied = carrying.refused_by(*number, refused, others.collect());
                return Ok(denied.await);
            }
        }
        for group in self.groups(asked) {
            // In a cluster those in other hash slots aren't asked after a refusal: it costs one round trip.
            if let Some((numbers, before)) = carrying.ask_group(group).await? {
                return Ok(carrying.refused_together(&numbers, before));
            }
        }
        Ok(carrying.passed())
    }

    /// Does what was planned, and lists what each check said if that is wanted.
    pub(super) async fn answer(
        &self,
        checks: &[Check<'_>],
        needs: Vec<Need<'_>>,
        each: Option<&mut Vec<CheckResult>>,
    ) -> Result<Answer, StoreError> {
        let done = self.carry_out(checks, needs).await?;
        if let Some(each) = each {
            each.extend(done.each.into_iter().flatten().map(Ok));
        }
        Ok(done.answer)
    }

    /// Asks the only question of a request, which takes no slot: there is nothing to put back.
    pub(super) async fn ask_one(
        &self,
        checks: &[Check<'_>],
        question: Question,
    ) -> Result<Answer, StoreError> {
        let numbers = question.numbers;
        let (asked, mut patience) = (vec![question], self.store.patience());
        let before = self.moment();
        // The answer is noted: what that needs is fetched while the store decides.
        let (noted, key) = (checks[0].limit, &checks[0].key);
        self.local.memory().prefetch(noted, key.fingerprint());
        let sent = self.send(checks, &[0], asked, self.at(), &mut patience);
        let answers = sent.await?;
        let decision = answers.each[0].decision(&numbers);
        self.local.note(&checks[0], &decision);
        Ok(if decision.is_allowed() {
            Answer::new(Some(0), decision)
        } else {
            self.refused(checks, &[decision], before)
        })
    }

    /// The answer to a request, some of whose checks refuse it.
    fn refused(&self, checks: &[Check<'_>], refusals: &[Decision], before: Moment) -> Answer {
        let answer = Answer::over(checks, refusals);
        if let Some(check) = answer.decider.map(|number| &checks[number])
            && let Ok(stored) = self.stored(check.limit)
            && stored.leased.is_none()
        {
            let version = DenyVersion(stored.version, before.epoch);
            (self.refusals).note(check, &answer.decision, before.at, version);
        }
        answer
    }

    /// Whether what a check costs is here.
    fn is_here(&self, check: LeaseCheck<'_>) -> bool {
        let here = (self.leases).look_here(check.lease_key(), check.check.cost);
        matches!(here, Here::Enough)
    }

    /// Whether a limit is spent by leases, whatever is taken ahead.
    pub(super) fn is_lent(&self, check: &Check<'_>) -> bool {
        let stored = self.stored(check.limit);
        stored.is_ok_and(|stored| stored.leased.is_some())
    }
}

impl Carrying<'_, '_> {
    /// Spends all at once, if all of it is here: whether it was.
    fn spend_what_is_here(&mut self, needs: &[Need<'_>]) -> bool {
        let leases = &self.direct.leases;
        for (number, need) in needs.iter().enumerate() {
            let check = &self.checks[number];
            let spent = match need {
                Need::Nothing(known) => Some(*known),
                Need::Tokens(stored) if !is_held(check) => {
                    LeaseCheck::of(check, stored).and_then(|lent| {
                        let place = lent.lease_key();
                        let (said, stamp) = leases.try_spend_for_now(place, check.cost)?;
                        self.undo.leases.push((place, check.cost, stamp));
                        Some(said)
                    })
                }
                Need::Tokens(_) | Need::Answer(_) => None,
            };
            let Some(said) = spent else {
                self.undo.put_back();
                return false;
            };
            self.decisions[number] = said;
        }
        true
    }

    /// Takes what a check costs, or is estimated to, of a lease: what it says if it denies that.
    async fn take_tokens(
        &mut self,
        number: usize,
        lent: LeaseCheck<'_>,
    ) -> Result<Option<Decision>, StoreError> {
        let (check, leases) = (lent.check, &self.direct.leases);
        if is_held(check) {
            self.is_known = false;
            let held = leases.hold(lent, held_within(check), &mut self.patience);
            let (decision, estimate) = held.await?;
            let Some(estimate) = estimate else {
                return Ok(Some(decision));
            };
            self.decisions[number] = decision;
            self.undo.estimates.push((number, estimate));
            return Ok(None);
        }
        let had = if self.checks.len() == 1 || check.cost == 0 {
            leases.spend(lent, &mut self.patience).await?
        } else {
            leases.take(lent, &mut self.patience).await?
        };
        self.is_known &= had.is_known;
        if !had.decision.is_allowed() {
            return Ok(Some(had.decision));
        }
        self.decisions[number] = had.decision;
        self.undo.taken.extend(had.taken);
        Ok(None)
    }

    /// One check has refused before these others were asked.
    async fn refused_by(
        mut self,
        number: usize,
        decision: Decision,
        others: Vec<usize>,
    ) -> CarriedOut {
        let (direct, mut answer) = (self.direct, Answer::new(Some(number), decision));
        if self.is_known {
            answer.source = direct.source_ahead();
        } else {
            let mut refusals = vec![Decision::UNLIMITED; self.checks.len()];
            refusals[number] = decision;
            answer = self.gravest(refusals, others).await;
        }
        CarriedOut { answer, each: None }
    }

    /// The refusal that takes longest, of those that are known and of these others: whoever comes back sooner is
    /// refused again. What can't be looked at isn't told.
    async fn gravest(&mut self, mut refusals: Vec<Decision>, others: Vec<usize>) -> Answer {
        let (direct, checks) = (self.direct, self.checks);
        // Nothing is kept from others meanwhile.
        drop(std::mem::replace(&mut self.undo, Undo::new(direct)));
        let before = direct.moment();
        for number in others {
            let looked = direct.peek_one(checks, number, &mut self.patience).await;
            match looked {
                Ok(said) if !said.is_allowed() => refusals[number] = said,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        direct.refused(checks, &refusals, before)
    }

    /// Asks questions that go together: which those are, and since when, if some of them refuse.
    async fn ask_group(
        &mut self,
        group: Vec<(usize, Question)>,
    ) -> Result<Option<(Vec<usize>, Moment)>, StoreError> {
        let (numbers, questions): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let before = self.direct.moment();
        self.is_known = false;
        // It may be carried out although no answer comes, or nobody waits for it any more.
        let slots = questions.iter().filter(|asked| asked.holder.is_some());
        self.undo.unsure.extend(slots.cloned());
        let (asked, at) = (questions.clone(), self.direct.at());
        let sent = (self.direct).send(self.checks, &numbers, asked, at, &mut self.patience);
        let answers = sent.await?;
        self.undo.unsure.clear();
        let mut is_refused = false;
        let mut charged = Vec::with_capacity(questions.len());
        for ((number, question), raw) in numbers.iter().zip(questions).zip(answers.each) {
            let (charge, raw) = Charge::new(*number, question, raw, answers.now);
            self.decisions[*number] = raw.decision(&charge.question.numbers);
            is_refused |= !self.decisions[*number].is_allowed();
            charged.push(charge);
        }
        if is_refused {
            return Ok(Some((numbers, before)));
        }
        let charged = charged.into_iter();
        let charged = charged.filter(|charge| charge.question.cost > 0);
        self.undo.charges.extend(charged);
        Ok(None)
    }

    /// Some of these checks, which were asked together, have refused.
    fn refused_together(mut self, numbers: &[usize], before: Moment) -> CarriedOut {
        let mut refusals = vec![Decision::UNLIMITED; self.checks.len()];
        for number in numbers {
            // Those that would have passed weren't charged either.
            let uncharged = Check {
                cost: 0,
                ..self.checks[*number]
            };
            let said = &self.decisions[*number];
            self.direct.local.note(&uncharged, said);
            refusals[*number] = *said;
        }
        let answer = self.direct.refused(self.checks, &refusals, before);
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
            if let Some(slot) = direct.local.hold_permit(check) {
                answer.pass = std::mem::take(&mut answer.pass).and(slot);
            }
        }
        let (charges, estimates) = self.undo.keep();
        for charge in charges {
            let check = &checks[charge.number];
            if let Some(end) = direct.holders.hold(&charge.question) {
                answer.pass.hold(move |_| end());
            } else if is_held(check) {
                direct.hold_charge(check, charge, &mut answer.pass);
            }
        }
        for (number, estimate) in estimates {
            direct.hold_estimate(&checks[number], estimate, &mut answer.pass);
        }
        CarriedOut {
            answer,
            each: Some(self.decisions),
        }
    }
}
