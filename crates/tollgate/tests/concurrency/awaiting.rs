//! Awaited permits: order, cancellation at every point, deadlines on paused time, and the sums of
//! a concurrency limit and a rate.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tollgate::clock::Tokio;
use tollgate::{
    Clock, ConcurrencyLimiter, Limiter, Rate, Timestamp,
    concurrency::{self, Permit, PermitDenied, PermitSource},
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A wait that a test polls by hand.
struct Wait<H: PermitSource> {
    future: Pin<Box<concurrency::PermitFuture<H>>>,
    woken: Arc<Woken>,
}

impl<H: PermitSource> Wait<H> {
    /// Polls once, so that it is queued.
    fn start(acquire: concurrency::Acquire<H>) -> Self {
        let mut wait = Self {
            future: Box::pin(acquire.into_future()),
            woken: Arc::default(),
        };
        assert!(wait.poll().is_none(), "it has to wait");
        wait
    }

    fn poll(&mut self) -> Option<Result<Permit<H>, PermitDenied>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn wakes(&self) -> usize {
        self.woken.0.load(Ordering::Relaxed)
    }
}

#[test]
fn waits_are_woken_once_and_in_order_without_a_runtime() {
    let limiter = ConcurrencyLimiter::new(2);
    let held = limiter.try_acquire_n(2).unwrap();
    let mut waits = [1, 2, 1].map(|weight| Wait::start(limiter.acquire_n(weight)));
    assert_eq!(limiter.peek().waiting, 3);
    drop(held);
    assert_eq!(waits.each_ref().map(Wait::wakes), [1, 0, 0]);
    // Polled out of order, those behind still wait.
    assert!(waits[2].poll().is_none());
    assert!(waits[1].poll().is_none());
    let first = waits[0].poll().unwrap().unwrap();
    drop(first);
    assert_eq!(waits.each_ref().map(Wait::wakes), [1, 1, 0]);
    drop(waits[1].poll().unwrap().unwrap());
    drop(waits[2].poll().unwrap().unwrap());
    assert_eq!((limiter.peek().in_use, limiter.peek().waiting), (0, 0));
}

#[test]
fn a_wait_that_moves_to_another_task_wakes_that_one() {
    let limiter = ConcurrencyLimiter::new(1);
    let held = limiter.try_acquire().unwrap();
    let mut wait = Wait::start(limiter.acquire());
    let stale = std::mem::take(&mut wait.woken);
    assert!(wait.poll().is_none());
    drop(held);
    assert_eq!((stale.0.load(Ordering::Relaxed), wait.wakes()), (0, 1));
    assert!(wait.poll().unwrap().is_ok());
}

#[test]
fn a_wait_that_is_dropped_before_it_is_polled_takes_nothing() {
    let limiter = ConcurrencyLimiter::new(1);
    drop(limiter.acquire().into_future());
    drop(limiter.acquire());
    assert_eq!((limiter.peek().in_use, limiter.stats().acquired), (0, 0));
    assert_eq!(limiter.stats().abandoned, 0);
}

#[test]
fn a_wait_that_is_dropped_in_the_queue_frees_its_place_for_those_behind() {
    let limiter = ConcurrencyLimiter::builder(3).max_waiters(2).build();
    let held = limiter.try_acquire_n(2).unwrap();
    let large = Wait::start(limiter.acquire_n(3));
    let mut small = Wait::start(limiter.acquire_n(1));
    drop(large);
    assert_eq!(small.wakes(), 1, "the one behind fits now");
    assert!(small.poll().unwrap().is_ok());
    assert_eq!(limiter.peek().waiting, 0);
    assert!(
        limiter.try_acquire().is_ok(),
        "nobody waits, so newcomers may"
    );
    assert_eq!(limiter.stats().abandoned, 1);
    drop(held);
}

#[test]
fn a_wait_that_is_dropped_between_its_grant_and_its_poll_passes_it_on() {
    let limiter = ConcurrencyLimiter::new(1);
    let held = limiter.try_acquire().unwrap();
    let first = Wait::start(limiter.acquire());
    let mut second = Wait::start(limiter.acquire());
    drop(held);
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    assert_eq!(limiter.peek().in_use, 1, "it is the first one's already");
    drop(first);
    assert_eq!(second.wakes(), 1);
    drop(second.poll().unwrap().unwrap());
    assert_eq!(limiter.peek().in_use, 0);
    let stats = limiter.stats();
    assert_eq!((stats.acquired, stats.abandoned), (2, 1));
}

#[test]
fn a_wait_that_is_dropped_after_a_refusal_leaves_nothing() {
    let limiter = ConcurrencyLimiter::new(2);
    let held = limiter.try_acquire().unwrap();
    let polled = &mut Wait::start(limiter.acquire_n(2));
    let dropped = Wait::start(limiter.acquire_n(2));
    limiter.set_limit(1);
    assert_eq!((polled.wakes(), dropped.wakes()), (1, 1));
    assert!(matches!(
        polled.poll(),
        Some(Err(PermitDenied::ExceedsLimit(_)))
    ));
    drop(dropped);
    drop(held);
    assert!(limiter.try_acquire().is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_awaited_wait_ends_at_its_deadline_and_is_out_of_the_queue() {
    let limiter = ConcurrencyLimiter::builder(1)
        .timeout(millis(300))
        .clock(Tokio::new())
        .build();
    let held = limiter.acquire().await.unwrap();
    let start = limiter.clock().now();
    let check = async |acquire: concurrency::Acquire<&ConcurrencyLimiter<Tokio>>,
                       ends: Timestamp| {
        let refused = acquire.await.unwrap_err();
        assert!(matches!(refused, PermitDenied::DeadlineExceeded(_)));
        assert_eq!(limiter.clock().now(), ends);
        assert_eq!(limiter.peek().waiting, 0);
    };
    check(limiter.acquire().timeout(millis(100)), start + millis(100)).await;
    check(
        limiter.acquire().deadline(start + millis(250)),
        start + millis(250),
    )
    .await;
    check(limiter.acquire(), start + millis(550)).await;
    check(
        limiter.acquire().timeout(Duration::ZERO),
        start + millis(550),
    )
    .await;
    check(
        limiter.acquire().deadline(start + millis(549)),
        start + millis(550),
    )
    .await;
    drop(held);
    check(
        limiter.acquire().deadline(start + millis(549)),
        start + millis(550),
    )
    .await;
    assert!(limiter.acquire().timeout(Duration::ZERO).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_was_given_in_time_is_delivered_late() {
    let limiter = ConcurrencyLimiter::builder(1).clock(Tokio::new()).build();
    let held = limiter.try_acquire().unwrap();
    let mut wait = Wait::start(limiter.acquire().timeout(millis(10)));
    drop(held);
    tokio::time::advance(millis(50)).await;
    assert!(wait.poll().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_select_that_loses_gives_its_place_back() {
    let limiter = ConcurrencyLimiter::builder(1).clock(Tokio::new()).build();
    let held = limiter.acquire().await.unwrap();
    tokio::select! {
        biased;
        _ = limiter.acquire() => panic!("it is taken"),
        () = tokio::time::sleep(millis(1)) => {}
    }
    assert_eq!(limiter.peek().waiting, 0);
    drop(held);
    assert_eq!(limiter.acquire().await.unwrap().in_flight(), 1);
}

/// What 200 callers get done in so many seconds of paused time, each call taking `work`, and how
/// many of them were in flight at the most.
async fn throughput(permits: u32, rate: Rate, work: Duration, seconds: u64) -> (u64, u32) {
    let clock = Tokio::new();
    let end = Timestamp::from_secs(seconds);
    let permits = Arc::new(ConcurrencyLimiter::builder(permits).clock(clock).build());
    let rate = Arc::new(Limiter::with_clock(rate, clock));
    let callers: Vec<_> = (0..200)
        .map(|_| {
            let (permits, rate) = (Arc::clone(&permits), Arc::clone(&rate));
            tokio::spawn(async move {
                let (mut done, mut most) = (0, 0);
                while clock.now() < end {
                    rate.acquire().await.expect("a wait without end");
                    let permit = permits.acquire().await.expect("the same");
                    most = most.max(permit.in_flight());
                    tokio::time::sleep(work).await;
                    permit.success();
                    done += u64::from(clock.now() <= end);
                }
                (done, most)
            })
        })
        .collect();
    let (mut sum, mut most) = (0, 0);
    for caller in callers {
        let (done, in_flight) = caller.await.expect("no panic");
        sum += done;
        most = most.max(in_flight);
    }
    assert_eq!(permits.peek().in_use, 0);
    (sum, most)
}

const SECOND: Duration = Duration::from_secs(1);
const ANY: Rate = Rate::unlimited();
const MANY: u32 = ConcurrencyLimiter::MAX_LIMIT;

#[tokio::test(start_paused = true)]
async fn fifty_permits_give_50_000_a_second_at_1_ms_and_50_at_1_s() {
    assert_eq!(throughput(50, ANY, millis(1), 1).await, (50_000, 50));
    assert_eq!(throughput(50, ANY, SECOND, 20).await, (20 * 50, 50));
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_100_a_second_caps_both() {
    let rate = Rate::per_second(100).burst(1);
    // One starts every 10 ms from 0 on and ends a millisecond later.
    assert_eq!(throughput(50, rate, millis(1), 20).await, (20 * 100, 1));
    // The permits are the tighter one: the first 50 start 10 ms apart, and each is followed by
    // another a second later. All that start by 19 s are done by 20 s: 19 rounds, and one call.
    assert_eq!(throughput(50, rate, SECOND, 20).await, (19 * 50 + 1, 50));
    // The rate alone doesn't notice that calls take long: 100 a second, and 100 in flight. (A call
    // that ends as another starts may be seen before or after it, so these end a little earlier.)
    let (done, most) = throughput(MANY, rate, millis(999), 20).await;
    assert_eq!((done, most), (19 * 100 + 1, 100));
}
