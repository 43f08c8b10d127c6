//! Books that hold estimates, and the script that leases to them. A settled estimate counts with its actual
//! cost at its settlement; a lapsed one counts whole, at the expiry of the lease; and debts are paid.

use super::*;
use crate::lease::book::Upkeep;
use crate::lease::request::LeaseRequest;
use crate::lease::request::{LeaseQuery, RefillGoal};

const START: u64 = 1_700_000_000_000_000;

/// A request that holds an estimate.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: u64,
    tokens: u64,
    until: u64,
    /// When it counted as spent without a settlement.
    over_at: Option<u64>,
}

/// A call in flight.
#[derive(Clone, Debug)]
struct Pending {
    asks: LeaseQuery,
    record: Vec<u8>,
    before: u64,
    /// Until when its cost is held; `None` if it is spent.
    hold: Option<u64>,
    reply: Option<LeaseReply>,
}

/// A process with the real book.
#[derive(Debug, Default)]
struct Process {
    book: LeaseBook,
    name: u64,
    until: u64,
    asleep_until: u64,
    open: Vec<Open>,
    pending: Option<Pending>,
    /// Whether it has something to report to the store.
    has_news: bool,
}

/// The faults of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum World {
    /// Every call arrives, and no process is suspended.
    Fair,
    /// Calls are lost, late and duplicated, and processes are suspended and die.
    Rough,
}

struct Fleet<'a> {
    store: &'a Store,
    numbers: LimitParams,
    world: World,
    /// The most that is leased in advance; 0 if each request queries the store.
    part: u64,
    random: Random,
    now: u64,
    names: u64,
    processes: Vec<Process>,
    late: Vec<Said>,
    /// The costs that count, with their times.
    spent: Vec<(u64, u64)>,
    settled: u64,
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros * 1_000)
}

impl<'a> Fleet<'a> {
    fn new(store: &'a Store, (numbers, part): (LimitParams, u64), world: World, seed: u64) -> Self {
        let mut fleet = Self {
            store,
            numbers,
            world,
            part,
            random: Random::new(seed),
            now: START,
            names: 0,
            processes: Vec::new(),
            late: Vec::new(),
            spent: Vec::new(),
            settled: 0,
        };
        for _ in 0..3 {
            let process = fleet.born();
            fleet.processes.push(process);
        }
        fleet
    }

    fn born(&mut self) -> Process {
        self.names += 1;
        let name = self.names;
        Process {
            name,
            ..Process::default()
        }
    }

    fn below(&mut self, most: u64) -> u64 {
        self.random.below(most)
    }

    fn cost(&mut self) -> u64 {
        let most = (self.numbers.max_burst / 3).clamp(1, 30);
        1 + self.below(most)
    }

    /// What a book has given up counts at the expiry of the lease, or at its own deadline.
    fn give_up(&mut self, who: usize, until: u64) {
        let process = &mut self.processes[who];
        let Process { book, open, .. } = process;
        for open in open.iter_mut().filter(|open| open.over_at.is_none()) {
            if !book.holds_estimate(at(self.now), open.number) {
                let over_at = open.until.min(until);
                open.over_at = Some(over_at);
                self.spent.push((over_at, open.tokens));
            }
        }
    }

    fn say(&mut self, who: usize, wants: RefillGoal, hold: Option<u64>) {
        let (now, numbers, part) = (self.now, self.numbers, self.part);
        let process = &mut self.processes[who];
        // Whatever the book says, the store counts it as spent.
        let is_lapsed = |open: &&mut Open| open.over_at.is_none() && now >= process.until;
        for open in process.open.iter_mut().filter(is_lapsed) {
            let over_at = open.until.min(process.until);
            open.over_at = Some(over_at);
            self.spent.push((over_at, open.tokens));
        }
        let asks = LeaseQuery::new(&process.book, wants, at(now), part, numbers);
        let question = asks.request_for(LeaseRequest {
            holder: process.name,
            number: process.book.plan_count(),
            ..LeaseRequest::anonymous(Duration::from_micros(LIFE))
        });
        process.pending = Some(Pending {
            asks,
            record: question.encode(&numbers),
            before: now,
            hold,
            reply: None,
        });
        let until = process.until;
        self.give_up(who, until);
    }

