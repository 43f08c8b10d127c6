//! Waits that are awaited on any executor: woken by the clock, by a thread, or by tokio's timer.

mod holder;
mod leaving;
mod model;
mod reserving;
mod set_back;

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tollgate::clock::{Cached, Manual, Monotonic, Wall};
use tollgate::{
    Clock, ConcurrencyLimiter, FairLimiter, KeyedLimiter, Limiter, Rate, StoredKeyLimiter,
    concurrency::PermitDenied,
};

/// Counts how often it was woken.
#[derive(Default)]
struct Counted(AtomicUsize);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The least executor there is: a thread that parks.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A future that is polled by hand.
struct Polled<F> {
    future: Pin<Box<F>>,
    woken: Arc<Counted>,
}

impl<F: Future> Polled<F> {
    fn new(future: impl IntoFuture<IntoFuture = F>) -> Self {
        Self {
            future: Box::pin(future.into_future()),
            woken: Arc::default(),
        }
    }

    fn poll(&mut self) -> Option<F::Output> {
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    fn woken(&self) -> usize {
        self.woken.0.load(Ordering::Relaxed)
    }
}

/// Polls, advances to just before its time, then to its time, and expects to be woken then.
fn is_woken_at<F: Future>(clock: &Manual, at: Duration, mut wait: Polled<F>) -> F::Output {
    assert!(wait.poll().is_none());
    assert_eq!(clock.parked(), 1);
    clock.advance(at - Duration::from_nanos(1));
    assert_eq!(wait.woken(), 0);
    assert!(wait.poll().is_none());
    clock.advance(Duration::from_nanos(1));
    assert_eq!((wait.woken(), clock.parked()), (1, 0));
    wait.poll().expect("its time has come")
}

#[test]
fn a_manual_clock_wakes_whoever_awaits_it() {
    let (clock, second) = (Manual::new(), Duration::from_secs(1));
    let limiter = Limiter::with_clock(Rate::per_second(1), clock.clone());
    assert!(limiter.allow());
    let waited = is_woken_at(&clock, second, Polled::new(limiter.acquire()));
    assert_eq!(waited, Ok(second));

    let slot = limiter.reserve(1).unwrap();
    assert_eq!(
        is_woken_at(&clock, second, Polled::new(slot.wait())),
        second
    );

    let builder = KeyedLimiter::builder(Rate::per_second(1), 100);
    let keyed = builder.clock(clock.clone()).build().unwrap();
    assert!(keyed.allow("ada"));
    let waited = is_woken_at(&clock, second, Polled::new(keyed.key("ada").acquire()));
    assert_eq!(waited, Ok(second));

    let builder = StoredKeyLimiter::builder(Rate::per_second(1), 100);
    let exact = builder.clock(clock.clone()).build().unwrap();
    assert!(exact.allow("ada"));
    let waited = is_woken_at(&clock, second, Polled::new(exact.key("ada").acquire()));
    assert_eq!(waited, Ok(second));

    let builder = FairLimiter::builder(Rate::per_second(1)).clock(clock.clone());
    let fair = builder.build().unwrap();
    assert!(fair.allow("ada"));
    let waited = is_woken_at(&clock, second, Polled::new(fair.acquire("ada")));
    assert_eq!(waited, Ok(second));

    let slots = ConcurrencyLimiter::builder(1).clock(clock.clone()).build();
    let permit = slots.try_acquire().unwrap();
    let hasty = Polled::new(slots.acquire().timeout(second));
    let refused = is_woken_at(&clock, second, hasty).unwrap_err();
    assert!(matches!(refused, PermitDenied::DeadlineExceeded(_)));
    drop(permit);
}

#[test]
fn a_wait_that_is_dropped_is_not_woken() {
    let clock = Manual::new();
    let limiter = Limiter::with_clock(Rate::per_second(1), clock.clone());
    assert!(limiter.allow());
    let mut wait = Polled::new(limiter.acquire());
    assert!(wait.poll().is_none());
    let woken = Arc::clone(&wait.woken);
    drop(wait);
    assert_eq!(clock.parked(), 0);
    clock.advance(Duration::from_secs(9));
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
}

#[test]
fn time_that_moved_before_the_wait_began_is_seen() {
    let clock = Manual::new();
    let limiter = Limiter::with_clock(Rate::per_second(1), clock.clone());
    let slot = limiter.reserve(1).and_then(|_| limiter.reserve(1)).unwrap();
    let mut wait = Polled::new(slot.wait());
    clock.advance(Duration::from_secs(1));
    assert_eq!(wait.poll(), Some(Duration::ZERO));
    // A task that was polled by one executor goes on in another.
    let slot = limiter.reserve(1).unwrap();
    let mut wait = Polled::new(slot.wait());
    assert_eq!(wait.poll(), None);
    let first = std::mem::take(&mut wait.woken);
    assert_eq!(wait.poll(), None);
    clock.advance(Duration::from_secs(1));
    let first = first.0.load(Ordering::Relaxed);
    assert_eq!((first, wait.woken()), (0, 1));
}

fn takes_turns_on<C: Clock>(clock: C) {
    let limiter = Limiter::with_clock(Rate::per_second(1_000).burst(1), clock);
    let start = limiter.clock().now();
    for _ in 0..5 {
        block_on(limiter.acquire().into_future()).expect("it passes");
    }
    assert!(limiter.clock().now() - start >= Duration::from_millis(4));
}

#[test]
fn any_executor_will_do_on_any_clock() {
    takes_turns_on(Monotonic::new());
    takes_turns_on(Cached::new());
    takes_turns_on(Wall);
    // Many at once, some of whom go.
    let limiter = Limiter::new(Rate::per_second(2_000).burst(1));
    thread::scope(|scope| {
        for number in 0..20 {
            let limiter = &limiter;
            scope.spawn(move || {
                let mut gone = Polled::new(limiter.acquire());
                if number % 3 == 0 {
                    let _ = gone.poll();
                }
                drop(gone);
                block_on(limiter.acquire().into_future()).unwrap();
            });
        }
    });
    assert_eq!(limiter.waiters(), 0);
}

#[cfg(feature = "tokio")]
mod in_a_runtime {
    use super::*;

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "make the limiter with `clock::Tokio`")]
    async fn paused_time_and_a_clock_that_goes_on_say_what_to_do() {
        let limiter = Limiter::new(Rate::per_hour(1));
        limiter.acquire().await.unwrap();
        let _ = limiter.acquire().await;
    }

    #[tokio::test]
    async fn its_timer_is_used_and_the_clock_believed() {
        let limiter = Limiter::with_clock(Rate::per_second(1_000).burst(1), Cached::new());
        let start = limiter.clock().now();
        for _ in 0..5 {
            limiter.acquire().await.unwrap();
        }
        assert!(limiter.clock().now() - start >= Duration::from_millis(4));
    }

    #[test]
    fn a_wait_may_begin_outside_of_it_and_end_inside() {
        let limiter = Limiter::new(Rate::per_second(1_000).burst(1));
        assert!(limiter.allow());
        let mut wait = Polled::new(limiter.acquire());
        let _ = wait.poll();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(wait.future).unwrap();
    }
}

/// The only way to find out whether a runtime has timers is to use one, so the text is tokio's.
#[cfg(feature = "tokio")]
#[test]
#[should_panic(expected = "timers are disabled. Call `enable_time` on the runtime builder")]
fn a_runtime_without_timers_says_what_is_missing() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let limiter = Limiter::new(Rate::per_hour(1));
    assert!(limiter.allow());
    let _ = runtime
        .expect("a runtime")
        .block_on(limiter.acquire().into_future());
}
