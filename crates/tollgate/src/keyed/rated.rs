//! One key of a keyed limiter at the rate that is in force for it: what is asked of the table.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Pace, Tat, Timestamp, units};

use super::KeyedLimiter;
use super::anchor::Moment;
use super::back::SLACK;
use super::glance::Glance;
use super::pace::InForce;
use super::shard::{Answer, Need};
use super::slot::ChargeRequest;
use super::table::Candidates;
use super::word::{Judged, KeyWord};
use crate::cell::Ticket;
use crate::clock::Clock;
use crate::home::sealed::{Home, Lends};
use crate::line::meter::Meter;
use crate::line::places::Id;
use crate::line::single::Single;
use crate::line::waiting::Waiting;
use crate::line::{Post, State};
use crate::{AtCap, Refused};

/// A key at the rate that is in force for it now: what its handle, reservations and waits ask.
pub struct Rated<'a, C: Clock, T> {
    pub(super) limiter: &'a KeyedLimiter<C, T>,
    /// Without the tag of the rate's interval.
    pub(super) fingerprint: u64,
    pub(super) in_force: InForce,
    /// Whether that is the limiter's own rate, which may change while somebody waits.
    pub(super) is_own: bool,
}

impl<'a, C: Clock, T> Rated<'a, C, T> {
    /// Decides a request at a time on the limiter's clock.
    #[inline]
    pub(super) fn check_at(&self, now: Timestamp, cost: u64) -> Decision {
        if let Some(told) = self.told_to_wait(now, cost) {
            return told;
        }
        let place = self.limiter.table.place(self.fingerprint);
        let now = self.limiter.table.since_anchor(now);
        self.check_in(place, now, cost)
    }

    /// What is said to one who comes now, if somebody waits for the key.
    #[inline(always)]
    pub(super) fn told_to_wait(&self, now: Timestamp, cost: u64) -> Option<Decision> {
        if !self.limiter.lines.is_marked(self.fingerprint) {
            return None;
        }
        let told = self.behind(now, cost)?;
        if cost > 0 {
            self.limiter.counters.count(told.is_allowed());
        }
        Some(told)
    }

    /// Decides a request of a key that may be here.
    #[inline(always)]
    pub(super) fn check_in(&self, place: Candidates<'_>, moment: Moment, cost: u64) -> Decision {
        match self.decide(place, moment, cost) {
            Some(glance) => glance.decision(),
            None => self.check_slowly(moment, cost),
        }
    }

