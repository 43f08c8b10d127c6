//! A queue whose clock is set back by far, or that wasn't polled for long.

use std::future::IntoFuture;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Clock, ConcurrencyLimiter, FairLimiter, KeyedLimiter, Limiter, Rate, RateDenied,
    StoredKeyLimiter, Timestamp, concurrency::PermitDenied, wait::Acquire,
};

use super::Polled;
use super::holder::{ALGORITHMS, Holder};

const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A clock that shows today.
fn today() -> Manual {
    Manual::starting_at(Timestamp::from_secs(50 * 365 * 86_400))
}

fn limiter(rate: Rate, algorithm: Algorithm, clock: &Manual) -> Limiter<Manual> {
    let builder = Limiter::builder(rate).algorithm(algorithm);
    builder
        .clock(clock.clone())
        .build()
        .expect("a rate that fits")
}

fn keyed(rate: Rate, clock: &Manual) -> KeyedLimiter<Manual> {
    let builder = KeyedLimiter::builder(rate, 100).clock(clock.clone());
    builder.build().expect("a rate that fits")
}

fn exact(rate: Rate, algorithm: Algorithm, clock: &Manual) -> StoredKeyLimiter<String, Manual> {
    let builder = StoredKeyLimiter::builder(rate, 100).algorithm(algorithm);
    builder
        .clock(clock.clone())
        .build()
        .expect("a rate that fits")
}

fn spend<H: Holder>(holder: &H, clock: &Manual) {
    while holder.check_at(clock.now(), 1).is_allowed() {}
}

/// A task waited while the clock was ahead, and is gone: later ones wait as usual after the correction.
fn waits_after<H: Holder>(holder: &H, clock: &Manual, name: &str) {
    let today = clock.now();
    clock.advance(YEAR);
    spend(holder, clock);
    let mut wait = Polled::new(holder.acquire(1));
    assert!(wait.poll().is_none());
    drop(wait);
    clock.set(today);
    spend(holder, clock);
    let mut wait = Polled::new(holder.acquire(1));
    assert!(wait.poll().is_none());
    let told = holder.check_at(clock.now(), 1).wait_or_max();
    assert!(told <= 2 * SECOND, "{name}: {told:?}");
    clock.advance(2 * SECOND);
    assert_eq!(
        (wait.woken(), wait.poll()),
        (1, Some(Ok(2 * SECOND))),
        "{name}"
    );
}

/// Three wait while the clock is set back, charged ahead or not: they are woken, and pass as usual.
fn waits_meanwhile<H: Holder>(holder: &H, clock: &Manual, name: &str, reserves: bool) {
    let today = clock.now();
    clock.advance(YEAR);
    spend(holder, clock);
    let mut waiting: Vec<_> = (0..3).map(|_| Polled::new(holder.acquire(1))).collect();
    for wait in &mut waiting {
        assert!(wait.poll().is_none());
    }
    let slot = reserves.then(|| holder.reserve_at(clock.now(), 1));
    clock.set(today);
    for wait in &mut waiting {
        assert_eq!((wait.woken(), wait.poll()), (1, None), "{name} {reserves}");
    }
    clock.advance(5 * SECOND);
    for wait in &mut waiting {
        assert!(matches!(wait.poll(), Some(Ok(_))), "{name} {reserves}");
    }
    let told = holder.check_at(clock.now(), 1).wait_or_max();
    assert!(told <= 2 * SECOND, "{name} {reserves}: {told:?}");
    drop(slot);
}

#[test]
fn a_clock_that_was_ahead_stops_no_line() {
    let rate = Rate::per_second(10);
    for algorithm in ALGORITHMS {
        let name = format!("{algorithm:?}");
        let clock = today();
        waits_after(&limiter(rate, algorithm, &clock), &clock, &name);
        let clock = today();
        waits_after(&exact(rate, algorithm, &clock), &clock, &name);
        for reserves in [false, true] {
            let clock = today();
            waits_meanwhile(&limiter(rate, algorithm, &clock), &clock, &name, reserves);
            let clock = today();
            waits_meanwhile(&exact(rate, algorithm, &clock), &clock, &name, reserves);
        }
    }
    let clock = today();
    waits_after(&keyed(rate, &clock), &clock, "a word");
    for reserves in [false, true] {
        let clock = today();
        waits_meanwhile(&keyed(rate, &clock), &clock, "a word", reserves);
    }
}

