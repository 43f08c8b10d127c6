//! What a server says is done, and no more than that.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Tokio};
use tollgate::{Algorithm, Rate};
use tollgate_http::HeaderDialect;
use tollgate_http::outgoing::{HostPacer, PaceError};

use crate::kit::{EPOCH, Server, WINDOW, ask, pacer, tell, time_to_pass};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_host_that_refuses_is_left_alone_and_others_are_not() {
    let rows = [
        (429, vec![("retry-after", "2".to_owned())], 2_000),
        (503, vec![("retry-after", "2".to_owned())], 2_000),
        (503, vec![], 0),
        (200, vec![("retry-after", "9".to_owned())], 0),
        (429, vec![("ratelimit", "\"a\";r=0;t=7".to_owned())], 7_000),
        (200, vec![("ratelimit", "\"a\";r=0;t=7".to_owned())], 7_000),
        (
            429,
            vec![
                ("x-ratelimit-remaining", "0".to_owned()),
                ("x-ratelimit-reset", (EPOCH + 20).to_string()),
            ],
            20_000,
        ),
        // It doesn't say for how long, or rounds down.
        (429, vec![], 1_000),
        (429, vec![("retry-after", "0".to_owned())], 1_000),
    ];
    for (status, fields, expect) in rows {
        let pacer = pacer(HostPacer::builder(Rate::per_second(1_000)));
        let call = pacer.acquire("one").await.expect("a place");
        tell(&pacer, &call, status, &fields);
        assert_eq!(time_to_pass(&pacer, "other").await, Duration::ZERO);
        let time = time_to_pass(&pacer, "one").await;
        // The timer ticks once a millisecond.
        let late = time.saturating_sub(Duration::from_millis(expect));
        assert!(
            late <= Duration::from_millis(1),
            "{status} {fields:?}: {time:?}"
        );
        assert!(
            time >= Duration::from_millis(expect),
            "{status} {fields:?}: {time:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_goes_on_refusing_is_asked_ever_more_rarely() {
    let pacer = pacer(HostPacer::builder(Rate::per_second(1_000)).max_stop(5 * SECOND));
    let mut waits = Vec::new();
    for _ in 0..5 {
        let clock = Tokio::new();
        let before = clock.now();
        let call = pacer.acquire("one").await.expect("a place");
        waits.push((clock.now() - before).as_secs());
        tell(&pacer, &call, 429, &[]);
    }
    assert_eq!(waits, [0, 1, 2, 4, 5]);
}

/// A single client slows down before it is denied, whatever the dialect and the kind of limit.
#[tokio::test(start_paused = true)]
async fn who_is_told_what_is_left_is_never_refused() {
    for dialect in HeaderDialect::ALL {
        for (algorithm, rate) in [
            (Algorithm::Gcra, Rate::per_second(10).burst(20)),
            (Algorithm::Gcra, Rate::per_minute(30).burst(10)),
            (WINDOW, Rate::new(50, 10 * SECOND)),
        ] {
            let pacer = pacer(HostPacer::builder(Rate::per_second(1_000)).max_wait(600 * SECOND));
            let server = Server::new(algorithm, rate, &[dialect]);
            ask(&pacer, &server, 200, Duration::ZERO).await;
            assert_eq!(server.counts(), (200, 0), "{dialect} {algorithm:?}");
        }
    }
}

/// Pacing barely lowers the throughput at a server.
#[tokio::test(start_paused = true)]
async fn whoever_slows_down_still_gets_what_there_is() {
    for (algorithm, rate) in [
        (Algorithm::Gcra, Rate::per_second(10).burst(20)),
        (WINDOW, Rate::new(50, 10 * SECOND)),
    ] {
        let pacer = pacer(HostPacer::builder(Rate::per_second(1_000)).max_wait(600 * SECOND));
        let server = Server::new(algorithm, rate, &[HeaderDialect::Draft8]);
        let clock = Tokio::new();
        let before = clock.now();
        ask(&pacer, &server, 300, Duration::ZERO).await;
        let ideal = Duration::from_secs_f64(300.0 / rate.as_per_second());
        let time = clock.now() - before;
        assert!(
            time < ideal * 3 / 2,
            "{algorithm:?}: {time:?} in place of {ideal:?}"
        );
    }
}

/// A client that learns by denials alone is denied, but rarely; and many concurrent clients don't all return at one
/// moment.
#[tokio::test(start_paused = true)]
async fn refusals_a_served_request_stay_few() {
    for (dialects, most) in [
        (&[] as &[HeaderDialect], 80),
        (&[HeaderDialect::Draft8], 60),
    ] {
        let server = Server::new(Algorithm::Gcra, Rate::per_second(10).burst(20), dialects);
        let pacer = pacer(HostPacer::builder(Rate::per_second(1_000)).max_wait(600 * SECOND));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (pacer, server) = (Arc::clone(&pacer), Arc::clone(&server));
                tokio::spawn(async move {
                    ask(&pacer, &server, 4, Duration::from_millis(20)).await;
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it ends");
        }
        let (served, refused) = server.counts();
        println!("{dialects:?}: {refused} refusals of {served} served");
        assert_eq!(served, 200);
        assert!(refused <= most, "{dialects:?}: {refused} refused");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_take_too_long_fails_at_once() {
    let pacer = pacer(HostPacer::builder(Rate::per_second(1).burst(1)).max_wait(2 * SECOND));
    let call = pacer.acquire("one").await.expect("a place");
    let clock = Tokio::new();
    let before = clock.now();
    let own = pacer
        .acquire_within("one", SECOND / 2)
        .await
        .expect_err("a second");
    assert_eq!(own.wait(), Some(SECOND));
    tell(&pacer, &call, 429, &[("retry-after", "60".to_owned())]);
    let stalled = pacer.acquire("one").await.expect_err("a minute");
    assert_eq!(
        stalled.to_string(),
        "one may be asked in 60s, and a call waits for 2s at most"
    );
    assert_eq!(clock.now(), before, "nobody waited");
    assert_eq!(pacer.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let pacer = pacer(HostPacer::builder(Rate::per_second(1).burst(1)).max_waiters(2));
    pacer.acquire("one").await.expect("a place");
    let wait = || {
        let pacer = Arc::clone(&pacer);
        tokio::spawn(async move { pacer.acquire("one").await.map(|_| ()) })
    };
    let (first, second) = (wait(), wait());
    tokio::task::yield_now().await;
    assert_eq!(pacer.waiting(), 2);
    let third = wait().await.expect("it ends");
    assert_eq!(
        third,
        Err(PaceError::QueueFull {
            host: "one".into(),
            waiting: 2
        })
    );
    assert_eq!(first.await.expect("it ends"), Ok(()));
    assert_eq!(second.await.expect("it ends"), Ok(()));
}
