//! A limit with its state, that can be booked ahead: what a lock or a table entry holds.

use core::time::Duration;

use crate::algorithm::{Charge, Since};
use crate::{Algorithm, Decision, Outcome, Timestamp};

/// One limit and its state, with what booking ahead in order needs beside them.
///
/// [`Algorithm`] alone decides requests one after the other. A `Book` also takes reservations:
/// nobody passes before what is booked already, and a booking can be given back.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Algorithm, Book, FixedWindow, Rate, Timestamp};
///
/// let mut book = Book::new(FixedWindow::new(Rate::per_second(2))?);
/// let now = Timestamp::ZERO;
/// assert!(book.decide(now, 2).is_allowed());
/// let booked = book.reserve(now, 1, Duration::MAX).expect("the next window has room");
/// assert_eq!(booked.at(), Timestamp::from_secs(1));
/// book.give_back(now, &booked);
/// assert_eq!(book.decide(now, 1).retry_after, Duration::from_secs(1));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Book<A: Algorithm> {
    limit: A,
    state: A::State,
    /// Nobody passes before this time: the act time of the latest booking, for algorithms that
    /// keep bookings as hits instead of debt. They have no other way to tell a time before a
    /// booking from a clock that stepped back.
    floor: Timestamp,
    /// Counts charges, so that a receipt knows whether it is the latest.
    version: u64,
}

/// What a booking is given back by.
#[derive(Clone, Copy, Debug)]
pub struct Booked {
    charge: Charge,
    version: u64,
    floor_before: Timestamp,
}

impl Booked {
    /// When the booked request may act.
    pub const fn at(&self) -> Timestamp {
        self.charge.at()
    }
}

/// Why nothing was booked; nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbooked {
    /// Never, or not within the caller's patience: the decision says which.
    Refused(Decision),
    /// Further ahead than the algorithm books, see [`Algorithm::horizon`].
    TooFarAhead(Decision),
}

impl<A: Algorithm> Book<A> {
    /// A limit never used.
    pub fn new(limit: A) -> Self {
        Self::with_state(limit, A::State::default())
    }

    /// A limit in this state.
    pub fn with_state(limit: A, state: A::State) -> Self {
        Self {
            limit,
            state,
            floor: Timestamp::ZERO,
            version: 0,
        }
    }

    /// The limit in force.
    pub const fn limit(&self) -> &A {
        &self.limit
    }

    /// The state as it stands.
    pub const fn state(&self) -> &A::State {
        &self.state
    }

    /// Decides one request and charges it if it passes. A cost of 0 peeks.
    pub fn decide(&mut self, now: Timestamp, cost: u64) -> Decision {
        let at = self.try_charge(now, cost);
        self.report(now, at)
    }

    /// Whether a request passes; it is charged if so.
    pub fn allow(&mut self, now: Timestamp, cost: u64) -> bool {
        self.try_charge(now, cost).is_some_and(|at| at <= now)
    }

    /// Takes the cost to act as soon as it may, if that is within `patience`.
    ///
    /// # Errors
    /// [`Unbooked`] says why not, with the decision.
    pub fn reserve(
        &mut self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Booked, Unbooked> {
        let at = self.earliest(now, cost);
        let Some(act) = at.filter(|at| *at - now <= patience) else {
            return Err(Unbooked::Refused(self.report(now, at)));
        };
        if act - now > self.limit.horizon() {
            return Err(Unbooked::TooFarAhead(self.report(now, at)));
        }
        Ok(self.charge(now, act.max(now), cost))
    }

    /// Gives back what nothing was built on. A booking is given back once: the caller sees to it.
    pub fn give_back(&mut self, now: Timestamp, booked: &Booked) {
        if booked.charge.cost() == 0 {
            return;
        }
        let since = if booked.version == self.version {
            // The latest charge is undone as if it had not been, and the one before it becomes
            // the latest: cancelling in reverse order restores everything.
            self.version -= 1;
            self.floor = booked.floor_before;
            Since::Nothing
        } else {
            Since::Others
        };
        let charge = &booked.charge;
        self.limit.give_back(&mut self.state, now, charge, since);
    }

    /// Gives `tokens` that no booking stands for, at most what was spent.
    ///
    /// ```
    /// use tollgate_core::{Algorithm, Book, Rate, SlidingLog, Timestamp};
    ///
    /// let mut book = Book::new(SlidingLog::new(Rate::per_hour(10))?);
    /// book.decide(Timestamp::ZERO, 8);
    /// book.gift(Timestamp::ZERO, 5);
    /// assert_eq!(book.decide(Timestamp::ZERO, 0).remaining, 7);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn gift(&mut self, now: Timestamp, tokens: u64) {
        self.limit.gift(&mut self.state, now, tokens);
        // A booking made before must not restore a state from before the gift.
        self.version += 1;
    }

    /// Carries the state over to another limit, at a live change.
    pub fn replace(&mut self, now: Timestamp, limit: A) {
        limit.adopt(&mut self.state, &self.limit, now);
        self.limit = limit;
        // A change counts as something built on every charge before it.
        self.version += 1;
    }

    /// Charges if it passes now; when it would.
    fn try_charge(&mut self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let at = self.earliest(now, cost);
        if at.is_some_and(|at| at <= now) && cost > 0 {
            self.charge(now, now, cost);
        }
        at
    }

    /// When this cost passes, not before what is booked already.
    fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        let from = if cost == 0 { now } else { now.max(self.floor) };
        self.limit.earliest(&self.state, from, cost)
    }

    fn charge(&mut self, now: Timestamp, at: Timestamp, cost: u64) -> Booked {
        let floor_before = self.floor;
        let charge = self.limit.charge(&mut self.state, now, at, cost);
        if cost > 0 {
            self.version += 1;
            if at > now && !A::BY_DEBT {
                self.floor = at;
            }
        }
        Booked {
            charge,
            version: self.version,
            floor_before,
        }
    }

    fn report(&self, now: Timestamp, at: Option<Timestamp>) -> Decision {
        let mut decision = self.limit.report(&self.state, now, at);
        if now < self.floor && decision.outcome != Outcome::Never {
            decision.remaining = 0;
        }
        decision
    }
}