    /// Advances the call of a process by one step.
    async fn proceed(&mut self, who: usize) {
        let fate = match self.world {
            World::Fair => 9,
            World::Rough => self.below(12),
        };
        let (store, now) = (self.store, self.now);
        let process = &mut self.processes[who];
        let Some(mut pending) = process.pending.take() else {
            return;
        };
        let said = Said {
            record: pending.record.clone(),
            holds: 0,
            before: pending.before,
        };
        match (fate, pending.reply) {
            // The call never arrives, or its reply is lost.
            (0, _) => {}
            (1, None) => self.late.push(said),
            (fate, None) => {
                if fate == 2 {
                    carried_out(store, &said, now).await;
                }
                pending.reply = Some(carried_out(store, &said, now).await);
                process.pending = Some(pending);
            }
            (_, Some(reply)) => self.hear(who, &pending, &reply),
        }
    }

    fn hear(&mut self, who: usize, pending: &Pending, reply: &LeaseReply) {
        let now = self.now;
        let process = &mut self.processes[who];
        let granted = pending.asks.grant_until(reply, at(pending.before + LIFE));
        let (owed, cost) = (process.book.owed(), pending.asks.least);
        let hold = pending.hold.map(at);
        let took = process.book.take(at(now), &granted, cost, hold);
        self.spent.push((now, owed - process.book.owed()));
        match (took, pending.hold) {
            (Some((_, Some(number))), Some(until)) => process.open.push(Open {
                number,
                tokens: cost,
                until,
                over_at: None,
            }),
            (Some((_, None)), None) => {
                self.spent.push((now, cost));
                self.settled += cost;
            }
            (None, _) => {}
            other => panic!("{other:?}"),
        }
        let until = std::mem::replace(&mut process.until, pending.before + LIFE);
        self.give_up(who, until);
    }

    /// A request takes a cost, to be spent or held.
    fn ask(&mut self, who: usize) {
        let (cost, is_held, now) = (self.cost(), self.below(3) > 0, self.now);
        let lasts = match self.world {
            World::Fair => 1_000 * LIFE,
            World::Rough => self.below(3 * LIFE),
        };
        let hold = is_held.then_some(now + lasts);
        let process = &mut self.processes[who];
        let spent = match hold {
            Some(until) => {
                let (spent, number) = process.book.hold(at(now), cost, at(until));
                process.open.extend(number.map(|number| Open {
                    number,
                    tokens: cost,
                    until,
                    over_at: None,
                }));
                spent
            }
            None => process.book.spend(at(now), cost),
        };
        match spent {
            SpendOutcome::Passed { .. } if hold.is_none() => {
                self.spent.push((now, cost));
                self.settled += cost;
            }
            SpendOutcome::Unknown if process.pending.is_none() => {
                self.say(who, RefillGoal::More(cost), hold)
            }
            _ => {}
        }
    }

    /// A request settles: it cost less, as much, or more than it held.
    fn settle(&mut self, who: usize) {
        let count = self.processes[who].open.len() as u64;
        if count == 0 {
            return;
        }
        let place = self.below(count) as usize;
        let open = self.processes[who].open.swap_remove(place);
        let spent = match self.below(5) {
            // Dropped, to be refunded or charged.
            0 => 0,
            1 => open.tokens,
            2 => open.tokens + self.below(open.tokens + 1),
            _ => self.below(open.tokens + 1),
        };
        let (now, limit) = (self.now, self.numbers.max_burst);
        let process = &mut self.processes[who];
        let owed = process.book.owed();
        let is_live = now < process.until.min(open.until);
        let news = process
            .book
            .settle_estimate(at(now), open.number, spent, limit);
        process.has_news |= news;
        let now_owed = process.book.owed();
        let (more_owed, paid) = (now_owed.saturating_sub(owed), owed.saturating_sub(now_owed));
        self.spent.push((now, paid));
        if open.over_at.is_none() {
            self.spent.push(if is_live {
                (now, spent - more_owed)
            } else {
                (process.until.min(open.until), open.tokens)
            });
            self.settled += spent;
        }
        let until = process.until;
        self.give_up(who, until);
    }

