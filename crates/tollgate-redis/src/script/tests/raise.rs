//! Raising usage: reported before other queries, and repeatable.

use tollgate::quota::Quota;
use tollgate_testkit::redis::Server;

use super::*;

async fn left(store: &Store, questions: Vec<StoreQuery>) -> Vec<(i64, i64)> {
    let answers = ask(store, questions).await;
    let left = answers
        .replies
        .iter()
        .map(|raw| (raw.outcome, raw.remaining));
    left.collect()
}

fn kinds() -> Vec<LimitKind> {
    let rate = |algorithm| LimitKind::Rate {
        rate: "10/h".parse().expect("a rate"),
        algorithm,
    };
    let mut kinds: Vec<_> = ALGORITHMS.map(rate).into();
    kinds.push(rate(Algorithm::FixedWindow(WindowAlignment::default())));
    kinds.push(LimitKind::Quota(Quota::per_hour(10)));
    kinds.push(LimitKind::Quota(
        Quota::rolling(10, Duration::from_secs(3600)).expect("a period"),
    ));
    kinds
}

/// Raises the usage to at least this.
fn raise(numbers: LimitParams, used: u64) -> StoreQuery {
    let [price, ..] = numbers.values;
    question(numbers, StoreOp::RaiseUsage(used * price), used)
}

#[tokio::test]
async fn what_is_used_is_raised_once_however_often_it_is_said() {
    let server = Server::start();
    let store = Store::patient(&server);
    for kind in kinds() {
        server.command(&["FLUSHALL"]);
        let ten = numbers(&kind);
        for (used, expect) in [(4, 6), (4, 6), (3, 6), (0, 6), (7, 3), (7, 3)] {
            let said = left(&store, vec![raise(ten, used)]).await;
            assert_eq!(said, [(1, expect)], "{kind:?}: {used}");
        }
        let charged = left(&store, vec![question(ten, StoreOp::Decide, 2)]).await;
        assert_eq!(charged, [(1, 1)], "{kind:?}");
        // What was charged since counts too.
        assert_eq!(
            left(&store, vec![raise(ten, 8)]).await,
            [(1, 1)],
            "{kind:?}"
        );
        // It is written although the rest is denied, and comes before it.
        let both = || vec![raise(ten, 10), question(ten, StoreOp::Decide, 1)];
        assert_eq!(left(&store, both()).await, [(1, 0), (0, 0)], "{kind:?}");
        let after = left(&store, vec![question(ten, StoreOp::Decide, 1)]).await;
        assert_eq!(after, [(0, 0)], "{kind:?}");
        // It charges nothing by itself, whatever passes.
        server.command(&["DEL", "k"]);
        let passes = vec![raise(ten, 3), question(ten, StoreOp::Decide, 2)];
        assert_eq!(left(&store, passes).await, [(1, 5), (1, 5)], "{kind:?}");
        let lives = server.command(&["PTTL", "k"]).integer();
        assert!(lives.is_some_and(|lives| lives > 0), "{kind:?}: {lives:?}");
    }
}

#[tokio::test]
async fn raising_slots_does_nothing() {
    let server = Server::start();
    let store = Store::patient(&server);
    let said = outcomes(&store, vec![held_by("a", slots(1), StoreOp::RaiseUsage(9))]).await;
    assert_eq!(said, [1]);
    assert_eq!(server.command(&["EXISTS", "k"]).integer(), Some(0));
}

#[tokio::test]
async fn a_level_is_raised_in_units_of_whoever_asks() {
    let server = Server::start();
    let store = Store::patient(&server);
    // Tokens of 100,000 units, and of 1,000.
    let [slow, fast] =
        ["10/s burst 100", "1000/s burst 1000"].map(|text| rate(text, Algorithm::Gcra));
    left(&store, vec![question(slow, StoreOp::Decide, 30)]).await;
    assert_eq!(left(&store, vec![raise(fast, 29)]).await, [(1, 970)]);
    assert_eq!(left(&store, vec![raise(fast, 500)]).await, [(1, 500)]);
    assert_eq!(left(&store, vec![raise(slow, 100)]).await, [(1, 0)]);
    // The debt is more than the slow limit has, and stays so.
    assert_eq!(
        left(&store, vec![question(fast, StoreOp::Decide, 0)]).await,
        [(1, 500)]
    );
}

#[tokio::test]
async fn a_calendar_of_another_time_raises_nothing_and_says_so() {
    let server = Server::start();
    let store = Store::patient(&server);
    let form = LimitForm::new(&LimitKind::Quota(Quota::per_hour(10)), Duration::ZERO);
    let form = form.expect("a limit for the store");
    let old = form.params_at(NOW - 86_400_000_000).expect("asked");
    let said = left(&store, vec![raise(old, 4)]).await;
    assert_eq!(said, [(3, 10)]);
    let said = left(&store, vec![raise(form.params_at(NOW).expect("asked"), 4)]).await;
    assert_eq!(said, [(1, 6)]);
}