/// One who waits is looked at long after its turn, when its neighbour has spent all it has: how much more that
/// neighbour gets.
fn late_neighbour<H: Holder>(
    (holder, clock, late): (&H, &Manual, Duration),
    neighbour: impl Fn() -> bool,
) -> usize {
    spend(holder, clock);
    let mut wait = Polled::new(holder.acquire(1));
    assert!(wait.poll().is_none());
    clock.advance(late);
    let burst = std::iter::repeat_with(&neighbour).take_while(|passed| *passed);
    assert_eq!(burst.count(), 10);
    assert_eq!(wait.poll(), Some(Ok(late)));
    let more = std::iter::repeat_with(&neighbour).take_while(|passed| *passed);
    more.count()
}

#[test]
fn a_turn_that_is_noticed_late_is_no_clock_that_was_set_back() {
    let rate = Rate::per_second(10);
    for late in [5, 70, 2 * 86_400, 400 * 86_400].map(Duration::from_secs) {
        let clock = today();
        let keys = keyed(rate, &clock);
        let more = late_neighbour((&keys, &clock, late), || keys.allow("bob"));
        assert_eq!(more, 0, "{late:?}");
        for algorithm in ALGORITHMS {
            let clock = today();
            let keys = exact(rate, algorithm, &clock);
            let more = late_neighbour((&keys, &clock, late), || keys.allow("bob"));
            assert_eq!(more, 0, "{algorithm:?} {late:?}");
        }
    }
}

fn peeks_ahead<H: Holder>(holder: &H, clock: &Manual) {
    spend(holder, clock);
    let mut waiting: Vec<_> = (0..30).map(|_| Polled::new(holder.acquire(1))).collect();
    for wait in &mut waiting {
        assert!(wait.poll().is_none());
    }
    let _ = holder.check_at(clock.now() + 60 * SECOND, 0);
    let passed = waiting.iter_mut().filter_map(|wait| wait.poll());
    assert_eq!(passed.count(), 0);
}

#[test]
fn a_look_ahead_lets_nobody_pass() {
    let rate = Rate::per_second(10);
    let clock = today();
    peeks_ahead(&keyed(rate, &clock), &clock);
    for algorithm in ALGORITHMS {
        peeks_ahead(&limiter(rate, algorithm, &clock), &clock);
        peeks_ahead(&exact(rate, algorithm, &clock), &clock);
    }
}

/// Three who wait at ten a second, and who come after the last token was spent.
fn three_wait<'a, H: Holder>(
    holder: &'a H,
    clock: &Manual,
) -> Vec<Polled<<Acquire<H::Home<'a>> as IntoFuture>::IntoFuture>> {
    spend(holder, clock);
    let mut waiting: Vec<_> = (0..3).map(|_| Polled::new(holder.acquire(1))).collect();
    for wait in &mut waiting {
        assert!(wait.poll().is_none());
    }
    waiting
}

/// A peek at each future time equals the same peek once the clock is there.
fn looks_that_come_true<H: Holder>(make: impl Fn(&Manual) -> H, name: &str, is_exact: bool) {
    let said = |after: Duration| {
        let clock = today();
        let holder = make(&clock);
        let _waiting = three_wait(&holder, &clock);
        holder.check_at(clock.now() + after, 0)
    };
    let found = |after: Duration| {
        let clock = today();
        let holder = make(&clock);
        let mut waiting = three_wait(&holder, &clock);
        clock.advance(after);
        for wait in &mut waiting {
            let _ = wait.poll();
        }
        holder.check_at(clock.now(), 0)
    };
    // Not when a token comes back, which a word says up to a nanosecond late.
    for after in (0..40).map(|step| (2 * step + 1) * SECOND / 40) {
        let (told, then) = (said(after), found(after));
        let why = format!("{name} after {after:?}: {told:?}, then {then:?}");
        assert_eq!(told.is_allowed(), told.wait_or_max().is_zero(), "{why}");
        if is_exact {
            assert_eq!(told.is_allowed(), then.is_allowed(), "{why}");
            assert_eq!(told.remaining, then.remaining, "{why}");
            assert!(found(after + told.wait_or_max()).is_allowed(), "{why}");
        }
    }
}

