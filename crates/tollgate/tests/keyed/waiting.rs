//! Waiting by key on paused time: first come first served, each key for itself.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::Tokio;
use tollgate::{Clock, KeyedLimiter, Rate, RateDenied, Timestamp};

fn paused(rate: Rate) -> KeyedLimiter<Tokio> {
    KeyedLimiter::builder(rate, 100)
        .max_waiters(50)
        .clock(Tokio::new())
        .build()
        .expect("a rate that fits")
}

#[tokio::test(start_paused = true)]
async fn waiters_of_each_key_pass_in_the_order_in_which_they_came() {
    let limiter = Arc::new(paused(Rate::every(Duration::from_millis(10))));
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..40u64)
        .map(|number| {
            let (limiter, order) = (Arc::clone(&limiter), Arc::clone(&order));
            tokio::spawn(async move {
                limiter.key(&(number % 2)).acquire().await.unwrap();
                order.lock().unwrap().push((number, limiter.clock().now()));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    for parity in 0..2 {
        let own = order.iter().filter(|(number, _)| number % 2 == parity);
        for (turn, (number, at)) in (0u64..).zip(own) {
            assert_eq!(*number, 2 * turn + parity);
            assert_eq!(*at, Timestamp::from_millis(10 * turn));
        }
    }
    assert_eq!(limiter.waiters(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_gives_its_place_back() {
    let limiter = paused(Rate::every(Duration::from_millis(100)));
    limiter.key("key").acquire().await.unwrap();
    let short = tokio::time::timeout(
        Duration::from_millis(10),
        limiter.key("key").acquire().into_future(),
    );
    assert!(short.await.is_err());
    assert_eq!(limiter.waiters(), 0);
    assert_eq!(
        limiter.key("key").acquire().await,
        Ok(Duration::from_millis(90)),
        "as if nobody had waited"
    );
}

#[tokio::test(start_paused = true)]
async fn all_keys_together_may_have_so_many_waiters() {
    let limiter = Arc::new(paused(Rate::every(Duration::from_millis(100))));
    let tasks: Vec<_> = (0..100u64)
        .map(|number| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.key(&(number % 50)).acquire().await })
        })
        .collect();
    while limiter.waiters() < 50 {
        tokio::task::yield_now().await;
    }
    let refused = limiter.key(&0u64).acquire().await.unwrap_err();
    assert!(matches!(refused, RateDenied::QueueFull(_)), "{refused}");
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(limiter.waiters(), 0);
}
