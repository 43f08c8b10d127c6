//! A waiter that leaves a queue frees its position: timeouts, drops in any order, and what others see of the queue.

use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, KeyedLimiter, Limiter, Outcome, Rate, RateDenied, StoredKeyLimiter, Timestamp,
    WhenFull,
};

use super::Polled;
use super::holder::{ALGORITHMS, Holder};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn limiter(rate: Rate, clock: &Manual) -> Limiter<Manual> {
    Limiter::with_clock(rate, clock.clone())
}

fn keyed(rate: Rate, clock: &Manual) -> KeyedLimiter<Manual> {
    let builder = KeyedLimiter::builder(rate, 100).clock(clock.clone());
    builder.build().expect("a rate that fits")
}

fn exact(rate: Rate, algorithm: Algorithm, clock: &Manual) -> StoredKeyLimiter<String, Manual> {
    let builder = StoredKeyLimiter::builder(rate, 100).algorithm(algorithm);
    let built = builder.clock(clock.clone()).build();
    built.expect("a rate that fits")
}

fn with_algorithm(rate: Rate, algorithm: Algorithm, clock: &Manual) -> Limiter<Manual> {
    let builder = Limiter::builder(rate).algorithm(algorithm);
    let built = builder.clock(clock.clone()).build();
    built.expect("a rate that fits")
}

/// Twenty wait and leave, in this order; then one more comes: how long it has to wait.
fn wait_after_twenty_went<H: Holder>(holder: &H, clock: &Manual, order: impl Fn(u64) -> u64) {
    let start = Timestamp::from_secs(1_000);
    clock.set(start);
    let alone = loop {
        let decision = holder.check_at(start, 1);
        if !decision.is_allowed() {
            break decision.wait_or_max();
        }
    };
    let mut waiting: Vec<_> = (0..20)
        .map(|number| {
            let mut wait = Polled::new(holder.acquire(1));
            assert!(wait.poll().is_none());
            (order(number), wait)
        })
        .collect();
    assert!(holder.check_at(start, 1).wait_or_max() >= alone);
    waiting.sort_by_key(|(order, _)| *order);
    for (_, wait) in waiting {
        drop(wait);
    }
    assert_eq!(holder.check_at(start, 1).wait_or_max(), alone);
    let mut next = Polled::new(holder.acquire(1));
    assert!(next.poll().is_none());
    clock.advance(alone - Duration::from_nanos(1));
    assert_eq!((next.woken(), next.poll()), (0, None));
    clock.advance(Duration::from_nanos(1));
    assert_eq!((next.woken(), next.poll()), (1, Some(Ok(alone))));
}

#[test]
fn dropped_in_any_order_they_leave_nobody_waiting() {
    let orders: [fn(u64) -> u64; 3] = [
        |number| number,
        |number| 20 - number,
        |number| number * 7 % 20,
    ];
    let (rate, window) = (Rate::per_second(10).burst(1), Rate::per_second(10));
    for order in orders {
        for algorithm in ALGORITHMS {
            let rate = match algorithm {
                Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => rate,
                _ => window,
            };
            let clock = Manual::new();
            wait_after_twenty_went(&with_algorithm(rate, algorithm, &clock), &clock, order);
            let clock = Manual::new();
            wait_after_twenty_went(&exact(rate, algorithm, &clock), &clock, order);
        }
        let clock = Manual::new();
        wait_after_twenty_went(&keyed(rate, &clock), &clock, order);
        let clock = Manual::new();
        let striped = Limiter::builder(rate).stripes(4).clock(clock.clone());
        wait_after_twenty_went(&striped.build().unwrap(), &clock, order);
    }
}

#[test]
fn twenty_at_ten_a_second_dropped_oldest_first_leave_a_wait_of_a_tenth() {
    let clock = Manual::new();
    let limiter = limiter(Rate::per_second(10).burst(1), &clock);
    assert!(limiter.allow());
    let mut waiting: Vec<_> = (0..20).map(|_| Polled::new(limiter.acquire())).collect();
    assert!(waiting.iter_mut().all(|wait| wait.poll().is_none()));
    assert_eq!(limiter.check().wait_or_max(), millis(2_100));
    // Oldest first.
    drop(waiting);
    assert_eq!(limiter.check().wait_or_max(), millis(100));
    assert_eq!(limiter.reserve(1).unwrap().delay(), millis(100));
}

