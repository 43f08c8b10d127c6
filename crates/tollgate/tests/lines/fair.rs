//! A fair queue under tasks and threads: its timekeeper, cancellation, deadlines, bounds.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tollgate::clock::{Manual, Monotonic, Tokio};
use tollgate::{Clock, FairLimiter, Lanes, Rate, RateDenied, Timestamp, fair};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One in 10 ms, one at a time.
fn every_ten() -> fair::Builder {
    FairLimiter::builder(Rate::every(millis(10)))
}

fn on_tokio() -> Arc<FairLimiter<Tokio>> {
    let limiter = every_ten().clock(Tokio::new()).build();
    Arc::new(limiter.expect("a rate that fits"))
}

#[tokio::test(start_paused = true)]
async fn a_quiet_client_is_served_beside_a_loud_one() {
    let limiter = on_tokio();
    let loud: Vec<_> = (0..100)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                loop {
                    limiter.acquire(&0).await.unwrap();
                }
            })
        })
        .collect();
    let start = limiter.clock().now();
    for _ in 0..50 {
        let waited = limiter.acquire(&1).await.unwrap();
        assert!(waited <= millis(20), "waited {waited:?}");
        tokio::time::sleep(millis(100)).await;
    }
    assert!(limiter.clock().now() - start <= millis(50 * 121));
    assert_eq!(limiter.clients(), 1);
    for task in loud {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!((limiter.clients(), limiter.waiters()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_woken_in_vain() {
    let limiter = on_tokio();
    let polls = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..1_000)
        .map(|number| {
            let (limiter, polls) = (Arc::clone(&limiter), Arc::clone(&polls));
            tokio::spawn(async move {
                let client = number % 7;
                let mut turn = pin!(limiter.acquire(&client).into_future());
                poll_fn(|context| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    turn.as_mut().poll(context)
                })
                .await
                .unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(limiter.clock().now(), Timestamp::from_millis(9_990));
    // When it comes, when it becomes the one who keeps the time, and when its turn comes.
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= 3 * 1_000, "{polls} polls of 1,000 waiters");
}

#[tokio::test(start_paused = true)]
async fn when_the_one_who_keeps_the_time_goes_the_next_takes_over() {
    let limiter = on_tokio();
    assert!(limiter.allow(&0));
    let wait = |client: u32| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            limiter.acquire(&client).await.unwrap();
            limiter.clock().now()
        })
    };
    let tasks = [wait(0), wait(1), wait(2)];
    tokio::time::sleep(millis(5)).await;
    assert_eq!(limiter.waiters(), 3);
    let [first, second, third] = tasks;
    first.abort();
    assert!(first.await.is_err());
    // It cost nothing: the second passes when the first would have.
    assert_eq!(second.await.unwrap(), Timestamp::from_millis(10));
    assert_eq!(third.await.unwrap(), Timestamp::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn one_who_goes_without_noticing_its_turn_hands_it_on() {
    let limiter = on_tokio();
    assert!(limiter.allow(&0));
    let mut second = pin!(limiter.acquire(&1).into_future());
    {
        let mut first = pin!(limiter.acquire(&0).into_future());
        poll_fn(|context| {
            assert!(first.as_mut().poll(context).is_pending());
            assert!(second.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::time::advance(millis(10)).await;
        assert!(!limiter.allow(&2), "the turn is the first one's");
    }
    assert_eq!(second.await, Ok(millis(10)));
    assert!(!limiter.allow(&2));
}

/// The one who is next keeps the time, so one that is kept aside holds up the others; but whoever
/// comes to the line moves it on, and no token is lost.
#[tokio::test(start_paused = true)]
async fn one_that_is_kept_aside_holds_up_others_until_anybody_comes() {
    let limiter = on_tokio();
    assert!(limiter.allow(&0));
    let mut aside = pin!(limiter.acquire(&0).into_future());
    let mut ignore = Context::from_waker(Waker::noop());
    assert!(aside.as_mut().poll(&mut ignore).is_pending());
    let second = limiter.acquire(&1).timeout(millis(50)).await;
    // Its own deadline makes it look, and its turn had come by then.
    assert!(second.is_ok_and(|waited| waited > millis(49) && waited <= millis(51)));
    let third = limiter.acquire(&2).await;
    assert_eq!(third, Ok(Duration::ZERO));
    assert!(aside.await.is_ok());
}

/// Owns a future that waits in line, as the waker of a task may.
struct Owner {
    _owned: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_owns_a_place_in_line_may_be_dropped() {
    let limiter: &'static FairLimiter<Tokio> =
        Box::leak(Box::new(every_ten().clock(Tokio::new()).build().unwrap()));
    assert!(limiter.allow(&0));
    let mut owned = Box::pin(async { limiter.acquire(&1).await.map_or((), |_| ()) });
    let mut other = pin!(limiter.acquire(&2).into_future());
    let mut ignore = Context::from_waker(Waker::noop());
    assert!(owned.as_mut().poll(&mut ignore).is_pending());
    let owner = Waker::from(Arc::new(Owner {
        _owned: Mutex::new(owned),
    }));
    assert!(
        other
            .as_mut()
            .poll(&mut Context::from_waker(&owner))
            .is_pending()
    );
    drop(owner);
    assert_eq!(limiter.waiters(), 2);
    // Here the waker is replaced, and the place that it owns goes with it.
    assert!(other.as_mut().poll(&mut ignore).is_pending());
    assert_eq!(limiter.waiters(), 1);
    assert_eq!(other.await, Ok(millis(10)));
}

#[tokio::test(start_paused = true)]
async fn one_who_goes_when_nobody_waits_gives_back() {
    let limiter = on_tokio();
    assert!(limiter.allow(&0));
    {
        let mut turn = pin!(limiter.acquire(&0).into_future());
        poll_fn(|context| {
            assert!(turn.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::time::advance(millis(10)).await;
        assert!(!limiter.allow(&1));
    }
    assert!(limiter.allow(&1));
    assert_eq!(limiter.waiters(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_fails_at_once_or_when_it_passes() {
    let limiter = on_tokio();
    assert!(limiter.allow(&0));
    let hasty = limiter.acquire(&0).timeout(millis(9)).await.unwrap_err();
    assert_eq!(
        hasty.to_string(),
        "rate limit: the wait of 10ms is longer than the deadline allows"
    );
    let late = limiter.acquire(&0).deadline(Timestamp::ZERO);
    tokio::time::advance(millis(1)).await;
    assert_eq!(
        late.await.unwrap_err().to_string(),
        "rate limit: the deadline has passed already"
    );
    // Heavier claims come after it was let in, and it is not next when its time is over.
    let waits = |client: u32, weight: u32| {
        let limiter = Arc::clone(&limiter);
        async move { limiter.acquire(&client).weight(weight).await }
    };
    let hasty = {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            let result = limiter.acquire(&0).timeout(millis(12)).await;
            (result, limiter.clock().now())
        })
    };
    tokio::task::yield_now().await;
    let heavy: Vec<_> = (1..4)
        .map(|client| tokio::spawn(waits(client, 10)))
        .collect();
    let (result, at) = hasty.await.unwrap();
    assert!(
        matches!(result, Err(RateDenied::DeadlineExceeded(_))),
        "{result:?}"
    );
    // tokio's timer ticks once a millisecond.
    assert!(at - Timestamp::from_millis(13) <= millis(1), "{at}");
    for heavy in heavy {
        heavy.await.unwrap().unwrap();
    }
    assert_eq!(limiter.clock().now(), Timestamp::from_millis(30));
}

#[tokio::test(start_paused = true)]
async fn lines_are_bounded_and_say_so() {
    let limiter = every_ten()
        .max_waiters(3)
        .max_waiters_per_client(2)
        .clock(Tokio::new())
        .build()
        .unwrap();
    let limiter = Arc::new(limiter);
    assert!(limiter.allow(&0));
    let wait = |client: u32| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { limiter.acquire(&client).await })
    };
    let tasks = [wait(0), wait(0), wait(0), wait(1), wait(1)];
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap().map_err(|refused| refused.to_string()));
    }
    let full = |wait: &str| {
        let full = "rate limit: too many are waiting already; retry after ";
        Err(format!("{full}{wait}"))
    };
    assert_eq!(results[2], full("10ms"), "the client's line is full");
    assert_eq!(results[4], full("10ms"), "the whole line is full");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
}

#[test]
fn a_shed_request_says_so() {
    let limiter = every_ten().build().unwrap();
    let decision = limiter.check(&0);
    assert_eq!(
        RateDenied::Dropped(decision).to_string(),
        "rate limit: shed from a line that stood for too long; retry after 0ns"
    );
}

#[test]
fn threads_wait_on_a_manual_clock() {
    let clock = Manual::new();
    let limiter = Arc::new(every_ten().clock(clock.clone()).build().unwrap());
    assert!(limiter.allow(&0));
    let start = |client: u32, waiting: usize| {
        let line = Arc::clone(&limiter);
        let waiter = thread::spawn(move || line.acquire(&client).wait_blocking());
        while limiter.waiters() < waiting {
            thread::yield_now();
        }
        waiter
    };
    let waiters: Vec<_> = (0..4)
        .map(|client| start(client, client as usize + 1))
        .collect();
    clock.advance(millis(40));
    for waiter in waiters {
        // Whoever looks at 40 ms learns that its turn came before.
        assert_eq!(waiter.join().unwrap(), Ok(millis(40)));
    }
    assert_eq!(limiter.waiters(), 0);
    assert!(!limiter.allow(&0));
}

#[test]
fn threads_and_real_time_pass_no_more_than_the_bound_and_all_of_it() {
    const EACH: u64 = 300;
    let rate = Rate::per_second(20_000).burst(20);
    let limiter = FairLimiter::builder(rate).build().unwrap();
    let clock = Monotonic::new();
    let start = clock.now();
    thread::scope(|scope| {
        for client in 0..4u32 {
            let limiter = &limiter;
            scope.spawn(move || {
                for _ in 0..EACH {
                    limiter.acquire(&client).wait_blocking().unwrap();
                }
            });
        }
    });
    let least = Duration::from_nanos((4 * EACH - 20) * 50_000);
    assert!(clock.now() - start >= least);
    assert_eq!((limiter.waiters(), limiter.clients()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_on_threads_come_and_go_and_nobody_is_forgotten() {
    let rate = Rate::per_second(50_000).burst(50);
    let limiter = Arc::new(FairLimiter::builder(rate).build().unwrap());
    let tasks: Vec<_> = (0..600u32)
        .map(|number| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let client = number % 10;
                let turn = limiter
                    .acquire(&client)
                    .timeout(millis(u64::from(number % 5)));
                // Some give up by dropping the future, some by their deadline, and most pass.
                let _ = tokio::time::timeout(millis(3), turn.into_future()).await;
                limiter.acquire(&client).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!((limiter.waiters(), limiter.clients()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn lanes_are_awaited_too() {
    let lanes = Lanes::builder(Rate::per_second(100).burst(10))
        .lane("interactive", 60)
        .lane("batch", 40)
        .clock(Tokio::new())
        .build()
        .unwrap();
    let lanes = Arc::new(lanes);
    let counts = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let mut tasks = Vec::new();
    for (name, count) in ["interactive", "batch"].into_iter().zip(&counts) {
        for _ in 0..5 {
            let (lanes, count) = (Arc::clone(&lanes), Arc::clone(count));
            tasks.push(tokio::spawn(async move {
                loop {
                    lanes.lane(name).unwrap().acquire().await.unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let counts = counts.map(|count| count.load(Ordering::Relaxed));
    assert!(
        counts[0].abs_diff(606) <= 2 && counts[1].abs_diff(404) <= 2,
        "{counts:?}"
    );
    for task in tasks {
        task.abort();
        assert!(task.await.is_err());
    }
    assert_eq!(lanes.waiters(), 0);
}
