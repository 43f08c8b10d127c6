//! Unusual queries: enormous, twice about one key, repeated, or about damaged values.

mod changing;
mod clocks;
mod large;
mod mixed;
mod raise;

use std::time::Duration;

use tollgate::{Algorithm, core::WindowAlignment};
use tollgate_engine::backend::LimitKind;
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;

use crate::error::StoreError;
use crate::query::{LimitForm, LimitParams, QueryReplies, StoreKind, StoreOp, StoreQuery};
use crate::store::Store;

const NOW: u64 = 1_700_000_000_000_000;

fn numbers(kind: &LimitKind) -> LimitParams {
    let form = LimitForm::new(kind, Duration::from_secs(60)).expect("a limit for the store");
    form.params_at(NOW).expect("it is asked")
}

fn rate(text: &str, algorithm: Algorithm) -> LimitParams {
    let rate = text.parse().expect("a rate");
    numbers(&LimitKind::Rate { rate, algorithm })
}

fn slots(most: u32) -> LimitParams {
    numbers(&LimitKind::Concurrency(most))
}

fn question(numbers: LimitParams, op: StoreOp, cost: u64) -> StoreQuery {
    StoreQuery {
        key: "k".into(),
        op,
        params: numbers,
        cost,
        holder: None,
    }
}

fn held_by(name: &str, numbers: LimitParams, op: StoreOp) -> StoreQuery {
    StoreQuery {
        holder: Some(name.into()),
        ..question(numbers, op, 1)
    }
}

async fn ask(store: &Store, questions: Vec<StoreQuery>) -> QueryReplies {
    let answers = store.ask(questions, Some(NOW)).await;
    answers.expect("the server answers")
}

async fn outcomes(store: &Store, questions: Vec<StoreQuery>) -> Vec<i64> {
    let answers = ask(store, questions).await;
    answers.replies.iter().map(|raw| raw.outcome).collect()
}

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Gcra,
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingCounter,
    Algorithm::SlidingLog,
];

#[tokio::test]
async fn no_cost_is_too_large_to_be_refused() {
    let server = Server::start();
    let store = Store::patient(&server);
    for algorithm in ALGORITHMS {
        server.command(&["FLUSHALL"]);
        let ten = rate("10/s", algorithm);
        for cost in [11, 1 << 53, u64::MAX - 1, u64::MAX] {
            let said = outcomes(&store, vec![question(ten, StoreOp::Decide, cost)]).await;
            assert_eq!(said, [2], "{algorithm:?} {cost}");
        }
        let most = ask(&store, vec![question(ten, StoreOp::AtMost, u64::MAX)]).await;
        assert_eq!((most.replies[0].outcome, most.replies[0].wait), (1, 10));
        let gift = ask(&store, vec![question(ten, StoreOp::Refund, u64::MAX)]).await;
        assert_eq!(gift.replies[0].remaining, 10, "{algorithm:?}");
    }
}

#[tokio::test]
async fn one_key_asked_about_twice_in_a_request_has_room_for_both_or_none() {
    let server = Server::start();
    let store = Store::patient(&server);
    for algorithm in ALGORITHMS {
        server.command(&["FLUSHALL"]);
        let three = rate("3/s", algorithm);
        let both = || vec![question(three, StoreOp::Decide, 1); 2];
        assert_eq!(outcomes(&store, both()).await, [1, 1], "{algorithm:?}");
        assert_eq!(outcomes(&store, both()).await, [1, 0], "{algorithm:?}");
        let one = vec![question(three, StoreOp::Decide, 1)];
        assert_eq!(outcomes(&store, one).await, [1], "nothing was charged");
    }
    let two = |most| {
        vec![
            held_by("a", slots(most), StoreOp::Decide),
            held_by("b", slots(most), StoreOp::Decide),
        ]
    };
    server.command(&["FLUSHALL"]);
    assert_eq!(outcomes(&store, two(1)).await, [1, 2]);
    assert_eq!(outcomes(&store, two(2)).await, [1, 1]);
}

#[tokio::test]
async fn one_key_by_two_rates_in_a_request_is_charged_in_tokens_of_each() {
    let server = Server::start();
    let store = Store::patient(&server);
    // Their tokens are of 100,000 and of 1,000 units.
    let [slow, fast] =
        ["10/s burst 100", "1000/s burst 100"].map(|text| rate(text, Algorithm::Gcra));
    for both in [[slow, fast], [fast, slow]] {
        server.command(&["FLUSHALL"]);
        let questions = both.map(|numbers| question(numbers, StoreOp::Decide, 1));
        let answers = ask(&store, questions.to_vec()).await;
        let left: Vec<_> = answers.replies.iter().map(|raw| raw.remaining).collect();
        assert_eq!(left, [98, 98]);
    }
}

