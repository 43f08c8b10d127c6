//! The second step of a request: what was planned is done, all or none, one thing after the other.

use tollgate::Decision;
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, DenyVersion};
use tollgate_engine::policy::Counting;

use super::estimate::{is_estimate, lease_hold_time};
use super::plan::CheckPlan;
use super::{EpochTime, StoreClient};
use crate::error::StoreError;
use crate::lease::{ChargeTiming, LeaseHold, SpendStamp};
use crate::query::{RawReply, StoreOp, StoreQuery};
use crate::store::RequestDeadline;
use crate::stored_limit::{LeaseCheck, LeaseKey};

/// A request that is being carried out: dropped before its end, it has charged nothing.
struct Execution<'a, 'c> {
    direct: &'a StoreClient,
    checks: &'a [Check<'c>],
    decisions: Vec<Decision>,
    /// For all that is asked, one after the other.
    patience: RequestDeadline,
    /// Whether nothing was asked so far.
    is_known: bool,
    /// Spent of leases, without asking anybody meanwhile.
    spent_leases: Vec<(LeaseKey, u64, SpendStamp)>,
    /// Held of leases, by the number of the check.
    held_leases: Vec<(usize, LeaseHold)>,
    /// Charged in the store.
    charges: Vec<Charge>,
    /// Slots that may have been taken.
    maybe_taken_permits: Vec<StoreQuery>,
}

/// A charge in the store.
pub(super) struct Charge {
    /// Which check it is of.
    number: usize,
    /// What was asked.
    pub(super) question: StoreQuery,
    /// What gives it back.
    pub(super) refund_op: StoreOp,
}

impl Charge {
    /// A question that was answered so, at this time: the charge, and the answer without what only a charge reads.
    fn new(number: usize, question: StoreQuery, raw: RawReply, now: u64) -> (Self, RawReply) {
        let (back, raw) = match question.op {
            StoreOp::Hold => {
                let (generation, raw) = raw.split_generation();
                let since = now;
                (StoreOp::RefundHeldCharge { since, generation }, raw)
            }
            _ => (StoreOp::RefundCharge(now), raw),
        };
        let charge = Self {
            number,
            question,
            refund_op: back,
        };
        (charge, raw)
    }
}

