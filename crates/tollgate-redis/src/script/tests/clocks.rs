//! Steps of the store's clock: permits and quotas are bounded under them as rates are.

use tollgate::quota::Quota;
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;

use super::*;

const MINUTE: u64 = 60_000_000;
const DAY: u64 = 24 * 60 * MINUTE;
/// The first of March 2025.
const MARCH: u64 = 1_740_787_200_000_000;

/// Permits that are held for this long at a time.
fn slots_for(most: u32, life: u64) -> LimitParams {
    let kind = LimitKind::Concurrency(most);
    let form = LimitForm::new(&kind, Duration::from_micros(life)).expect("a limit for the store");
    form.params_at(NOW).expect("it is asked")
}

async fn ask_at(store: &Store, question: StoreQuery, at: u64) -> i64 {
    let answers = store.ask(vec![question], Some(at)).await;
    answers.expect("the server answers").replies[0].outcome
}

#[tokio::test]
async fn a_clock_that_steps_back_keeps_no_slot_for_longer_than_its_life() {
    let server = Server::start();
    let store = Store::patient(&server);
    let one = slots_for(1, MINUTE);
    let ask = |name, op, at| ask_at(&store, held_by(name, one, op), at);
    assert_eq!(ask("dead", StoreOp::Decide, NOW).await, 1);
    let back = NOW - 600 * MINUTE;
    assert_eq!(ask("b", StoreOp::Decide, back).await, 0);
    // Requests in between don't begin it anew.
    assert_eq!(ask("b", StoreOp::Decide, back + MINUTE / 2).await, 0);
    assert_eq!(ask("b", StoreOp::Decide, back + MINUTE - 1).await, 0);
    assert_eq!(ask("b", StoreOp::Decide, back + MINUTE).await, 1);
    // A denial writes nothing else.
    let before = server.command(&["DUMP", "k"]);
    assert_eq!(ask("c", StoreOp::Decide, back + MINUTE).await, 0);
    assert_eq!(server.command(&["DUMP", "k"]), before);
}

#[tokio::test]
async fn a_slot_lives_as_long_as_its_holder_said() {
    let server = Server::start();
    let store = Store::patient(&server);
    let (long, short) = (slots_for(2, 10 * MINUTE), slots_for(2, MINUTE));
    let ask = |name, numbers, op, at| ask_at(&store, held_by(name, numbers, op), at);
    assert_eq!(ask("a", long, StoreOp::Decide, NOW).await, 1);
    for minute in 0..9 {
        assert_eq!(
            ask("b", short, StoreOp::Decide, NOW + minute * MINUTE).await,
            1
        );
        let now = NOW + minute * MINUTE + 1;
        assert_eq!(ask("c", short, StoreOp::Decide, now).await, 0, "{minute}");
    }
    assert_eq!(ask("a", long, StoreOp::Renew, NOW + 9 * MINUTE).await, 1);
    ask("a", long, StoreOp::Release, NOW + 9 * MINUTE).await;
    assert_eq!(ask("c", short, StoreOp::Decide, NOW + 9 * MINUTE).await, 1);
}

#[tokio::test]
async fn a_renewal_that_finds_its_slot_gone_takes_it_again_if_there_is_room() {
    let server = Server::start();
    let store = Store::patient(&server);
    let one = slots_for(1, MINUTE);
    let ask = |name, op, at| ask_at(&store, held_by(name, one, op), at);
    assert_eq!(ask("a", StoreOp::Decide, NOW).await, 1);
    // The clock steps forward, and no other holder has taken the permit.
    let later = NOW + 600 * MINUTE;
    assert_eq!(ask("a", StoreOp::Renew, later).await, 1);
    assert_eq!(ask("b", StoreOp::Decide, later).await, 0);
    // Another holder has: the former owner learns that it is lost.
    let again = later + 600 * MINUTE;
    assert_eq!(ask("b", StoreOp::Decide, again).await, 1);
    assert_eq!(ask("a", StoreOp::Renew, again).await, 0);
    assert_eq!(ask("b", StoreOp::Renew, again).await, 1);
    // The store has lost its state.
    server.command(&["FLUSHALL"]);
    assert_eq!(ask("b", StoreOp::Renew, again).await, 1);
    assert_eq!(ask("a", StoreOp::Decide, again).await, 0);
}

#[tokio::test]
async fn a_quota_tells_truly_however_far_the_clock_steps_back() {
    let server = Server::start();
    let store = Store::patient(&server);
    let mut random = Random::new(8);
    let quotas = [
        (Quota::per_hour(5), DAY / 24),
        (Quota::per_day(5), DAY),
        (Quota::per_month(5), 31 * DAY),
        (
            Quota::rolling(5, Duration::from_secs(2_592_000)).expect("a period"),
            31 * DAY,
        ),
    ];
    for round in 0..300 {
        let (quota, longest) = &quotas[round % quotas.len()];
        let form = LimitForm::new(&LimitKind::Quota(quota.clone()), Duration::ZERO);
        let form = form.expect("a limit for the store");
        let key = format!("{quota} {round}");
        let ask = async |cost, at: u64| {
            let asked = StoreQuery {
                key: key.as_str().into(),
                ..question(form.params_at(at).expect("asked"), StoreOp::Decide, cost)
            };
            let answers = store.ask(vec![asked], Some(at)).await;
            answers.expect("an answer").replies[0]
        };
        let (ahead, back) = match round % 3 {
            // A month that is longer than the next one: from early in March to the end of January.
            0 => (MARCH + random.below(2 * DAY), 30 * DAY),
            _ => (NOW + random.below(365 * DAY), random.below(3 * longest)),
        };
        assert_eq!(ask(1, ahead).await.outcome, 1, "{key}");
        let back = ahead - back;
        let what = format!("{key}: from {ahead} to {back}");
        // Four remain, and they pass.
        let left = ask(0, back).await.remaining;
        let (first, second) = (ask(4, back).await, ask(1, back).await);
        assert_eq!((first.outcome, left), (1, 4), "{what}: {first:?}");
        assert_eq!(second.outcome, 0, "{what}");
        let wait = u64::try_from(second.wait).expect("a wait");
        assert!(0 < wait && wait <= 2 * longest, "{what}: {wait}");
        assert_eq!(ask(1, back + wait).await.outcome, 1, "{what}: {second:?}");
    }
}
