//! The second step of a request: the plan is executed, all or none, one query after the other.

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

/// A request in execution. If it is dropped before its end, everything is rolled back.
struct Execution<'a, 'c> {
    direct: &'a StoreClient,
    checks: &'a [Check<'c>],
    decisions: Vec<Decision>,
    /// The deadline of all queries together.
    patience: RequestDeadline,
    /// Whether no query was necessary so far.
    is_known: bool,
    /// Tokens spent of leases, without an await in between.
    spent_leases: Vec<(LeaseKey, u64, SpendStamp)>,
    /// Tokens held of leases, with the number of the check.
    held_leases: Vec<(usize, LeaseHold)>,
    /// Charges in the store.
    charges: Vec<Charge>,
    /// Permits that the store may have granted.
    maybe_taken_permits: Vec<StoreQuery>,
}

/// A charge in the store.
pub(super) struct Charge {
    /// The number of the check.
    number: usize,
    /// The query that charged it.
    pub(super) question: StoreQuery,
    /// The operation that refunds it.
    pub(super) refund_op: StoreOp,
}

impl Charge {
    /// The charge of a query that got this reply at this time, and the reply without the fields that only a
    /// charge reads.
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
    /// Executes a plan. Lists the result of each check in `each`, unless one denied before all were queried.
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
        // Leases that need a refill come first: meanwhile, the tokens of the others stay available to other
        // requests.
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
            // In a cluster, checks in other hash slots aren't queried after a denial, so a denial costs one
            // round trip.
            if let Some((numbers, before)) = carrying.query_group(group).await? {
                return Ok(carrying.denied_by_group_answer(&numbers, before, each));
            }
        }
        Ok(carrying.allowed_answer(each))
    }

    /// Sends the only query of a request. It takes no permit, so nothing has to be rolled back.
    pub(super) async fn execute_single_query(
        &self,
        checks: &[Check<'_>],
        question: StoreQuery,
    ) -> Result<Answer, StoreError> {
        let numbers = question.params;
        let (asked, mut patience) = (vec![question], self.store.patience());
        let before = self.epoch_time();
        // The decision is recorded in memory: prefetch the entry while the store decides.
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

    /// The answer to a request that some of its checks deny.
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

    /// Whether the lease has enough tokens for a check.
    fn has_leased_tokens(&self, check: LeaseCheck<'_>) -> bool {
        let known = (self.leases).peek_held(check.lease_key(), check.check.cost);
        known.is_some_and(|known| known.is_allowed())
    }

    /// Whether a limit is spent through a lease, even if nothing is leased in advance.
    pub(super) fn is_leased(&self, check: &Check<'_>) -> bool {
        let stored = self.stored(check.limit);
        stored.is_ok_and(|stored| stored.leased.is_some())
    }
}

impl Execution<'_, '_> {
    /// Spends the cost of all checks from their leases, if there are enough tokens for each. Returns whether it
    /// did.
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

    /// Takes the cost or the estimate of a check from its lease. Returns the decision if that denies.
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

    /// The answer if a lease denies before the other checks were queried. Of all denials, the one with the
    /// longest delay counts, because a client that retries sooner is denied again. Checks that can't be peeked
    /// at are left out.
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
        // Roll back first, so that no tokens are kept from other requests during the queries.
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

    /// Sends queries that can share a call. If some of them deny the request, returns the numbers of these
    /// checks and the time before the query.
    async fn query_group(
        &mut self,
        group: Vec<(usize, StoreQuery)>,
    ) -> Result<Option<(Vec<usize>, EpochTime)>, StoreError> {
        let (numbers, questions): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let before = self.direct.epoch_time();
        self.is_known = false;
        // The store may execute the query although no reply comes, or the request is cancelled.
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

    /// The answer if some of these checks deny, which were queried together.
    fn denied_by_group_answer(
        self,
        numbers: &[usize],
        before: EpochTime,
        each: Option<&mut Vec<CheckResult>>,
    ) -> Answer {
        let mut denials = vec![Decision::UNLIMITED; self.checks.len()];
        for number in numbers {
            // Checks that would have passed weren't charged either.
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

    /// The answer if all checks passed: the charges stay, and the answer holds permits and estimates while the
    /// request runs.
    fn allowed_answer(mut self, each: Option<&mut Vec<CheckResult>>) -> Answer {
        let (direct, checks) = (self.direct, self.checks);
        let mut answer = Answer::from_decisions(checks, &self.decisions);
        if self.is_known {
            answer.source = direct.leased_source();
        }
        for (check, decision) in checks.iter().zip(&self.decisions) {
            // Tokens spent of a lease are recorded with the next refill.
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

    /// Refunds what was charged so far.
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
