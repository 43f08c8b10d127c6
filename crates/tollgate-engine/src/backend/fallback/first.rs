//! Rules that are counted in this process although there is a store: they are asked first.
//!
//! What they refuse isn't sent. What they let pass is held while the store is asked about the rest, and given
//! back if that refuses, or if the request is given up: all or none.

use std::time::Duration;

use tollgate::{Clock, Decision, Level, stack::Terms};

use super::{AskingOrFallback, Fallback, Gate, Way, is_counted_here};
use crate::backend::Backend;
use crate::backend::memory::{BorrowedFrom, TableKey, is_held, level};
use crate::limits::{Answer, Check, Source};

/// For so long what passed here may wait for the store; then it is spent. The request isn't served before.
const TERMS: Terms = Terms::within(Duration::from_secs(60)).refund_on_drop();

impl<B: Backend, C: Clock + 'static, W: Clock + 'static> Fallback<B, C, W> {
    /// An answer to checks of which some are counted here.
    pub(super) fn check_here_first<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> AskingOrFallback<'a, B, C, W> {
        let here = Box::pin(async { self.here_first(checks, Wanted::Answer).await.0 });
        AskingOrFallback::new(self, checks, Gate::Open, Way::Here { here })
    }

    /// The same, and what each said by itself. Of those in the store nothing is known after a refusal here.
    pub(super) async fn each_here_first(&self, checks: &[Check<'_>]) -> (Answer, Vec<Decision>) {
        self.here_first(checks, Wanted::Each).await
    }

    async fn here_first(&self, checks: &[Check<'_>], wanted: Wanted) -> (Answer, Vec<Decision>) {
        let (here, there) = Part::two(checks);
        let memory = self.local.memory();
        let plain = here.without_estimates();
        let owned: Vec<_> = plain
            .checks
            .iter()
            .map(|check| BorrowedFrom::of(Some(check)))
            .collect();
        let held: Vec<TableKey<'_, C, W>> = (plain.checks.iter().zip(&owned))
            .map(|(check, owned)| memory.hold(Some(check), owned))
            .collect();
        let levels: Vec<Level<'_>> = (held.iter().zip(&plain.checks))
            .filter_map(|(held, check)| level(held, check))
            .collect();
        let mut each = vec![Decision::UNLIMITED; checks.len()];
        let estimates = memory
            .hold_estimates(&here.checks)
            .map_err(|(number, said)| (here.numbers[number], said));
        let hold = estimates.and_then(|estimates| {
            let hold = memory.stack().hold(&levels, TERMS);
            let said = hold.map_err(|said| (plain.numbers[said.index], said.decision));
            Ok((said?, estimates))
        });
        let (hold, estimates) = match hold {
            Ok(both) => both,
            Err((decider, decision)) => {
                here.tell(&mut each, &memory.look_at(&here.checks));
                each[decider] = decision;
                let mut answer = Answer::new(Some(decider), decision);
                answer.source = Source::Known;
                return (answer, each);
            }
        };
        let (mut answer, others) = match wanted {
            _ if there.checks.is_empty() => (known(), Vec::new()),
            Wanted::Each => self.ask_each(&there.checks).await,
            Wanted::Answer => match self.check(&there.checks).await {
                Ok(answer) => (answer, Vec::new()),
                Err(never) => match never {},
            },
        };
        there.tell(&mut each, &others);
        answer.decider = there.number_among_all(answer.decider);
        if let Some(decider) = answer.decider {
            each[decider] = answer.decision;
        }
        if answer.allowed {
            answer.pass = hold.keep().and(answer.pass);
            if let Some(estimates) = estimates.keep() {
                answer.pass = answer.pass.and(estimates.into_pass());
            }
            let left = memory.look_at(&here.checks);
            here.tell(&mut each, &left);
            here.decide_if_tighter(&left, &mut answer);
        } else {
            hold.cancel();
            drop(estimates);
            here.tell(&mut each, &memory.look_at(&here.checks));
        }
        (answer, each)
    }
}

/// How much is to be told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Answer,
    Each,
}

/// What is known without a question.
fn known() -> Answer {
    let mut answer = Answer::new(None, Decision::UNLIMITED);
    answer.source = Source::Known;
    answer
}

/// Some of a request's checks, and which they are.
struct Part<'a> {
    numbers: Vec<usize>,
    checks: Vec<Check<'a>>,
}

impl<'a> Part<'a> {
    /// Those that are counted here, and the others.
    fn two(checks: &[Check<'a>]) -> (Self, Self) {
        let of = |here: Counted| {
            let mine = |check: &Check<'_>| is_counted_here(check) == (here == Counted::Here);
            let own = checks
                .iter()
                .copied()
                .enumerate()
                .filter(|(_, check)| mine(check));
            let (numbers, checks) = own.unzip();
            Self { numbers, checks }
        };
        (of(Counted::Here), of(Counted::There))
    }

    /// Those whose costs are known.
    fn without_estimates(&self) -> Self {
        let all = self
            .numbers
            .iter()
            .copied()
            .zip(self.checks.iter().copied());
        let (numbers, checks) = all.filter(|(_, check)| !is_held(check)).unzip();
        Self { numbers, checks }
    }

    /// If less is left of one of these than of what decided, it is the one to tell of; of equals the first is.
    fn decide_if_tighter(&self, left: &[Decision], answer: &mut Answer) {
        let own = Answer::over(&self.checks, left);
        let number = self.number_among_all(own.decider);
        let rank = |answer: &Answer, number: Option<usize>| {
            (answer.decision.remaining, number.unwrap_or(usize::MAX))
        };
        if rank(&own, number) < rank(answer, answer.decider) {
            (answer.decider, answer.decision) = (number, own.decision);
        }
    }

    /// Which of all checks one of these is.
    fn number_among_all(&self, own: Option<usize>) -> Option<usize> {
        own.and_then(|number| self.numbers.get(number).copied())
    }

    /// Tells what these said, among all.
    fn tell(&self, all: &mut [Decision], said: &[Decision]) {
        for (number, decision) in self.numbers.iter().zip(said) {
            all[*number] = *decision;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    Here,
    There,
}