    /// The maintenance of a process.
    fn look_after(&mut self, who: usize) {
        let now = at(self.now);
        let process = &mut self.processes[who];
        if process.pending.is_some() {
            return;
        }
        // If each request queries the store, what came back is returned immediately.
        if std::mem::take(&mut process.has_news)
            && self.part == 0
            && process.book.has_unreported(now)
        {
            return self.say(who, RefillGoal::ReturnAll, None);
        }
        let care = process.book.needed_upkeep(now, Duration::from_micros(LIFE));
        let until = process.until;
        self.give_up(who, until);
        match care {
            Upkeep::Return => self.say(who, RefillGoal::ReturnAll, None),
            Upkeep::Renew => self.say(who, RefillGoal::Enough, None),
            Upkeep::None | Upkeep::Forget => {}
        }
    }

    /// A process dies with its held estimates, which count at the end of its lease.
    fn die(&mut self, who: usize) {
        let heir = self.born();
        let dead = std::mem::replace(&mut self.processes[who], heir);
        for open in dead.open.iter().filter(|open| open.over_at.is_none()) {
            self.spent.push((dead.until.min(open.until), open.tokens));
        }
    }

    async fn step(&mut self) {
        let reach = match self.world {
            World::Fair => LIFE / 40,
            World::Rough => [10, 10_000, LIFE / 4, LIFE / 4][self.below(4) as usize],
        };
        self.now += self.below(reach);
        let (who, now) = (self.below(3) as usize, self.now);
        if now < self.processes[who].asleep_until {
            return;
        }
        match self.below(16) {
            0..6 => self.ask(who),
            6..9 => self.settle(who),
            15 if self.world == World::Rough && self.below(8) == 0 => self.die(who),
            15 if self.world == World::Rough && self.below(4) == 0 => {
                self.processes[who].asleep_until = now + self.below(3 * LIFE);
            }
            _ => {}
        }
        for who in 0..3 {
            if now >= self.processes[who].asleep_until {
                self.look_after(who);
                self.proceed(who).await;
            }
        }
        if !self.late.is_empty() && self.below(3) == 0 {
            let late = self.late.swap_remove(0);
            carried_out(self.store, &late, now).await;
        }
    }

    /// Settles and returns everything, and pays all debts.
    async fn close(&mut self) {
        self.world = World::Fair;
        for who in 0..3 {
            while let Some(pending) = self.processes[who].pending.clone() {
                drop(pending);
                self.proceed(who).await;
            }
            while !self.processes[who].open.is_empty() {
                self.settle(who);
            }
        }
        // Without requests, each process pays by itself.
        for _ in 0..400 {
            self.now += LIFE / 8;
            for who in 0..3 {
                self.look_after(who);
                self.proceed(who).await;
                self.proceed(who).await;
            }
            if self
                .processes
                .iter()
                .all(|process| process.book.owed() == 0)
            {
                break;
            }
        }
        // A paid cost counts once the store knows of it.
        for who in 0..3 {
            self.say(who, RefillGoal::ReturnAll, None);
            self.proceed(who).await;
            self.proceed(who).await;
        }
        for process in &self.processes {
            let (owed, held) = (process.book.owed(), process.book.held(at(self.now)));
            assert_eq!((owed, held), (0, 0), "{process:?}");
        }
    }

    /// The tokens that the store has for a holder without any.
    async fn left(&self) -> u64 {
        let asks = (self.names + 1, self.now);
        told(self.store, &self.numbers, asks, (0, 0))
            .await
            .remaining
    }
}

