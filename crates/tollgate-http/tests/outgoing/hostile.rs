//! Servers that want a client to stop for ever, to run, or to remember too much.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::{Clock, Tokio};
use tollgate_http::outgoing::HostPacer;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate_http::outgoing::PaceError;

use crate::kit::{EPOCH, pacer, tell, time_to_pass};

const LONGEST: Duration = Duration::from_secs(30);

fn hostile() -> Vec<(u16, Vec<(&'static str, String)>)> {
    let huge = "9".repeat(5_000);
    let text = |text: &str| text.to_owned();
    let item = format!("\"a\";r=0;t={huge}");
    vec![
        (429, vec![("retry-after", huge.clone())]),
        (
            503,
            vec![("retry-after", text("Fri, 31 Dec 9999 23:59:59 GMT"))],
        ),
        (
            429,
            vec![("retry-after", text("-1")), ("ratelimit", item.clone())],
        ),
        (200, vec![("ratelimit", item.clone())]),
        (200, vec![("ratelimit", vec![item; 5_000].join(", "))]),
        (200, vec![("ratelimit", format!("\"a\";r=1;t={huge}"))]),
        (
            200,
            vec![(
                "ratelimit",
                format!("limit={huge}, remaining=0, reset={huge}"),
            )],
        ),
        (
            429,
            vec![
                ("retry-after", text("1")),
                ("ratelimit", text("\"a\";r=0;t=1")),
                ("ratelimit-policy", format!("\"a\";q=1;w={huge}")),
            ],
        ),
        (
            200,
            vec![
                ("x-ratelimit-remaining", text("0")),
                ("x-ratelimit-reset", (EPOCH * 2).to_string()),
            ],
        ),
        (
            200,
            vec![
                ("x-ratelimit-remaining", text("0")),
                ("x-ratelimit-reset", (EPOCH - 1_000).to_string()),
            ],
        ),
        (429, vec![("retry-after", text("\u{0}garbage\u{7f}"))]),
        (
            200,
            vec![
                ("date", text("x")),
                ("ratelimit", text("\"\";r=;t=,=;=,\"\\")),
            ],
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn nobody_stops_a_client_for_longer_than_the_maximum() {
    for (status, fields) in hostile() {
        let builder = HostPacer::builder(Rate::per_second(1_000)).max_stop(LONGEST);
        let pacer = pacer(builder.max_wait(3 * LONGEST));
        let call = pacer.acquire("host").await.expect("a place");
        tell(&pacer, &call, status, &fields);
        for turn in 1..=2 {
            let time = time_to_pass(&pacer, "host").await;
            let most = LONGEST + Duration::from_millis(1);
            assert!(
                time <= most,
                "turn {turn} after {time:?}: {status} {:.99?}",
                fields
            );
        }
    }
}

/// A server that keeps calls waiting, and ends one with a denial each time before the pause is over.
#[tokio::test(start_paused = true)]
async fn late_refusals_one_by_one_make_a_stop_no_longer() {
    let builder = HostPacer::builder(Rate::per_second(1_000)).max_stop(LONGEST);
    let pacer = pacer(builder.max_wait(100 * LONGEST));
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(pacer.acquire("host").await.expect("a place"));
    }
    let refusal = [("retry-after", "9999".to_owned())];
    let waiting = {
        let pacer = Arc::clone(&pacer);
        tell(&pacer, &calls[0], 429, &refusal);
        tokio::spawn(async move { time_to_pass(&pacer, "host").await })
    };
    for call in &calls[1..] {
        tokio::time::sleep(LONGEST - Duration::from_secs(1)).await;
        tell(&pacer, call, 429, &refusal);
    }
    let time = waiting.await.expect("it ends");
    assert!(time <= LONGEST + Duration::from_millis(1), "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_makes_a_client_faster_than_its_own_rate() {
    let builder = HostPacer::builder(Rate::per_second(10).burst(5)).max_stop(LONGEST);
    let pacer = pacer(builder.max_wait(20 * LONGEST));
    let generous = vec![
        ("ratelimit", "\"a\";r=999999999999999;t=0".to_owned()),
        ("ratelimit-policy", "\"a\";q=999999999999999;w=1".to_owned()),
    ];
    let refusal = vec![("retry-after", "20".to_owned())];
    let clock = Arc::new(Tokio::new());
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            let (pacer, clock) = (Arc::clone(&pacer), Arc::clone(&clock));
            let (generous, refusal) = (generous.clone(), refusal.clone());
            tokio::spawn(async move {
                let call = pacer.acquire("host").await.expect("a place");
                let at = clock.now();
                // Those who stood in line meanwhile mustn't come out all at once.
                let (status, fields) = if number == 30 {
                    (429, refusal)
                } else {
                    (200, generous)
                };
                tell(&pacer, &call, status, &fields);
                at
            })
        })
        .collect();
    let begin = clock.now();
    let mut times = Vec::new();
    for task in tasks {
        times.push(task.await.expect("it ends") - begin);
    }
    times.sort();
    let second = Duration::from_secs(1);
    for (first, at) in times.iter().enumerate() {
        let window = times[first..]
            .iter()
            .take_while(|time| **time < *at + second);
        let count = window.count();
        assert!(count <= 15, "{count} in the second from {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_hosts_are_remembered_than_may_be() {
    let pacer = pacer(HostPacer::builder(Rate::per_second(1_000)).max_hosts(16));
    let call = pacer.acquire("steady").await.expect("a place");
    let minutes = |minutes: u64| vec![("retry-after", (60 * minutes).to_string())];
    tell(&pacer, &call, 429, &minutes(14));
    for number in 0..2_000 {
        let host = format!("host{number}.example");
        let call = pacer.acquire(&host).await.expect("a place");
        tell(&pacer, &call, 429, &minutes(1));
        assert!(pacer.host_count() <= 16, "{} hosts", pacer.host_count());
    }
    let stalled = pacer.acquire("steady").await.expect_err("it is remembered");
    let wait = stalled.wait().expect("it is too late");
    assert!(wait > Duration::from_secs(13 * 60), "{wait:?}");
}

/// A value of a field, from what is well formed to any bytes.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[0-9]{1,25}".prop_map(String::into_bytes),
        "-?[0-9]{1,4}(\\.[0-9]{1,3})?".prop_map(String::into_bytes),
        "(\"?[a-z]{0,3}\"?(;[rtqw]=-?[0-9]{0,20}){0,4},? ?){0,5}".prop_map(String::into_bytes),
        "(limit|remaining|reset)=[0-9]{1,5}(, (limit|remaining|reset)=[0-9]{1,20}){0,3}"
            .prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    /// Whatever servers answer, nobody waits for longer than the maximum for the first call after it.
    #[test]
    fn no_answers_at_all_stop_a_client_for_longer(
        answers in prop::collection::vec(
            (prop::sample::select(vec![200_u16, 429, 503]), prop::collection::vec((0..9_usize, value()), 0..5)),
            1..8,
        ),
    ) {
        const FIELDS: [&str; 9] = [
            "retry-after", "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining",
            "ratelimit-reset", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
        ];
        let clock = Manual::new();
        let builder = HostPacer::builder(Rate::per_second(1_000)).max_stop(LONGEST);
        let pacer = builder.build_on(clock.clone(), clock.clone()).expect("a rate");
        let pass = || {
            let looked = std::pin::pin!(pacer.acquire_within("host", Duration::ZERO))
                .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            match looked {
                std::task::Poll::Ready(passed) => passed,
                std::task::Poll::Pending => panic!("a call without patience never waits"),
            }
        };
        for (status, fields) in answers {
            let call = match pass() {
                Ok(call) => call,
                Err(PaceError::WaitTooLong { wait, .. }) => {
                    prop_assert!(wait <= LONGEST, "{wait:?}");
                    // A stop, and the pace after it.
                    clock.advance(wait);
                    match pass() {
                        Ok(call) => call,
                        Err(stalled) => panic!("it waited as it was told: {stalled}"),
                    }
                }
                Err(other) => panic!("{other}"),
            };
            pacer.record_response(&call, status, |name| {
                let own = fields.iter().filter(move |(field, _)| FIELDS[*field] == name);
                own.map(|(_, value)| &**value)
            });
        }
    }
}