#[test]
fn a_look_ahead_tells_a_wait_that_comes_true() {
    let rate = Rate::per_second(10).burst(4);
    looks_that_come_true(|clock| keyed(rate, clock), "a word", true);
    for algorithm in ALGORITHMS {
        // The place of one behind others isn't a sum in windows and logs.
        let is_exact = matches!(
            algorithm,
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
        );
        let rate = if is_exact { rate } else { Rate::per_second(10) };
        let name = format!("{algorithm:?}");
        looks_that_come_true(|clock| limiter(rate, algorithm, clock), &name, is_exact);
        looks_that_come_true(|clock| exact(rate, algorithm, clock), &name, is_exact);
    }
}

/// One who waits for five seconds at most while the clock is set back, and whose turn is put off.
fn gives_up_in_time<H: Holder>(holder: &H, clock: &Manual, name: &str) {
    let today = clock.now();
    clock.advance(YEAR);
    spend(holder, clock);
    let mut wait = Polled::new(holder.acquire(1).timeout(5 * SECOND));
    assert!(wait.poll().is_none(), "{name}");
    clock.set(today);
    assert!(wait.poll().is_none(), "{name}");
    holder.set_rate(Rate::per_hour(10));
    clock.advance(6 * SECOND);
    let refused = wait.poll();
    assert!(
        matches!(refused, Some(Err(RateDenied::DeadlineExceeded(_)))),
        "{name}: {refused:?}"
    );
}

#[test]
fn a_deadline_moves_with_a_clock_that_is_set_back() {
    // Not a key's word, which goes on by the rate that it was spent at.
    let rate = Rate::per_second(10);
    for algorithm in ALGORITHMS {
        let name = format!("{algorithm:?}");
        let clock = today();
        gives_up_in_time(&limiter(rate, algorithm, &clock), &clock, &name);
        let clock = today();
        gives_up_in_time(&exact(rate, algorithm, &clock), &clock, &name);
    }
}

#[test]
fn nor_do_those_who_share_a_limit_or_wait_for_a_slot_wait_for_longer_than_was_asked() {
    let clock = today();
    let now = clock.now();
    clock.advance(YEAR);
    let builder = FairLimiter::builder(Rate::per_second(1).burst(5)).clock(clock.clone());
    let fair = builder.build().expect("a rate that fits");
    assert!(fair.allow_n("eve", 5));
    let mut wait = Polled::new(fair.acquire_n("ada", 5).timeout(6 * SECOND));
    assert!(wait.poll().is_none());
    let slots = ConcurrencyLimiter::builder(1).clock(clock.clone()).build();
    let permit = slots.try_acquire().expect("the only slot");
    let mut slot = Polled::new(slots.acquire().timeout(6 * SECOND));
    assert!(slot.poll().is_none());
    clock.set(now);
    // Twenty who ask for less are served before.
    let mut others: Vec<_> = (0..20)
        .map(|number: u32| Polled::new(fair.acquire_n(&number, 1)))
        .collect();
    for other in &mut others {
        assert!(other.poll().is_none());
    }
    assert!(wait.poll().is_none() && slot.poll().is_none());
    clock.advance(7 * SECOND);
    let refused = wait.poll();
    assert!(
        matches!(refused, Some(Err(RateDenied::DeadlineExceeded(_)))),
        "{refused:?}"
    );
    let refused = slot.poll();
    let late = matches!(refused, Some(Err(PermitDenied::DeadlineExceeded(_))));
    assert!(late, "{refused:?}");
    drop(permit);
}

#[test]
fn one_who_was_stopped_on_its_way_sets_no_line_back() {
    for algorithm in ALGORITHMS {
        let clock = today();
        let limiter = limiter(Rate::per_second(10), algorithm, &clock);
        let before = clock.now();
        clock.advance(90 * SECOND);
        spend(&limiter, &clock);
        let mut waiting: Vec<_> = (0..200).map(|_| Polled::new(limiter.acquire())).collect();
        for wait in &mut waiting {
            assert!(wait.poll().is_none());
        }
        assert!(!limiter.check_at(before, 1).is_allowed());
        let passed = waiting.iter_mut().filter_map(|wait| wait.poll()).count();
        assert!(passed <= 10, "{algorithm:?}: {passed}");
    }
}