#[test]
fn a_check_passes_nobody_who_waits() {
    let clock = Manual::new();
    let limiter = limiter(Rate::per_second(10).burst(5), &clock);
    assert!(limiter.allow_n(3));
    let mut wait = Polled::new(limiter.acquire_n(4));
    assert!(wait.poll().is_none());
    // Two are there, but somebody waits for four.
    let told = limiter.check();
    assert_eq!((told.outcome, told.remaining), (Outcome::Denied, 0));
    assert_eq!(told.wait_or_max(), millis(300));
    assert!(!limiter.allow());
    clock.advance(millis(200));
    // It has passed, though it hasn't noticed yet: what is told comes true.
    assert_eq!(limiter.check().wait_or_max(), millis(100));
    assert_eq!(wait.poll(), Some(Ok(millis(200))));
    clock.advance(millis(100));
    assert!(limiter.allow() && !limiter.allow());
}

#[test]
fn a_reservation_behind_waits_books_them_first() {
    let clock = Manual::new();
    let limiter = limiter(Rate::per_second(10).burst(1), &clock);
    assert!(limiter.allow());
    let mut waiting: Vec<_> = (0..3).map(|_| Polled::new(limiter.acquire())).collect();
    assert!(waiting.iter_mut().all(|wait| wait.poll().is_none()));
    let slot = limiter.reserve(1).unwrap();
    assert_eq!(slot.delay(), millis(400));
    // The others move up when one goes; the reservation keeps its time.
    drop(waiting.remove(0));
    assert_eq!(
        (slot.delay(), limiter.check().wait_or_max()),
        (millis(400), millis(500))
    );
    clock.advance(millis(200));
    assert_eq!(waiting[0].poll(), Some(Ok(millis(200))));
    assert_eq!(waiting[1].poll(), Some(Ok(millis(200))));
    // What they left, and the reservation, come back together.
    slot.cancel();
    assert_eq!(limiter.check().wait_or_max(), millis(100));
}

#[test]
fn a_reservation_that_is_refused_books_nobody() {
    let clock = Manual::new();
    let limiter = keyed(Rate::per_minute(2).burst(1), &clock);
    assert!(limiter.allow("ada"));
    let mut waiting: Vec<_> = (0..3)
        .map(|_| Polled::new(limiter.key("ada").acquire()))
        .collect();
    assert!(waiting.iter_mut().all(|wait| wait.poll().is_none()));
    // No key is booked further ahead than a minute.
    let refused = limiter.key("ada").reserve(1).unwrap_err();
    assert_eq!(refused.decision().wait_or_max(), Duration::from_secs(120));
    drop(waiting.remove(0));
    assert_eq!(limiter.check("ada").wait_or_max(), Duration::from_secs(90));
}

#[test]
fn a_key_is_waited_for_as_long_as_it_takes() {
    let clock = Manual::new();
    let rate = Rate::per_minute(1);
    fn all_pass<H: Holder>(holder: &H, clock: &Manual) {
        assert!(holder.check_at(Timestamp::ZERO, 1).is_allowed());
        let mut waiting: Vec<_> = (0..5).map(|_| Polled::new(holder.acquire(1))).collect();
        assert!(waiting.iter_mut().all(|wait| wait.poll().is_none()));
        for (number, wait) in (1..).zip(&mut waiting) {
            clock.set(Timestamp::from_secs(60 * number));
            assert_eq!(wait.poll(), Some(Ok(Duration::from_secs(60 * number))));
        }
        clock.set(Timestamp::ZERO);
    }
    all_pass(&keyed(rate, &clock), &clock);
    let clock = Manual::new();
    all_pass(&exact(rate, Algorithm::Gcra, &clock), &clock);
}

