//! The slow oracle: the queue as a list, and a limiter of its own that nobody waits for.

use super::*;

/// One who waits, as the oracle knows it.
pub(super) struct Waiter {
    pub(super) number: u64,
    pub(super) cost: u64,
    pub(super) arrived: Timestamp,
    pub(super) deadline: Option<Timestamp>,
}

/// What was booked while somebody waited.
pub(super) struct Booking<'a, H: Holder + 'a> {
    pub(super) slot: Reservation<H::Home<'a>>,
    pub(super) cost: u64,
    /// The reservation that it is for; `None` for a waiter.
    pub(super) holder: Option<u64>,
}

/// A reservation, as the oracle knows it.
pub(super) enum Expected<'a, H: Holder + 'a> {
    /// Made while nobody waited: the limiter keeps it.
    Alone(Reservation<H::Home<'a>>),
    /// Made behind waiters: the queue keeps it.
    InLine(u64, Timestamp),
}

impl<'a, H: Holder + 'a> Expected<'a, H> {
    pub(super) fn act_at(&self) -> Timestamp {
        match self {
            Self::Alone(slot) => slot.ready_at(),
            Self::InLine(_, at) => *at,
        }
    }
}

/// What became of one who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passed,
    Late,
    Never,
}

/// The queue as a list, with a limiter that nobody waits for.
pub(super) struct Oracle<'a, H: Holder> {
    pub(super) alone: &'a H,
    pub(super) line: Vec<Waiter>,
    /// In the order of their times, all in the future.
    pub(super) booked: Vec<Booking<'a, H>>,
    /// Reservations whose time has come.
    pub(super) past: Vec<Booking<'a, H>>,
    pub(super) seen: Timestamp,
    /// What became of those who haven't noticed.
    pub(super) fates: BTreeMap<u64, Fate>,
    /// What those of them were charged who passed.
    pub(super) charged: Vec<(u64, Reservation<H::Home<'a>>)>,
    /// How many were charged, and left without having noticed.
    pub(super) returned: u64,
    /// Of reservations.
    pub(super) numbers: u64,
}

impl<'a, H: Holder> Oracle<'a, H> {
    /// When the next waiter passes: by the first booking for waiters, or the head of the queue by the remaining tokens.
    pub(super) fn due(&self) -> Option<(Timestamp, Outcome)> {
        let first = self.line.first()?;
        let booked = self.booked.iter().find(|booking| booking.holder.is_none());
        let booked = booked.map_or(Timestamp::MAX, |booking| booking.slot.ready_at());
        // A look charges nothing, and a denial writes nothing.
        let mut at = self.seen.max(first.arrived);
        loop {
            let decision = look(self.alone, at, first.cost);
            match decision.outcome {
                _ if booked <= at => return Some((booked, Outcome::Allowed)),
                Outcome::Denied => at += decision.wait_or_max(),
                outcome => return Some((at, outcome)),
            }
        }
    }

    /// All events of waiters until `now`.
    pub(super) fn advance(&mut self, now: Timestamp) {
        while let Some((due, outcome)) = self.due() {
            let over = |waiter: &Waiter| waiter.deadline.filter(|deadline| *deadline < now);
            let late = self.line.iter().enumerate();
            let late =
                late.filter_map(|(place, waiter)| Some((over(waiter)?, waiter.number, place)));
            if let Some((deadline, number, place)) = late.min()
                && deadline < due
            {
                self.line.remove(place);
                self.fates.insert(number, Fate::Late);
                // Those behind it move up then, not before.
                self.seen = self.seen.max(deadline.plus_nanos(1));
                self.unbook(now);
                continue;
            }
            if due > now {
                break;
            }
            let next = self.booked.iter().position(|it| it.holder.is_none());
            if let Some(next) = next.filter(|next| self.booked[*next].slot.ready_at() == due) {
                self.retire(next);
                let booking = self.booked.remove(0);
                self.pass_booked(booking, now);
                continue;
            }
            let first = self.line.remove(0);
            if outcome == Outcome::Never {
                self.fates.insert(first.number, Fate::Never);
                self.unbook(now);
                continue;
            }
            self.seen = self.seen.max(due);
            let slot = self.alone.reserve_at(due, first.cost);
            let slot = slot.expect("its turn has come");
            assert_eq!(slot.ready_at(), due);
            self.charged.push((first.number, slot));
            self.fates.insert(first.number, Fate::Passed);
        }
        self.seen = self.seen.max(now);
        while self
            .booked
            .first()
            .is_some_and(|it| it.slot.ready_at() <= now)
        {
            match self.booked[0].holder {
                Some(_) => self.retire(1),
                None => {
                    let booking = self.booked.remove(0);
                    self.pass_booked(booking, now);
                }
            }
        }
        self.tidy();
    }

    pub(super) fn retire(&mut self, count: usize) {
        self.past.extend(self.booked.drain(..count));
    }

    /// The time of a booking has come: the first that it suffices for pass.
    pub(super) fn pass_booked(&mut self, booking: Booking<'a, H>, now: Timestamp) {
        let at = booking.slot.ready_at();
        self.seen = self.seen.max(at);
        let (mut left, mut place) = (booking.cost, 0);
        let mut slot = Some(booking.slot);
        while place < self.line.len() {
            if self.line[place].cost > left {
                place += 1;
                continue;
            }
            let waiter = self.line.remove(place);
            left -= waiter.cost;
            self.fates.insert(waiter.number, Fate::Passed);
            if waiter.cost == booking.cost {
                self.charged
                    .extend(slot.take().map(|slot| (waiter.number, slot)));
            }
        }
        match slot {
            Some(slot) if left == booking.cost => slot.cancel_at(now),
            Some(slot) => slot.keep(),
            None => {}
        }
    }

