//! Queries of every kind in one call: each is answered as if it were alone, and every key has an expiry.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of tests are small"
)]

use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tollgate::quota::Quota;
use tollgate_testkit::redis::Server;
use tollgate_testkit::traffic::Random;

use super::*;

/// Limits that share a key, because they share its state.
fn families() -> Vec<Vec<LimitKind>> {
    let rates = |algorithm: Algorithm, texts: &[&str]| {
        let kind = |text: &&str| LimitKind::Rate {
            rate: text.parse().expect("a rate"),
            algorithm,
        };
        texts.iter().map(kind).collect::<Vec<_>>()
    };
    let mut families: Vec<_> = ALGORITHMS
        .map(|algorithm| rates(algorithm, &["10/s", "3/s"]))
        .into();
    families.push(rates(Algorithm::TokenBucket, &["7/s burst 20", "50/s"]));
    families.push(rates(
        Algorithm::FixedWindow(WindowAlignment::default()),
        &["5/s", "9/s"],
    ));
    families.push(
        [12, 30]
            .map(|count| LimitKind::Quota(Quota::per_hour(count)))
            .into(),
    );
    let rolling =
        |count| LimitKind::Quota(Quota::rolling(count, Duration::from_secs(2)).expect("a period"));
    families.push([8, 15].map(rolling).into());
    families.push([2, 3].map(LimitKind::Concurrency).into());
    families
}

fn any_op(random: &mut Random, kind: StoreKind, now: u64) -> StoreOp {
    let since = now - random.below(2_000_000);
    let units = random.below(4_000_000);
    match (kind, random.below(16)) {
        (StoreKind::Concurrency, 0..2) => StoreOp::Reset,
        (StoreKind::Concurrency, 2..5) => StoreOp::Renew,
        (StoreKind::Concurrency, 5..8) => StoreOp::Release,
        (_, 0) => StoreOp::Reset,
        (StoreKind::Level, 1) => StoreOp::Reserve(units),
        (_, 2) if kind != StoreKind::Concurrency => StoreOp::AtMost,
        (_, 3) if kind != StoreKind::Concurrency => StoreOp::Refund,
        (_, 4) if kind != StoreKind::Concurrency => StoreOp::RefundCharge(since),
        (_, 8) => StoreOp::RaiseUsage(units / 3),
        _ => StoreOp::Decide,
    }
}

/// Some requests: each is one other operation, or several decisions.
fn requests(random: &mut Random, families: &[Vec<LimitKind>], now: u64) -> Vec<Vec<StoreQuery>> {
    let mut any = |op: Option<StoreOp>| {
        let family = random.below(families.len() as u64) as usize;
        let limits = &families[family];
        let limit = &limits[random.below(limits.len() as u64) as usize];
        let form = LimitForm::new(limit, Duration::from_secs(1)).expect("a limit for the store");
        let numbers = form.params_at(now).expect("asked");
        let is_slots = numbers.kind == StoreKind::Concurrency;
        StoreQuery {
            key: format!("{family} {}", random.below(2)).into(),
            op: op.unwrap_or_else(|| any_op(random, numbers.kind, now)),
            params: numbers,
            cost: if is_slots {
                random.below(2)
            } else {
                random.below(6)
            },
            holder: is_slots.then(|| format!("h{}", random.below(4)).into()),
        }
    };
    let one = |any: &mut dyn FnMut(Option<StoreOp>) -> StoreQuery| {
        let first = any(None);
        match first.op {
            StoreOp::Decide | StoreOp::RaiseUsage(_) => {
                // More of the same kind, sometimes.
                let others = first.cost / 2;
                let more = (0..others).map(|_| any(Some(StoreOp::Decide)));
                let mut all: Vec<_> = std::iter::once(first)
                    .chain(more.collect::<Vec<_>>())
                    .collect();
                if all.len() > 1 {
                    for slot in all.iter_mut().filter(|asked| asked.holder.is_some()) {
                        slot.cost = 1;
                    }
                }
                all
            }
            _ => vec![first],
        }
    };
    (0..12).map(|_| one(&mut any)).collect()
}

/// The same under other names.
fn on_side(side: &str, request: &[StoreQuery]) -> Vec<StoreQuery> {
    let of = |asked: &StoreQuery| StoreQuery {
        key: format!("{side} {}", asked.key).into(),
        ..asked.clone()
    };
    request.iter().map(of).collect()
}

#[tokio::test]
async fn any_questions_in_one_call_are_answered_as_one_by_one() {
    let server = Server::start();
    let store = Store::patient(&server);
    let families = families();
    let mut random = Random::new(77);
    let mut now = NOW;
    let mut outcomes = [0; 3];
    for round in 0..400 {
        let reach = [1_000, 100_000, 3_000_000][random.below(3) as usize];
        now = match random.below(20) {
            0 => now - random.below(reach),
            1 => now - random.below(20_000_000),
            _ => now + random.below(reach),
        };
        let requests = requests(&mut random, &families, now);
        let before = store.stats().calls.load(Ordering::Relaxed);
        let together = requests
            .iter()
            .map(|request| store.ask(on_side("together", request), Some(now)));
        let together = join_all(together).await;
        let calls = store.stats().calls.load(Ordering::Relaxed) - before;
        assert_eq!(calls, 1, "all have gone in one call");
        for (request, together) in requests.iter().zip(together) {
            let questions = on_side("alone", request);
            let keys: Vec<_> = questions.iter().map(|asked| asked.key.clone()).collect();
            let alone = store.ask(questions, Some(now)).await;
            assert_eq!(together, alone, "round {round}: {request:?} at {now}");
            for raw in alone.expect("an answer").replies {
                outcomes[raw.outcome as usize] += 1;
            }
            for key in keys {
                let lives = server.command(&["PTTL", &key]).integer();
                let lives = lives.expect("a number");
                // No key, or one with an expiry.
                assert!(lives == -2 || lives > 0, "{lives} after {request:?}");
            }
        }
    }
    assert!(outcomes.iter().all(|seen| *seen > 200), "{outcomes:?}");
}

#[tokio::test]
async fn a_reset_leaves_slots_with_those_who_hold_them() {
    let server = Server::start();
    let store = Store::patient(&server);
    let one = slots(1);
    let ask = |name: &'static str, op| outcomes(&store, vec![held_by(name, one, op)]);
    assert_eq!(ask("a", StoreOp::Decide).await, [1]);
    ask("b", StoreOp::Reset).await;
    assert_eq!(ask("b", StoreOp::Decide).await, [0]);
    assert_eq!(ask("a", StoreOp::Renew).await, [1]);
    // Nor does it take the name of another query's holder.
    let both = [
        vec![held_by("b", one, StoreOp::Reset)],
        vec![held_by("a", one, StoreOp::Release)],
    ];
    join_all(both.map(|request| store.ask(request, Some(NOW)))).await;
    assert_eq!(ask("b", StoreOp::Decide).await, [1]);
}