#[test]
fn a_change_that_puts_a_cost_above_the_burst_ends_that_wait() {
    let clock = Manual::new();
    let limiter = limiter(Rate::per_second(10).burst(5), &clock);
    assert!(limiter.allow_n(3));
    let mut large = Polled::new(limiter.acquire_n(4));
    let mut small = Polled::new(limiter.acquire_n(2));
    assert!(large.poll().is_none() && small.poll().is_none());
    limiter.set_burst(3).unwrap();
    assert_eq!(large.woken(), 1);
    assert!(matches!(
        large.poll(),
        Some(Err(RateDenied::ExceedsBurst(_)))
    ));
    // The one behind it moves up.
    clock.advance(millis(200));
    assert_eq!(small.poll(), Some(Ok(millis(200))));
}

#[test]
fn a_blocked_key_is_not_waited_for() {
    let clock = Manual::new();
    let limiter = keyed(Rate::per_second(1), &clock);
    assert!(limiter.allow("ada"));
    let mut wait = Polled::new(limiter.key("ada").acquire());
    assert!(wait.poll().is_none());
    let hour = Duration::from_secs(3_600);
    limiter.key("ada").block_for(hour).unwrap();
    assert_eq!(wait.woken(), 1);
    let refused = wait.poll().unwrap().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "rate limit: the key is blocked; retry after 3600s"
    );
    let refused = limiter.key("ada").acquire().wait_blocking().unwrap_err();
    assert!(matches!(refused, RateDenied::Blocked(_)));
}

#[test]
fn keys_without_room_wait_for_what_they_share_in_one_order() {
    let clock = Manual::new();
    let builder = KeyedLimiter::builder(Rate::per_second(1), 10).at_cap(WhenFull::SharedBucket);
    let limiter = builder.clock(clock.clone()).build().unwrap();
    // Enough of them to fill every line; the first that found no room has the shared token.
    for key in 0..10_000 {
        let _ = limiter.allow(&key);
    }
    let mut waiting: Vec<_> = (0..3)
        .map(|key| Polled::new(limiter.key(&("late", key)).acquire()))
        .collect();
    assert!(waiting.iter_mut().all(|wait| wait.poll().is_none()));
    for (number, mut wait) in (1..).zip(waiting) {
        clock.set(Timestamp::from_secs(number));
        assert_eq!(
            (wait.woken(), wait.poll()),
            (1, Some(Ok(Duration::from_secs(number))))
        );
    }
}

#[test]
fn who_blocks_and_who_awaits_stand_in_one_line() {
    let clock = Manual::new();
    let limiter = limiter(Rate::per_second(10).burst(1), &clock);
    assert!(limiter.allow());
    let mut wait = Polled::new(limiter.acquire());
    assert!(wait.poll().is_none());
    thread::scope(|scope| {
        let blocked = scope.spawn(|| limiter.acquire().wait_blocking());
        while clock.parked() < 2 {
            thread::yield_now();
        }
        assert_eq!(limiter.check().wait_or_max(), millis(300));
        // The thread moves up, and passes at the time that was another's.
        drop(wait);
        clock.advance(millis(100));
        assert_eq!(blocked.join().unwrap(), Ok(millis(100)));
    });
}

#[cfg(feature = "tokio")]
mod on_paused_time {
    use std::future::{Future, IntoFuture};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tollgate::clock::{Clock, Tokio};

    use super::*;

