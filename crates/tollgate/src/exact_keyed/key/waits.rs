//! What a wait needs of one key: its queue, its meter and its home.

use super::*;

impl<K, Q, C> Post for Key<'_, K, Q, C>
where
    K: Borrow<Q>,
    Q: Eq + ToOwned<Owned = K> + ?Sized,
    C: Clock,
{
    type Waits = Single<Asks>;

    fn clock(&self) -> &dyn Clock {
        &self.limiter.clock
    }

    fn visit<T>(
        &self,
        present: Option<Id>,
        change: impl FnOnce(&mut State<Self::Waits>) -> T,
    ) -> T {
        let (key, own) = ((self.hash, self.is_same()), || self.key.to_owned());
        self.limiter.lines.visit(key, own, present, change)
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

impl<K, Q, C> Meter for Key<'_, K, Q, C>
where
    K: Borrow<Q>,
    Q: Eq + ToOwned<Owned = K> + ?Sized,
    C: Clock,
{
    type Terms = Asks;

    fn look(&self, asks: &Asks, now: Timestamp, cost: u64) -> Decision {
        let look = Look(cost, Purpose::Ask);
        let tables = &self.limiter.tables;
        tables.look(&self.ask_in_turn(now), asks.tier.as_ref(), look)
    }

    fn book(
        &self,
        asks: &Asks,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Refused> {
        let (tables, lookup) = (&self.limiter.tables, self.ask_in_turn(now));
        let tier = asks.tier.as_ref();
        let booked = match &asks.held {
            None => {
                let patience = patience.min(self.longest_booking());
                tables.reserve(&lookup, tier, &Reserve { cost, patience })
            }
            // An estimate is held from when it may be used: nobody knows how long before that others hold theirs.
            Some(held) => {
                let (patience, until) = (Duration::ZERO, held.until(now));
                let taken = tables.hold(&lookup, tier, &Reserve { cost, patience }, until);
                taken.inspect(|ticket| held.put(*ticket, until))
            }
        };
        booked.map_err(|unbooked| match unbooked {
            Unbooked::TooFarAhead(decision) => Refused::TooFarAhead(decision),
            Unbooked::Refused(decision) => Refused::from_decision(decision),
        })
    }

    fn longest_booking(&self) -> Duration {
        self.limiter.longest_wait
    }

    fn give_back(&self, _asks: &Asks, now: Timestamp, ticket: &Ticket) {
        let (tables, ask) = (&self.limiter.tables, self.ask(now));
        match ticket {
            Ticket::HeldEntry(id) => tables.settle(&ask, *id, 0),
            Ticket::HeldShared(id) => tables.settle_shared(&ask, *id, 0),
            ticket => tables.give_back(&ask, ticket),
        }
    }

    fn unbook(&self, _asks: &Asks, now: Timestamp, ticket: &Ticket) -> bool {
        self.limiter.tables.unbook(&self.ask(now), ticket)
    }

    fn books_ahead(&self, asks: &Asks) -> bool {
        // An estimate is held from when it may be used.
        asks.held.is_none()
    }

    fn shows(&self) -> Timestamp {
        self.limiter.clock.now()
    }

    fn is_blocked(&self, now: Timestamp) -> bool {
        self.limiter.tables.is_blocked(&self.ask(now))
    }

    fn takes(&self, asks: &Asks, tokens: u128) -> Duration {
        let tables = &self.limiter.tables;
        match &asks.tier {
            Some(tier) => takes(tables.algorithm(), tier.rate(), tokens),
            None => tables.own_rate().map_or(Duration::ZERO, |rate| {
                takes(tables.algorithm(), rate, tokens)
            }),
        }
    }
}

impl<K, Q, C> Home for Key<'_, K, Q, C>
where
    K: Borrow<Q>,
    Q: Eq + ToOwned<Owned = K> + ?Sized,
    C: Clock,
{
    fn terms(&self) -> Asks {
        Asks {
            tier: self.tier.cloned(),
            held: self.held.cloned(),
        }
    }

    fn waiting(&self) -> &Waiting {
        &self.limiter.waiting
    }

    fn see(&self, now: Timestamp, cost: u64) -> Decision {
        let look = Look(cost, Purpose::See);
        self.limiter.tables.look(&self.ask(now), self.tier, look)
    }

    fn visit_if_any<T>(&self, change: impl FnOnce(&mut State<Self::Waits>) -> T) -> Option<T> {
        let key = (self.hash, self.is_same());
        self.limiter.lines.visit_if_any(key, change)
    }
}

impl<'k, K, Q, C> Lends for Key<'k, K, Q, C>
where
    K: Borrow<Q>,
    Q: Eq + ToOwned<Owned = K> + ?Sized,
    C: Clock,
{
    type Limit<'a>
        = Self
    where
        Self: 'a;

    fn limit(&self) -> Self {
        *self
    }
}