#[tokio::test]
async fn a_slot_that_is_asked_for_once_more_is_had_once() {
    let server = Server::start();
    let store = Store::patient(&server);
    let ask = |name| outcomes(&store, vec![held_by(name, slots(2), StoreOp::Decide)]);
    assert_eq!(ask("a").await, [1]);
    assert_eq!(ask("b").await, [1]);
    // No answer came, and the query is repeated.
    assert_eq!(ask("b").await, [1]);
    assert_eq!(ask("c").await, [0]);
    let release = vec![held_by("b", slots(2), StoreOp::Release)];
    outcomes(&store, release).await;
    assert_eq!(ask("c").await, [1]);
    assert_eq!(ask("b").await, [0]);
}

#[tokio::test]
async fn a_foreign_key_spoils_no_call() {
    let server = Server::start();
    let store = Store::patient(&server);
    let ours = |numbers, op| StoreQuery {
        key: "ours".into(),
        ..held_by("a", numbers, op)
    };
    let mut cases: Vec<_> = [StoreOp::Renew, StoreOp::Release, StoreOp::Decide]
        .map(|op| (slots(2), op))
        .into();
    for op in [
        StoreOp::Decide,
        StoreOp::AtMost,
        StoreOp::Refund,
        StoreOp::Reset,
        StoreOp::RaiseUsage(7),
    ] {
        cases.extend(ALGORITHMS.map(|algorithm| (rate("10/s", algorithm), op)));
    }
    let foreign = Err(StoreError::ForeignKey {
        key: "k".to_owned(),
    });
    for (numbers, op) in cases {
        server.command(&["FLUSHALL"]);
        server.command(&["RPUSH", "k", "something else"]);
        let alone = store.ask(vec![held_by("a", numbers, op)], Some(NOW));
        let other = store.ask(vec![ours(numbers, StoreOp::Decide)], Some(NOW));
        let (alone, other) = tokio::join!(alone, other);
        assert_eq!(alone, foreign, "{op:?}");
        assert_eq!(other.expect("an answer").replies[0].outcome, 1, "{op:?}");
        // All or none: the other queries of the request aren't charged.
        let left = async || {
            ask(&store, vec![ours(numbers, StoreOp::Decide)])
                .await
                .replies[0]
                .remaining
        };
        let before = left().await;
        let both = [
            ours(numbers, StoreOp::Decide),
            held_by("a", numbers, StoreOp::Decide),
        ];
        assert_eq!(store.ask(both.to_vec(), Some(NOW)).await, foreign);
        let taken = if numbers.kind == StoreKind::Concurrency {
            0
        } else {
            1
        };
        assert_eq!(left().await, before - taken, "{op:?}");
        assert_eq!(server.command(&["LRANGE", "k", "0", "-1"]).items().len(), 1);
    }
}

#[tokio::test]
async fn what_is_given_back_is_never_more_than_if_it_had_not_been_charged() {
    let server = Server::start();
    let store = Store::patient(&server);
    let quota = |text: &str| LimitKind::Quota(text.parse().expect("a quota"));
    let mut kinds = vec![
        quota("100/hour"),
        LimitKind::Quota(
            tollgate::quota::Quota::rolling(100, Duration::from_secs(1)).expect("a period"),
        ),
    ];
    // As in process, a window that a charge opened stays where it began after the charge is refunded. It ends
    // sooner than one that the next hit would have opened, and each admits its count and no more.
    let stays =
        |algorithm: &Algorithm| *algorithm != Algorithm::FixedWindow(WindowAlignment::FirstHit);
    kinds.extend(ALGORITHMS.into_iter().filter(stays).map(|algorithm| {
        let rate = "100/s".parse().expect("a rate");
        LimitKind::Rate { rate, algorithm }
    }));
    let mut random = Random::new(5);
    for (kind, round) in kinds
        .iter()
        .flat_map(|kind| (0..60).map(move |round| (kind, round)))
    {
        let numbers = numbers(kind);
        let ask = async |key: &str, op, cost, at| {
            let asked = StoreQuery {
                key: format!("{key} {round} {kind:?}").into(),
                ..question(numbers, op, cost)
            };
            store
                .ask(vec![asked], Some(at))
                .await
                .expect("an answer")
                .replies[0]
        };
        let mut now = NOW + random.below(1_000_000);
        let steps = 2 + random.below(12);
        let (charged, cost) = (random.below(steps), 1 + random.below(20));
        let given = charged + random.below(steps - charged);
        let mut since = 0;
        for step in 0..steps {
            now += random.below(200_000);
            if step == charged {
                since = now;
                ask("charged", StoreOp::Decide, cost, now).await;
            }
            let other = random.below(4);
            ask("charged", StoreOp::Decide, other, now).await;
            ask("not", StoreOp::Decide, other, now).await;
            now += random.below(2) * random.below(200_000);
            if step == given {
                ask("charged", StoreOp::RefundCharge(since), cost, now).await;
            }
        }
        for _ in 0..6 {
            let left = ask("charged", StoreOp::Decide, 0, now).await.remaining;
            let most = ask("not", StoreOp::Decide, 0, now).await.remaining;
            assert!(left <= most, "{kind:?} {round}: {left} of {most} at {now}");
            now += random.below(300_000);
        }
    }
}