    /// What a task can wait for.
    trait Waited: Send + Sync + 'static {
        fn pass(&self) -> impl Future<Output = Result<Duration, RateDenied>> + Send + '_;
        fn retry_after(&self) -> Duration;
    }

    impl Waited for Limiter<Tokio> {
        async fn pass(&self) -> Result<Duration, RateDenied> {
            self.acquire().await
        }

        fn retry_after(&self) -> Duration {
            self.check().wait_or_max()
        }
    }

    impl Waited for KeyedLimiter<Tokio> {
        async fn pass(&self) -> Result<Duration, RateDenied> {
            self.key("ada").acquire().await
        }

        fn retry_after(&self) -> Duration {
            self.check("ada").wait_or_max()
        }
    }

    impl Waited for StoredKeyLimiter<String, Tokio> {
        async fn pass(&self) -> Result<Duration, RateDenied> {
            self.key("ada").acquire().await
        }

        fn retry_after(&self) -> Duration {
            self.check("ada").wait_or_max()
        }
    }

    /// Thirty tasks that give up after 100 ms, for five seconds: how many pass.
    async fn storm<W: Waited>(limiter: W) -> u64 {
        let (limiter, passed) = (Arc::new(limiter), Arc::new(AtomicU64::new(0)));
        let clock = Tokio::new();
        let end = clock.now() + Duration::from_secs(5);
        let tasks: Vec<_> = (0..30)
            .map(|_| {
                let (limiter, passed) = (Arc::clone(&limiter), Arc::clone(&passed));
                tokio::spawn(async move {
                    while clock.now() < end {
                        let turn = tokio::time::timeout(millis(100), limiter.pass());
                        if turn.await.is_ok_and(|turn| turn.is_ok()) {
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(millis(4_900)).await;
        // At most the thirty before it, at 50/s.
        let told = limiter.retry_after();
        assert!(told <= millis(31 * 20), "{told:?}");
        for task in tasks {
            task.await.expect("no task panics");
        }
        assert!(limiter.retry_after() <= millis(20));
        passed.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_give_up_get_all_that_may_pass() {
        let rate = Rate::per_second(50).burst(5);
        let (least, most) = (253, 255 + 5);
        let is_all = |passed: u64| assert!((least..=most).contains(&passed), "{passed} of 255");
        is_all(storm(Limiter::with_clock(rate, Tokio::new())).await);
        let striped = Limiter::builder(rate).stripes(4).clock(Tokio::new());
        is_all(storm(striped.build().unwrap()).await);
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
            let builder = Limiter::builder(rate).algorithm(algorithm);
            is_all(storm(builder.clock(Tokio::new()).build().unwrap()).await);
        }
        let keyed = KeyedLimiter::builder(rate, 100).clock(Tokio::new());
        is_all(storm(keyed.build().unwrap()).await);
        let exact = StoredKeyLimiter::builder(rate, 100).clock(Tokio::new());
        is_all(storm(exact.build().unwrap()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_is_dropped_costs_the_next_nothing() {
        let limiter = Limiter::with_clock(Rate::per_second(10).burst(1), Tokio::new());
        limiter.acquire().await.unwrap();
        let limiter = Arc::new(limiter);
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                tokio::spawn(async move { limiter.acquire().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(limiter.waiters(), 20);
        // A disconnect, the oldest first.
        for task in tasks {
            task.abort();
            assert!(task.await.is_err());
        }
        assert_eq!(limiter.acquire().await, Ok(millis(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn owned_waits_live_in_tasks_and_free_their_places() {
        let rate = Rate::per_second(10).burst(1);
        let limiter = Arc::new(Limiter::with_clock(rate, Tokio::new()));
        let keyed = KeyedLimiter::builder(rate, 100).clock(Tokio::new());
        let keyed = Arc::new(keyed.build().unwrap());
        let exact = StoredKeyLimiter::<String>::builder(rate, 100).clock(Tokio::new());
        let exact = Arc::new(exact.build().unwrap());
        let (key, exact_key) = (keyed.key_owned("ada"), exact.key_owned("ada"));
        assert!(limiter.allow() && key.allow() && exact_key.allow());
        let gone = [
            tokio::spawn(limiter.acquire_owned().into_future()),
            tokio::spawn(key.acquire_n(1).into_future()),
            tokio::spawn(exact_key.acquire_n(1).into_future()),
        ];
        tokio::task::yield_now().await;
        assert_eq!(
            (limiter.waiters(), keyed.waiters(), exact.waiters()),
            (1, 1, 1)
        );
        for task in gone {
            task.abort();
            assert!(task.await.is_err());
        }
        assert_eq!(
            (limiter.waiters(), keyed.waiters(), exact.waiters()),
            (0, 0, 0)
        );
        let slots = [
            tokio::spawn(limiter.reserve_owned(1).unwrap().wait()),
            tokio::spawn(key.reserve(1).unwrap().wait()),
            tokio::spawn(exact_key.reserve(1).unwrap().wait()),
        ];
        for slot in slots {
            assert_eq!(slot.await.unwrap(), millis(100));
        }
    }
}