#[tokio::test]
async fn estimates_never_let_more_pass_than_the_limit() {
    let server = Server::start();
    let mut all = 0;
    for seed in 1..=60_u64 {
        let store = Store::patient(&server);
        server.command(&["FLUSHALL"]);
        let text = ["10/s burst 100", "1000/s burst 50", "30/s burst 30"][seed as usize % 3];
        let (rate, numbers) = (text.parse().unwrap(), numbers(text));
        let part = [0, numbers.max_burst / 4][seed as usize % 2];
        let mut fleet = Fleet::new(&store, (numbers, part), World::Rough, seed);
        for _ in 0..400 {
            fleet.step().await;
        }
        fleet.close().await;
        let mut spent = fleet.spent.clone();
        spent.sort_unstable();
        all += spent.iter().map(|(_, much)| much).sum::<u64>();
        check_windows(&spent, rate);
        // Nothing is lost for ever.
        fleet.now += 100 * LIFE;
        assert_eq!(fleet.left().await, numbers.max_burst, "seed {seed}: {text}");
    }
    assert!(all > 10_000, "{all}");
}

#[tokio::test]
async fn what_is_settled_and_returned_leaves_what_was_spent() {
    let server = Server::start();
    for seed in 1..=40_u64 {
        let store = Store::patient(&server);
        server.command(&["FLUSHALL"]);
        let kind = LimitKind::Rate {
            rate: Rate::zero().burst(1_000_000),
            algorithm: tollgate::Algorithm::TokenBucket,
        };
        let form = LimitForm::new(&kind, Duration::ZERO).unwrap();
        let numbers = form.params_at(0).unwrap();
        let part = [0, 60][seed as usize % 2];
        let mut fleet = Fleet::new(&store, (numbers, part), World::Fair, seed);
        for _ in 0..400 {
            fleet.step().await;
        }
        fleet.close().await;
        let counted: u64 = fleet.spent.iter().map(|(_, much)| much).sum();
        assert_eq!(
            counted, fleet.settled,
            "seed {seed}: all that is owed was paid"
        );
        let level = numbers.max_burst - fleet.left().await;
        assert_eq!(level, fleet.settled, "seed {seed}: what was spent");
        let bytes = server.command(&["STRLEN", "lease"]).integer();
        assert_eq!(bytes, Some(24), "seed {seed}: nobody holds any");
        assert!(level > 500, "{level}");
    }
}

/// A book with ten tokens, of which two requests hold five each.
fn two_of_five() -> (LeaseBook, Timestamp, [u64; 2]) {
    let (book, second) = (LeaseBook::default(), Timestamp::from_secs(1));
    let granted = Grant {
        more: 10,
        dropped: 0,
        expires_at: second + Duration::from_secs(1),
        retry_after: Duration::ZERO,
        asked: 10,
        remaining: 0,
    };
    book.take(second, &granted, 0, None);
    let until = second + Duration::from_secs(60);
    let held = [(); 2].map(|()| book.hold(second, 5, until).1.expect("there are ten"));
    (book, second, held)
}

#[test]
fn what_was_spent_just_as_estimated_is_told_so_that_it_drains() {
    let (book, second, [one, _]) = two_of_five();
    assert!(!book.has_unreported(second));
    assert!(book.settle_estimate(second, one, 5, 100));
    assert!(book.has_unreported(second));
    book.plan_return_all(second);
    assert!(!book.has_unreported(second));
}

#[test]
fn what_comes_back_pays_what_is_owed_before_anyone_has_it() {
    let (book, second, [one, other]) = two_of_five();
    book.settle_estimate(second, one, 8, 100);
    assert_eq!((book.owed(), book.held(second)), (3, 0));
    book.settle_estimate(second, other, 1, 100);
    assert_eq!((book.owed(), book.held(second)), (0, 1));
}