    /// Decides a request of a key that may be here, if that takes no closer look, and counts it.
    #[inline(always)]
    pub(super) fn decide(
        &self,
        place: Candidates<'_>,
        moment: Moment,
        cost: u64,
    ) -> Option<Glance<'a, C, T>> {
        let ask = self.ask(moment, cost, 0);
        let (allowed, word) = place.shard.try_pass(place.guess(ask.fingerprint), &ask)?;
        if allowed || cost > 0 {
            self.limiter.counters.count(allowed);
        }
        Some(Glance {
            rated: *self,
            allowed,
            word,
            moment,
            cost,
        })
    }

    /// Charges a cost that passes now, if that takes no closer look: the key's word then.
    #[inline(always)]
    pub(super) fn pass(&self, now: Moment, cost: u64) -> Option<KeyWord> {
        let place = self.limiter.table.place(self.fingerprint);
        let ask = self.ask(now, cost, 0);
        let passed = place.shard.try_pass(place.guess(ask.fingerprint), &ask);
        passed.and_then(|(passed, word)| passed.then_some(word))
    }

    #[cold]
    #[inline(never)]
    fn check_slowly(&self, now: Moment, cost: u64) -> Decision {
        self.decided(&self.charge(now, cost), cost)
    }

    /// Counts a decision and says all about it.
    #[inline]
    fn decided(&self, judged: &Judged, cost: u64) -> Decision {
        if cost > 0 {
            let allowed = judged.outcome == Outcome::Allowed;
            self.limiter.counters.count(allowed);
        }
        self.report(judged, cost)
    }

    /// What its slot holds while its word counts by this rate's interval.
    #[inline(always)]
    pub(super) fn tagged(&self) -> u64 {
        self.in_force.tag.on(self.fingerprint)
    }

    #[inline(always)]
    pub(super) fn ask(&self, moment: Moment, cost: u64, patience: u64) -> ChargeRequest<'a> {
        ChargeRequest {
            fingerprint: self.tagged(),
            tag: self.in_force.tag,
            pace: self.in_force.pace,
            moment,
            anchor: self.limiter.table.anchor(),
            cost,
            patience,
        }
    }

    /// Charges the key, or what stands for it at the cap.
    pub(super) fn charge(&self, now: Moment, cost: u64) -> Judged {
        let shard = self.limiter.table.shard(self.fingerprint);
        let ask = self.ask(self.limiter.table.kept_pace(shard, now), cost, 0);
        self.or_at_the_cap(shard.charge(&ask, self.need()), &ask)
    }

    /// The same, exactly once, for somebody who may give the charge back.
    pub(super) fn charge_once(&self, now: Moment, cost: u64, patience: u64) -> Judged {
        let shard = self.limiter.table.shard(self.fingerprint);
        let ask = self.ask(self.limiter.table.kept_pace(shard, now), cost, patience);
        self.or_at_the_cap(shard.charge_once(&ask, self.need()), &ask)
    }

    fn need(&self) -> Need {
        match self.limiter.at_cap {
            AtCap::EvictNearestIdle => Need::Evict,
            _ => Need::Idle,
        }
    }

    fn or_at_the_cap(&self, answer: Answer, ask: &ChargeRequest<'_>) -> Judged {
        match answer {
            Answer::Judged(judged) => judged,
            Answer::Full => self.limiter.at_the_cap(ask),
        }
    }

    /// What would come of a charge, as far as a glance tells.
    #[inline(always)]
    pub(super) fn glance(&self, now: Moment, cost: u64) -> Judged {
        let place = self.limiter.table.place(self.fingerprint);
        let ask = self.ask(now, cost, 0);
        let judged = place.shard.look(place.guess(ask.fingerprint), &ask);
        if judged.wait > SLACK {
            return self.glance_again(now, cost);
        }
        judged
    }

    /// Somebody is to wait for so long that the clock may have been set back.
    #[cold]
    #[inline(never)]
    fn glance_again(&self, now: Moment, cost: u64) -> Judged {
        let place = self.limiter.table.place(self.fingerprint);
        let now = self.limiter.table.kept_pace(place.shard, now);
        let ask = self.ask(now, cost, 0);
        place.shard.look(place.guess(ask.fingerprint), &ask)
    }

    /// The same for a request that comes to nothing unless this passes: a refusal at a faster rate than
    /// the key's word counts by makes it count by that, so that the wait that is told begins.
    #[inline(always)]
    pub(super) fn ask_for(&self, now: Moment, cost: u64) -> Judged {
        let judged = self.glance(now, cost);
        if judged.takes_over {
            self.take_over(now, cost);
        }
        judged
    }

    #[cold]
    #[inline(never)]
    fn take_over(&self, now: Moment, cost: u64) {
        let shard = self.limiter.table.shard(self.fingerprint);
        shard.take_over(&self.ask(now, cost, 0));
    }

    pub(super) fn report(&self, judged: &Judged, cost: u64) -> Decision {
        let now = judged.now;
        let InForce { pace, burst, .. } = self.in_force;
        let wait = Duration::from_nanos(Pace::wait_nanos(judged.wait));
        let charged = judged.outcome == Outcome::Allowed && cost > 0 && pace.interval > 0;
        let word = if charged { judged.after } else { judged.before };
        let word = word.at(units::of(now));
        if word.is_blocked() {
            let reset_after =
                Duration::from_nanos(units::to_nanos(word.idle_at() - units::of(now)));
            return Decision::new(Outcome::Denied, burst, 0, wait, reset_after);
        }
        let retry_after = match judged.outcome {
            Outcome::Allowed => Duration::ZERO,
            Outcome::Denied => wait,
            Outcome::Never => Duration::MAX,
        };
        self.left(judged.outcome, retry_after, word, now)
    }

    /// What a key with this word, which isn't blocked, has left.
    #[inline(always)]
    pub(super) fn left(
        &self,
        outcome: Outcome,
        retry_after: Duration,
        word: KeyWord,
        now: Timestamp,
    ) -> Decision {
        let InForce { pace, burst, .. } = self.in_force;
        let tat = Tat::from_word(word.0);
        let reset_after = if pace.interval == 0 {
            Duration::ZERO
        } else {
            tat.time() - now
        };
        let remaining = pace.remaining(tat, now);
        Decision::new(outcome, burst, remaining, retry_after, reset_after)
    }
}

impl<C: Clock, T> Clone for Rated<'_, C, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Clock, T> Copy for Rated<'_, C, T> {}

impl<C: Clock, T> fmt::Debug for Rated<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl<C: Clock, T> Post for Rated<'_, C, T> {
    type Waits = Single<Option<InForce>>;

    fn clock(&self) -> &dyn Clock {
        &self.limiter.clock
    }

    fn visit<R>(
        &self,
        present: Option<Id>,
        change: impl FnOnce(&mut State<Self::Waits>) -> R,
    ) -> R {
        let key = (self.fingerprint, |(): &()| true);
        self.limiter.lines.visit(key, || (), present, change)
    }

    fn advance(&self, waits: &mut Self::Waits, now: Timestamp) {
        waits.advance(self, now);
    }

    fn leave(&self, waits: &mut Self::Waits, now: Timestamp, id: Id) {
        waits.leave(self, now, id);
    }

    fn gone(&self) {
        self.waiting().leave();
    }
}