    /// What is booked behind the last reservation is taken back.
    pub(super) fn unbook(&mut self, now: Timestamp) {
        while self.booked.last().is_some_and(|it| it.holder.is_none()) {
            give_back(self.booked.pop().map(|booking| booking.slot), now);
        }
        self.tidy();
    }

    pub(super) fn tidy(&mut self) {
        let all = || self.booked.iter().chain(&self.past);
        if self.line.is_empty() && all().all(|it| it.holder.is_none()) {
            self.booked.drain(..).for_each(|it| it.slot.keep());
        }
    }

    /// One goes. Those who were due before pass; it was charged nothing, unless it had passed without noticing: that
    /// comes back as far as nothing was built on it, as a reservation does.
    pub(super) fn leave(&mut self, now: Timestamp, number: u64) {
        self.advance(Timestamp::from_nanos(now.as_nanos() - 1));
        self.seen = self.seen.max(now);
        let charged = self.charged.iter().position(|(whose, _)| *whose == number);
        if let Some(place) = charged {
            give_back(Some(self.charged.remove(place).1), now);
            self.returned += 1;
        }
        self.line.retain(|waiter| waiter.number != number);
        self.unbook(now);
        self.fates.remove(&number);
    }

    /// Reports the outcome to one waiter.
    pub(super) fn notice(&mut self, number: u64) -> Option<Fate> {
        // Its time has come, so that it counts as used.
        self.charged.retain(|(whose, _)| *whose != number);
        self.fates.remove(&number)
    }

    /// Whether one that comes now passes.
    pub(super) fn passes(&mut self, now: Timestamp, cost: u64) -> bool {
        self.advance(now);
        self.line.is_empty() && self.alone.check_at(now, cost).is_allowed()
    }

    /// Books behind all of them, whose turns are booked first; or takes what none of them needs.
    pub(super) fn reserve(&mut self, now: Timestamp, cost: u64) -> Option<Expected<'a, H>> {
        self.advance(now);
        if look(self.alone, now, cost).outcome == Outcome::Never {
            return None;
        }
        if self.line.is_empty() && self.booked.is_empty() && self.past.is_empty() {
            return self.alone.reserve_at(now, cost).ok().map(Expected::Alone);
        }
        self.numbers += 1;
        let number = self.numbers;
        let mut unserved: Vec<u64> = self.line.iter().map(|waiter| waiter.cost).collect();
        let mut free = None;
        for (index, booking) in self.booked.iter().enumerate() {
            if booking.holder.is_some() {
                continue;
            }
            let (mut left, before) = (booking.cost, unserved.len());
            unserved.retain(|cost| {
                let takes = *cost <= left;
                left -= if takes { *cost } else { 0 };
                !takes
            });
            if unserved.len() == before && booking.cost >= cost && free.is_none() {
                free = Some(index);
            }
        }
        if let Some(index) = free {
            self.booked[index].holder = Some(number);
            let at = self.booked[index].slot.ready_at();
            self.unbook(now);
            return Some(Expected::InLine(number, at));
        }
        let wanted = unserved.into_iter().map(|cost| (cost, None));
        for (cost, holder) in wanted.chain([(cost, Some(number))]) {
            let Ok(slot) = self.alone.reserve_at(now, cost) else {
                self.unbook(now);
                return None;
            };
            self.booked.push(Booking { slot, cost, holder });
        }
        let at = self.booked.last()?.slot.ready_at();
        Some(Expected::InLine(number, at))
    }

    pub(super) fn cancel(&mut self, now: Timestamp, expected: Expected<'a, H>) {
        let number = match expected {
            Expected::Alone(slot) => return slot.cancel_at(now),
            Expected::InLine(number, _) => number,
        };
        let is_it = |booking: &Booking<'a, H>| booking.holder == Some(number);
        if let Some(booking) = self.booked.iter_mut().find(|booking| is_it(booking)) {
            booking.holder = None;
            self.unbook(now);
        } else if let Some(place) = self.past.iter().position(is_it) {
            give_back(Some(self.past.remove(place).slot), now);
            self.tidy();
        }
    }

    pub(super) fn set_rate(&mut self, now: Timestamp, rate: Rate) {
        self.advance(now);
        let mut reserved = Vec::new();
        while let Some(booking) = self.booked.pop() {
            reserved.extend(booking.holder.map(|_| booking.cost));
            booking.slot.cancel_at(now);
        }
        for cost in reserved.into_iter().rev() {
            let slot = self.alone.reserve_at(now, cost);
            slot.expect("it was booked before").keep();
        }
        self.past.drain(..).for_each(|booking| booking.slot.keep());
        self.alone.set_rate(rate);
        let fates = &mut self.fates;
        self.line.retain(|waiter| {
            let stays = waiter.cost <= rate.burst_size();
            if !stays {
                fates.insert(waiter.number, Fate::Never);
            }
            stays
        });
    }
}

pub(super) fn give_back<H: LimitHandle>(slot: Option<Reservation<H>>, now: Timestamp) {
    if let Some(slot) = slot {
        slot.cancel_at(now);
    }
}

/// A denial charges nothing; what is allowed is looked at by what is left.
pub(super) fn look<H: Holder>(alone: &H, at: Timestamp, cost: u64) -> Decision {
    let peek = alone.check_at(at, 0);
    if cost <= peek.remaining || cost == 0 {
        peek
    } else {
        alone.check_at(at, cost)
    }
}
