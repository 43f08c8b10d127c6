//! Questions that are odd: enormous, about one key twice, asked once more, or about what someone damaged.

use std::time::Duration;

use tollgate::Algorithm;
use tollgate_engine::backend::LimitKind;
use tollgate_testkit::redis::Server;

use crate::question::{Answers, Form, Numbers, Op, Question};
use crate::store::Store;

const NOW: u64 = 1_700_000_000_000_000;

fn store(server: &Server) -> Store {
    let address = server.url().parse().expect("a server's own URL");
    Store::new(&address, Duration::from_secs(10)).expect("a runtime")
}

fn numbers(kind: &LimitKind) -> Numbers {
    let form = Form::new(kind, Duration::from_secs(60)).expect("a limit for the store");
    form.numbers_at(NOW).expect("it is asked")
}

fn rate(text: &str, algorithm: Algorithm) -> Numbers {
    let rate = text.parse().expect("a rate");
    numbers(&LimitKind::Rate { rate, algorithm })
}

fn slots(most: u32) -> Numbers {
    numbers(&LimitKind::Concurrency(most))
}

fn question(numbers: Numbers, op: Op, cost: u64) -> Question {
    Question {
        key: "k".into(),
        op,
        numbers,
        cost,
        holder: None,
    }
}

fn held_by(name: &str, numbers: Numbers, op: Op) -> Question {
    Question {
        holder: Some(name.into()),
        ..question(numbers, op, 1)
    }
}

async fn ask(store: &Store, questions: Vec<Question>) -> Answers {
    let answers = store.ask(questions, Some(NOW)).await;
    answers.expect("the server answers")
}

async fn outcomes(store: &Store, questions: Vec<Question>) -> Vec<i64> {
    let answers = ask(store, questions).await;
    answers.each.iter().map(|raw| raw.outcome).collect()
}

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Gcra,
    Algorithm::FixedWindow(tollgate::Align::FirstHit),
    Algorithm::SlidingCounter,
    Algorithm::SlidingLog,
];

#[tokio::test]
async fn no_cost_is_too_large_to_be_refused() {
    let server = Server::start();
    let store = store(&server);
    for algorithm in ALGORITHMS {
        server.command(&["FLUSHALL"]);
        let ten = rate("10/s", algorithm);
        for cost in [11, 1 << 53, u64::MAX - 1, u64::MAX] {
            let said = outcomes(&store, vec![question(ten, Op::Decide, cost)]).await;
            assert_eq!(said, [2], "{algorithm:?} {cost}");
        }
        let most = ask(&store, vec![question(ten, Op::AtMost, u64::MAX)]).await;
        assert_eq!((most.each[0].outcome, most.each[0].wait), (1, 10));
        let gift = ask(&store, vec![question(ten, Op::Gift, u64::MAX)]).await;
        assert_eq!(gift.each[0].remaining, 10, "{algorithm:?}");
    }
}

#[tokio::test]
async fn one_key_asked_about_twice_in_a_request_has_room_for_both_or_none() {
    let server = Server::start();
    let store = store(&server);
    for algorithm in ALGORITHMS {
        server.command(&["FLUSHALL"]);
        let three = rate("3/s", algorithm);
        let both = || vec![question(three, Op::Decide, 1); 2];
        assert_eq!(outcomes(&store, both()).await, [1, 1], "{algorithm:?}");
        assert_eq!(outcomes(&store, both()).await, [1, 0], "{algorithm:?}");
        let one = vec![question(three, Op::Decide, 1)];
        assert_eq!(outcomes(&store, one).await, [1], "nothing was charged");
    }
    let two = |most| {
        vec![
            held_by("a", slots(most), Op::Decide),
            held_by("b", slots(most), Op::Decide),
        ]
    };
    server.command(&["FLUSHALL"]);
    assert_eq!(outcomes(&store, two(1)).await, [1, 2]);
    assert_eq!(outcomes(&store, two(2)).await, [1, 1]);
}

#[tokio::test]
async fn one_key_by_two_rates_in_a_request_is_charged_in_tokens_of_each() {
    let server = Server::start();
    let store = store(&server);
    // Their tokens are of 100,000 and of 1,000 units.
    let [slow, fast] =
        ["10/s burst 100", "1000/s burst 100"].map(|text| rate(text, Algorithm::Gcra));
    for both in [[slow, fast], [fast, slow]] {
        server.command(&["FLUSHALL"]);
        let questions = both.map(|numbers| question(numbers, Op::Decide, 1));
        let answers = ask(&store, questions.to_vec()).await;
        let left: Vec<_> = answers.each.iter().map(|raw| raw.remaining).collect();
        assert_eq!(left, [98, 98]);
    }
}

#[tokio::test]
async fn a_slot_that_is_asked_for_once_more_is_had_once() {
    let server = Server::start();
    let store = store(&server);
    let ask = |name| outcomes(&store, vec![held_by(name, slots(2), Op::Decide)]);
    assert_eq!(ask("a").await, [1]);
    assert_eq!(ask("b").await, [1]);
    // No answer came, and it is asked again.
    assert_eq!(ask("b").await, [1]);
    assert_eq!(ask("c").await, [0]);
    let release = vec![held_by("b", slots(2), Op::Release)];
    outcomes(&store, release).await;
    assert_eq!(ask("c").await, [1]);
    assert_eq!(ask("b").await, [0]);
}

#[tokio::test]
async fn a_damaged_key_spoils_no_call() {
    let server = Server::start();
    let store = store(&server);
    for op in [Op::Renew, Op::Release, Op::Decide] {
        server.command(&["SET", "k", "something else"]);
        let said = outcomes(&store, vec![held_by("a", slots(2), op)]).await;
        assert_eq!(said, [i64::from(op != Op::Renew)], "{op:?}");
    }
}