impl<C: Clock, T> Meter for Rated<'_, C, T> {
    /// None stands for the limiter's own rate.
    type Terms = Option<InForce>;

    fn look(&self, terms: &Self::Terms, now: Timestamp, cost: u64) -> Decision {
        let (key, local) = (self.on(terms), self.in_turn(now));
        key.report(&key.ask_for(local, cost), 0)
    }

    fn book(
        &self,
        terms: &Self::Terms,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Refused> {
        let (key, local) = (self.on(terms), self.in_turn(now));
        let patience = patience.min(self.longest_booking());
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let judged = key.charge_once(local, cost, patience);
        if !judged.taken {
            return Err(Refused::from_decision(key.report(&judged, cost)));
        }
        let wait = Pace::wait_nanos(judged.wait);
        let after = Tat::from_word(judged.after.0);
        let pace = key.in_force.pace;
        let charge = pace.receipt(after, now.plus_nanos(wait), cost);
        Ok(Ticket::Charged(charge))
    }

    fn longest_booking(&self) -> Duration {
        Duration::from_nanos(Pace::wait_nanos(self.limiter.longest_wait))
    }

    fn give_back(&self, terms: &Self::Terms, now: Timestamp, ticket: &Ticket) {
        let Ticket::Charged(charge) = ticket else {
            return;
        };
        let now = self.limiter.table.since_anchor(now);
        let shard = self.limiter.table.shard(self.fingerprint);
        shard.update(&self.on(terms).ask(now, 0, 0), |word, now| {
            let tat = Tat::from_word(word.0);
            Pace::returned(tat, now, charge).map(|tat| KeyWord(tat.to_word()))
        });
    }

    fn unbook(&self, terms: &Self::Terms, now: Timestamp, ticket: &Ticket) -> bool {
        let Ticket::Charged(charge) = ticket else {
            return matches!(ticket, Ticket::Free(_));
        };
        let now = self.limiter.table.since_anchor(now);
        let shard = self.limiter.table.shard(self.fingerprint);
        let is_undone = std::cell::Cell::new(false);
        shard.update(&self.on(terms).ask(now, 0, 0), |word, now| {
            let undone = Pace::undone(Tat::from_word(word.0), now, charge);
            is_undone.set(undone.is_some());
            undone.map(|tat| KeyWord(tat.to_word()))
        });
        is_undone.get()
    }

    fn shows(&self) -> Timestamp {
        self.limiter.clock.now()
    }

    fn is_blocked(&self, now: Timestamp) -> bool {
        let now = self.limiter.table.since_anchor(now);
        let judged = self.glance(now, 0);
        judged.before.is_blocked_at(units::of(judged.now))
    }

    fn takes(&self, terms: &Self::Terms, tokens: u128) -> Duration {
        self.on(terms).in_force.pace.time_for(tokens)
    }
}

impl<C: Clock, T> Home for Rated<'_, C, T> {
    fn terms(&self) -> Self::Terms {
        (!self.is_own).then_some(self.in_force)
    }

    fn waiting(&self) -> &Waiting {
        &self.limiter.waiting
    }

    fn see(&self, now: Timestamp, cost: u64) -> Decision {
        let local = self.limiter.table.since_anchor(now);
        self.report(&self.glance(local, cost), 0)
    }

    fn visit_if_any<R>(&self, change: impl FnOnce(&mut State<Self::Waits>) -> R) -> Option<R> {
        let key = (self.fingerprint, |(): &()| true);
        self.limiter.lines.visit_if_any(key, change)
    }
}

impl<'k, C: Clock, T> Lends for Rated<'k, C, T> {
    type Limit<'a>
        = Self
    where
        Self: 'a;

    fn limit(&self) -> Self {
        *self
    }
}

impl<C: Clock, T> Rated<'_, C, T> {
    /// A time at which somebody's turn came, as words count it.
    fn in_turn(&self, turn: Timestamp) -> Moment {
        let times = (turn, self.limiter.clock.now());
        let table = &self.limiter.table;
        table.since_anchor_in_turn(self.fingerprint, times)
    }

    /// The same key on these terms.
    fn on(&self, terms: &Option<InForce>) -> Self {
        Self {
            in_force: terms.unwrap_or_else(|| self.limiter.pace.read()),
            ..*self
        }
    }
}