#[tokio::test]
async fn quotas_equal_those_in_memory_whatever_the_clock_does() {
    let server = Server::start();
    let store = Store::patient(&server);
    let rolling = tollgate::quota::Quota::rolling(40, Duration::from_secs(60)).expect("a period");
    let by_calendar = "40/hour".parse().expect("a quota");
    for (quota, seed) in [(rolling, 3), (by_calendar, 4)] {
        let limiter = tollgate::QuotaLimiter::builder(quota.clone(), 1_000_000)
            .clock(tollgate::clock::Manual::new())
            .build()
            .unwrap();
        let form = LimitForm::new(&LimitKind::Quota(quota.clone()), Duration::ZERO);
        let form = form.expect("a limit for the store");
        let mut random = Random::new(seed);
        let mut now = NOW;
        for step in 0..3_000 {
            let reach = 1 << random.below(31);
            match random.below(8) {
                0 => now -= random.below(reach.min(20_000_000)),
                _ => now += random.below(reach),
            }
            let cost = random.below(12);
            let numbers = form.params_at(now).expect("asked");
            let asked = StoreQuery {
                key: format!("{quota}").into(),
                ..question(numbers, StoreOp::Decide, cost)
            };
            let answers = store.ask(vec![asked], Some(now)).await.expect("an answer");
            let seen = answers.replies[0].decision(&numbers);
            let expected = limiter.check_at(tollgate::Timestamp::from_micros(now), "k", cost);
            assert_eq!(seen, expected, "{quota}: {cost} at {now} (step {step})");
        }
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_blocks_nobody_for_longer_than_a_period() {
    let server = Server::start();
    let store = Store::patient(&server);
    let hour = 3_600_000_000;
    let rolling = tollgate::quota::Quota::rolling(5, Duration::from_secs(60)).expect("a period");
    let mut kinds = vec![
        LimitKind::Quota(rolling),
        LimitKind::Quota("5/hour".parse().expect("a quota")),
    ];
    kinds.extend(ALGORITHMS.map(|algorithm| LimitKind::Rate {
        rate: "5/minute".parse().expect("a rate"),
        algorithm,
    }));
    for kind in kinds {
        let form = LimitForm::new(&kind, Duration::ZERO).expect("a limit for the store");
        let ask = async |at: u64| {
            let asked = StoreQuery {
                key: format!("{kind:?}").into(),
                ..question(form.params_at(at).expect("asked"), StoreOp::Decide, 5)
            };
            let answers = store.ask(vec![asked], Some(at)).await;
            answers.expect("an answer").replies[0]
        };
        assert_eq!(ask(NOW).await.outcome, 1, "{kind:?}");
        let back = NOW - 10 * hour;
        let refused = ask(back).await;
        assert_eq!(refused.outcome, 0, "{kind:?}");
        let wait = u64::try_from(refused.wait).expect("a wait");
        assert!(wait <= 2 * hour, "{kind:?}: {wait}");
        // Requests in between don't begin it anew.
        assert_eq!(ask(back + wait / 2).await.outcome, 0, "{kind:?}");
        assert_eq!(ask(back + wait).await.outcome, 1, "{kind:?}");
    }
}
