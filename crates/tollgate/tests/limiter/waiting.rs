//! Waiting: first come first served, deadlines that fail immediately, bounded queues, paused time.

use std::future::{Future, IntoFuture};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tollgate::clock::{Manual, Tokio};
use tollgate::{Algorithm, Clock, Limiter, Rate, RateDenied, Timestamp, core::WindowAlignment};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn every(interval: u64) -> Rate {
    Rate::every(millis(interval))
}

#[tokio::test(start_paused = true)]
async fn six_waits_at_one_in_100_ms_burst_3_take_300_ms() {
    let limiter = Limiter::with_clock(every(100).burst(3), Tokio::new());
    let mut waited = Duration::ZERO;
    for _ in 0..6 {
        waited += limiter.acquire().await.unwrap();
    }
    assert_eq!(waited, millis(300));
    assert_eq!(limiter.clock().now(), Timestamp::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn waiters_pass_in_the_order_in_which_they_came() {
    let limiter = Arc::new(Limiter::with_clock(every(10), Tokio::new()));
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            let (limiter, order) = (Arc::clone(&limiter), Arc::clone(&order));
            tokio::spawn(async move {
                limiter.acquire().await.unwrap();
                order.lock().unwrap().push((number, limiter.clock().now()));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    for (index, (number, at)) in order.iter().enumerate() {
        assert_eq!(*number, index);
        assert_eq!(*at, Timestamp::from_millis(10 * index as u64));
    }
    assert_eq!(limiter.waiters(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_cannot_be_met_fails_at_once_and_takes_nothing() {
    let limiter = Limiter::with_clock(every(100), Tokio::new());
    limiter.acquire().await.unwrap();
    let start = limiter.clock().now();
    for refused in [
        limiter.acquire().timeout(millis(99)).await,
        limiter.acquire().deadline(start + millis(99)).await,
    ] {
        let Err(RateDenied::DeadlineExceeded(decision)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(decision.wait_or_max(), millis(100));
    }
    assert_eq!(limiter.clock().now(), start, "it failed without waiting");
    assert_eq!(
        limiter.acquire().timeout(millis(100)).await,
        Ok(millis(100))
    );
}

#[tokio::test(start_paused = true)]
async fn an_expired_deadline_fails_even_when_tokens_are_there() {
    let limiter = Limiter::with_clock(every(100).burst(5), Tokio::new());
    tokio::time::advance(millis(50)).await;
    let deadline = Timestamp::from_millis(49);
    let refused = limiter.acquire().deadline(deadline).await.unwrap_err();
    assert!(matches!(refused, RateDenied::DeadlineExceeded(_)));
    assert_eq!(
        refused.to_string(),
        "rate limit: the deadline has passed already"
    );
    assert_eq!(limiter.peek().remaining, 5);
    // A deadline of right now is not over yet.
    let now = limiter.clock().now();
    assert_eq!(limiter.acquire().deadline(now).await, Ok(Duration::ZERO));
    assert_eq!(
        limiter.acquire().timeout(Duration::ZERO).await,
        Ok(Duration::ZERO)
    );
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_gives_the_slot_and_the_place_back() {
    let limiter = Limiter::with_clock(every(100), Tokio::new());
    limiter.acquire().await.unwrap();
    {
        let waiting = limiter.acquire().into_future();
        tokio::pin!(waiting);
        assert!(futures_poll(waiting.as_mut()).await.is_none());
        assert_eq!(limiter.waiters(), 1);
        assert_eq!(
            limiter.peek().wait_or_max(),
            millis(100),
            "in debt for the waiter"
        );
    }
    assert_eq!(limiter.waiters(), 0);
    assert_eq!(limiter.acquire().await, Ok(millis(100)));
}

/// Polls once: `None` while pending.
async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn one_more_than_may_wait_is_refused_with_what_to_expect() {
    let limiter = Arc::new(
        Limiter::builder(every(100))
            .max_waiters(2)
            .clock(Tokio::new())
            .build()
            .unwrap(),
    );
    limiter.acquire().await.unwrap();
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.acquire().await })
        })
        .collect();
    tokio::task::yield_now().await;
    assert_eq!(limiter.waiters(), 2);
    let refused = limiter.acquire().await.unwrap_err();
    assert!(matches!(refused, RateDenied::QueueFull(_)));
    assert_eq!(
        refused.to_string(),
        "rate limit: too many are waiting already; retry after 300ms"
    );
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(limiter.waiters(), 0);
    assert!(limiter.acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_bounded_by_default() {
    let limiter = Limiter::with_clock(Rate::per_second(1_000_000).burst(1), Tokio::new());
    limiter.acquire().await.unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        let mut next = Box::pin(limiter.acquire().into_future());
        match futures_poll(next.as_mut()).await {
            None => waiting.push(next),
            Some(result) => break result.unwrap_err(),
        }
    };
    assert_eq!(waiting.len(), 65_536);
    assert!(matches!(refused, RateDenied::QueueFull(_)));
}

#[tokio::test(start_paused = true)]
async fn jitter_comes_after_the_reserved_time() {
    let limiter = Limiter::with_clock(every(100), Tokio::new());
    for turn in 1..=20 {
        limiter.acquire().jitter(millis(40)).await.unwrap();
        let reserved = Timestamp::from_millis(100 * (turn - 1));
        let now = limiter.clock().now();
        assert!(
            now >= reserved && now - reserved <= millis(41),
            "{turn}: {now}"
        );
        // The jitter of one doesn't shift the slot of the next.
        tokio::time::sleep_until(tokio::time::Instant::now() + (reserved + millis(60) - now)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_wake_up_loses_no_rate() {
    let limiter = Limiter::with_clock(every(10).burst(5), Tokio::new());
    let mut passed = 0;
    while limiter.clock().now() < Timestamp::from_secs(1) {
        limiter.acquire().await.unwrap();
        passed += 1;
        // The task is busy for longer than an interval now and then.
        if passed % 3 == 0 {
            tokio::time::advance(millis(25)).await;
        }
    }
    assert!((100..=106).contains(&passed), "{passed}");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_can_be_awaited() {
    let limiter = Limiter::with_clock(every(100), Tokio::new());
    assert_eq!(limiter.reserve(1).unwrap().wait().await, Duration::ZERO);
    let slot = limiter.reserve(1).unwrap();
    assert_eq!(slot.wait().await, millis(100));
    // A wait that is dropped gives back.
    drop(limiter.reserve(1).unwrap().wait());
    assert_eq!(limiter.reserve(1).unwrap().delay(), millis(100));
}

#[tokio::test(start_paused = true)]
async fn every_algorithm_can_be_waited_for() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
        Algorithm::FixedWindow(WindowAlignment::default()),
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
    ] {
        let clock = Tokio::new();
        let limiter = Limiter::builder(Rate::per_second(4))
            .algorithm(algorithm)
            .clock(clock)
            .build()
            .unwrap();
        let mut acts = Vec::new();
        for _ in 0..12 {
            limiter.acquire().await.unwrap();
            acts.push(clock.now());
        }
        for pair in acts.windows(9) {
            // At most twice the count in any window, whatever the algorithm.
            assert!(pair[8] - pair[0] >= millis(1_000), "{algorithm:?} {acts:?}");
        }
        assert!(
            acts[11] <= Timestamp::from_secs(3),
            "{algorithm:?} {acts:?}"
        );
    }
}

#[test]
fn the_blocking_form_arrives_at_a_given_time_and_waits_on_its_own_clock() {
    let clock = Manual::starting_at(Timestamp::from_secs(1));
    let limiter = Arc::new(Limiter::with_clock(Rate::per_second(1), clock.clone()));
    let arrival = Timestamp::from_secs(1);
    assert_eq!(
        limiter.acquire().at(arrival).wait_blocking(),
        Ok(Duration::ZERO)
    );
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            std::thread::spawn(move || limiter.acquire().at(arrival).wait_blocking())
        })
        .collect();
    while clock.parked() < 3 {
        std::thread::yield_now();
    }
    assert_eq!(limiter.waiters(), 3);
    clock.advance(Duration::from_secs(3));
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(Duration::from_secs(3)));
    }
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn a_wait_outlives_the_runtime_that_it_began_in() {
    let limiter = Limiter::new(Rate::per_second(50).burst(1));
    assert!(limiter.allow());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut wait = Box::pin(limiter.acquire().into_future());
    runtime.block_on(async {
        std::future::poll_fn(|context| {
            assert!(wait.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    drop(runtime);
    block_on(wait).unwrap();
    // And one that begins in the context of a runtime that has ended.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    drop(runtime);
    let _inside = handle.enter();
    block_on(limiter.acquire().into_future()).unwrap();
}

/// The least executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Measured by turn: all are in line before the first passes, so that no task that wasn't polled before can be in
/// front of one that was woken.
#[tokio::test(start_paused = true)]
async fn ten_thousand_in_line_pass_in_the_order_in_which_they_came() {
    let limiter = Limiter::with_clock(Rate::per_second(1_000).burst(7), Tokio::new());
    let limiter = Arc::new(limiter);
    while limiter.allow() {}
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..10_000)
        .map(|who| {
            let (limiter, order) = (Arc::clone(&limiter), Arc::clone(&order));
            tokio::spawn(async move {
                limiter.acquire_owned().await.unwrap();
                order.lock().unwrap().push(who);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    let overtaken = order.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert_eq!((order.len(), overtaken), (10_000, 0));
}