impl StoreClient {
    /// Does what was planned, and lists what each check said if that is wanted, unless one denied before all were asked.
    pub(super) async fn carry_out(
        &self,
        checks: &[Check<'_>],
        needs: Vec<CheckPlan<'_>>,
        each: Option<&mut Vec<CheckResult>>,
    ) -> Result<Answer, StoreError> {
        let mut carrying = Execution {
            direct: self,
            checks,
            decisions: vec![Decision::UNLIMITED; checks.len()],
            patience: self.store.patience(),
            is_known: true,
            spent_leases: Vec::new(),
            held_leases: Vec::new(),
            charges: Vec::new(),
            maybe_taken_permits: Vec::new(),
        };
        if carrying.try_spend_all_leased(&needs) {
            return Ok(carrying.allowed_answer(each));
        }
        let (mut tokens, mut asked): (Vec<_>, Vec<(usize, StoreQuery)>) = (Vec::new(), Vec::new());
        for (number, need) in needs.into_iter().enumerate() {
            match need {
                CheckPlan::Known(known) => carrying.decisions[number] = known,
                CheckPlan::LeasedTokens(lent) => tokens.push((number, lent)),
                CheckPlan::StoreQuery(question) => asked.push((number, *question)),
            }
        }
        // Those first that the store has to be asked for: what is here of the others is left to everybody meanwhile.
        tokens.sort_by_key(|(_, check)| self.has_leased_tokens(*check));
        for (place, (number, check)) in tokens.iter().enumerate() {
            if let Some(denied) = carrying.take_leased_tokens(*number, *check).await? {
                let others = tokens[place + 1..].iter().map(|(number, _)| *number);
                let others = others.chain(asked.iter().map(|(number, _)| *number));
                return Ok(carrying
                    .denied_by_lease_answer(*number, denied, others.collect())
                    .await);
            }
        }
        for group in self.group_by_lane(asked) {
            // In a cluster those in other hash slots aren't asked after a refusal: it costs one round trip.
            if let Some((numbers, before)) = carrying.query_group(group).await? {
                return Ok(carrying.denied_by_group_answer(&numbers, before, each));
            }
        }
        Ok(carrying.allowed_answer(each))
    }

    /// Asks the only question of a request, which takes no slot: there is nothing to put back.
    pub(super) async fn execute_single_query(
        &self,
        checks: &[Check<'_>],
        question: StoreQuery,
    ) -> Result<Answer, StoreError> {
        let numbers = question.params;
        let (asked, mut patience) = (vec![question], self.store.patience());
        let before = self.epoch_time();
        // The answer is noted: what that needs is fetched while the store decides.
        let (noted, key) = (checks[0].limit, &checks[0].key);
        self.local.memory().prefetch(noted, key.fingerprint());
        let sent = self.send(checks, &[0], asked, self.caller_time(), &mut patience);
        let answers = sent.await?;
        let decision = answers.replies[0].decision(&numbers);
        self.local.record_decision(&checks[0], &decision);
        Ok(if decision.is_allowed() {
            Answer::new(Some(0), decision)
        } else {
            self.denied_answer(checks, &[decision], before)
        })
    }

    /// The answer to a request, some of whose checks deny it.
    fn denied_answer(
        &self,
        checks: &[Check<'_>],
        denials: &[Decision],
        before: EpochTime,
    ) -> Answer {
        let answer = Answer::from_decisions(checks, denials);
        if let Some(check) = answer.decider.map(|number| &checks[number])
            && let Ok(stored) = self.stored(check.limit)
            && stored.leased.is_none()
        {
            let version = DenyVersion(stored.version, before.epoch);
            (self.refusals).remember(check, &answer.decision, before.at, version);
        }
        answer
    }

    /// Whether what a check costs is here.
    fn has_leased_tokens(&self, check: LeaseCheck<'_>) -> bool {
        let known = (self.leases).peek_held(check.lease_key(), check.check.cost);
        known.is_some_and(|known| known.is_allowed())
    }

    /// Whether a limit is spent by leases, whatever is taken ahead.
    pub(super) fn is_leased(&self, check: &Check<'_>) -> bool {
        let stored = self.stored(check.limit);
        stored.is_ok_and(|stored| stored.leased.is_some())
    }
}

impl Execution<'_, '_> {
    /// Spends all at once, if all of it is here: whether it was.
    fn try_spend_all_leased(&mut self, needs: &[CheckPlan<'_>]) -> bool {
        let leases = &self.direct.leases;
        for (number, need) in needs.iter().enumerate() {
            let check = &self.checks[number];
            let said = match need {
                CheckPlan::Known(known) => Some(*known),
                CheckPlan::LeasedTokens(lent) if !is_estimate(check) => {
                    let place = lent.lease_key();
                    let spent = leases.try_spend_revocable(place, check.cost);
                    spent.map(|(said, stamp)| {
                        self.spent_leases.push((place, check.cost, stamp));
                        said
                    })
                }
                CheckPlan::LeasedTokens(_) | CheckPlan::StoreQuery(_) => None,
            };
            let Some(said) = said else {
                self.roll_back();
                return false;
            };
            self.decisions[number] = said;
        }
        true
    }

    /// Takes what a check costs, or is estimated to, of a lease: what it says if it denies that.
    async fn take_leased_tokens(
        &mut self,
        number: usize,
        lent: LeaseCheck<'_>,
    ) -> Result<Option<Decision>, StoreError> {
        let charge = match lent.check {
            check if is_estimate(check) => ChargeTiming::Estimate(lease_hold_time(check)),
            check if self.checks.len() == 1 || check.cost == 0 => ChargeTiming::Now,
            _ => ChargeTiming::WhenAllPass,
        };
        let leases = &self.direct.leases;
        let had = leases.take(lent, charge, &mut self.patience).await?;
        self.is_known &= had.is_known && !matches!(charge, ChargeTiming::Estimate(_));
        if !had.decision.is_allowed() {
            return Ok(Some(had.decision));
        }
        self.decisions[number] = had.decision;
        self.held_leases.extend(had.hold.map(|hold| (number, hold)));
        Ok(None)
    }

    /// One check has denied the request before these others were asked. Of all of them, the denial that takes longest
    /// is told: whoever comes back sooner is denied again. What can't be looked at isn't told.
    async fn denied_by_lease_answer(
        mut self,
        number: usize,
        denial: Decision,
        others: Vec<usize>,
    ) -> Answer {
        let (direct, checks) = (self.direct, self.checks);
        if self.is_known {
            let mut answer = Answer::new(Some(number), denial);
            answer.source = direct.leased_source();
            return answer;
        }
        let mut denials = vec![Decision::UNLIMITED; checks.len()];
        denials[number] = denial;
        // Nothing is kept from others meanwhile.
        self.roll_back();
        let before = direct.epoch_time();
        for number in others {
            let patience = &mut self.patience;
            let looked = direct.run_operation(&checks[number], StoreOp::Peek, None, patience);
            match looked.await {
                Ok((said, _)) if !said.is_allowed() => denials[number] = said,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        direct.denied_answer(checks, &denials, before)
    }

    /// Asks questions that go together: which those are, and since when, if some of them deny the request.
    async fn query_group(
        &mut self,
        group: Vec<(usize, StoreQuery)>,
    ) -> Result<Option<(Vec<usize>, EpochTime)>, StoreError> {
        let (numbers, questions): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let before = self.direct.epoch_time();
        self.is_known = false;
        // It may be carried out although no answer comes, or nobody waits for it any more.
        let slots = questions.iter().filter(|asked| asked.holder.is_some());
        self.maybe_taken_permits.extend(slots.cloned());
        let (asked, at) = (questions.clone(), self.direct.caller_time());
        let sent = (self.direct).send(self.checks, &numbers, asked, at, &mut self.patience);
        let answers = sent.await?;
        self.maybe_taken_permits.clear();
        let mut charged = Vec::with_capacity(questions.len());
        for ((number, question), raw) in numbers.iter().zip(questions).zip(answers.replies) {
            let (charge, raw) = Charge::new(*number, question, raw, answers.now);
            self.decisions[*number] = raw.decision(&charge.question.params);
            charged.push(charge);
        }
        let is_denied = |number: &usize| !self.decisions[*number].is_allowed();
        if numbers.iter().any(is_denied) {
            return Ok(Some((numbers, before)));
        }
        charged.retain(|charge| charge.question.cost > 0);
        self.charges.append(&mut charged);
        Ok(None)
    }

    /// Some of these checks, which were asked together, deny the request.
    fn denied_by_group_answer(
        self,
        numbers: &[usize],
        before: EpochTime,
        each: Option<&mut Vec<CheckResult>>,
    ) -> Answer {
        let mut denials = vec![Decision::UNLIMITED; self.checks.len()];
        for number in numbers {
            // Those that would have passed weren't charged either.
            let uncharged = Check {
                cost: 0,
                ..self.checks[*number]
            };
            let said = &self.decisions[*number];
            self.direct.local.record_decision(&uncharged, said);
            denials[*number] = *said;
        }
        if let Some(each) = each.filter(|_| numbers.len() == self.checks.len()) {
            each.extend(self.decisions.iter().copied().map(Ok));
        }
        self.direct.denied_answer(self.checks, &denials, before)
    }

    /// All have passed: what was charged stays so, and the answer holds what the request has while it runs.
    fn allowed_answer(mut self, each: Option<&mut Vec<CheckResult>>) -> Answer {
        let (direct, checks) = (self.direct, self.checks);
        let mut answer = Answer::from_decisions(checks, &self.decisions);
        if self.is_known {
            answer.source = direct.leased_source();
        }
        for (check, decision) in checks.iter().zip(&self.decisions) {
            // What is spent of a lease is noted when the store is next asked.
            if check.limit.counting() == Counting::Exact && !direct.is_leased(check) {
                direct.local.record_decision(check, decision);
            }
            if let Some(slot) = direct.local.hold_permit(check) {
                answer.pass = std::mem::take(&mut answer.pass).merge(slot);
            }
        }
        self.spent_leases.clear();
        for charge in self.charges.drain(..) {
            let check = &checks[charge.number];
            if let Some(end) = direct.holders.hold(&charge.question) {
                answer.pass.on_end(move |_| end());
            } else if is_estimate(check) {
                direct.hold_stored_charge(check, charge, &mut answer.pass);
            }
        }
        for (number, hold) in self.held_leases.drain(..) {
            match &checks[number] {
                check if is_estimate(check) => {
                    direct.hold_leased_estimate(check, hold, &mut answer.pass)
                }
                _ => hold.spend(),
            }
        }
        if let Some(each) = each {
            each.extend(self.decisions.drain(..).map(Ok));
        }
        answer
    }

    /// Gives back what was charged so far.
    fn roll_back(&mut self) {
        let direct = self.direct;
        for (place, cost, stamp) in self.spent_leases.drain(..) {
            direct.leases.restore(place, cost, stamp);
        }
        for question in self.maybe_taken_permits.drain(..) {
            direct.holders.release_if_taken(&question);
        }
        for charge in self.charges.drain(..).rev() {
            let mut question = charge.question;
            if question.holder.is_some() {
                direct.holders.release_if_taken(&question);
            } else {
                question.op = charge.refund_op;
                direct.send_in_background(question);
            }
        }
        self.held_leases.clear();
    }
}

impl Drop for Execution<'_, '_> {
    fn drop(&mut self) {
        self.roll_back();
    }
}
