//! Concurrent reloads, waits, drops and full tables, from a seed: no request gets past a rule, and nothing leaks.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Request, Response};
use tollgate::clock::{Manual, Tokio};
use tollgate::{KeyedConcurrencyLimiter, Rate};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};
use tollgate_tower::{
    BlockAfter, ConcurrencyLimit, PolicyLimits, RateLimitLayer, RequestHead, RequestLimiter,
    RequestLimits, Tarpit, keys,
};
use tower::ServiceExt;

use crate::kit::{Task, app, as_grpc, ask, from, per_key, task};

/// Numbers that look random, the same for each seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).expect("a small number")
    }
}

fn policy(text: &str) -> Policy {
    let read = Policy::from_text(text, Format::Yaml);
    read.expect("a policy").policy
}

const APPS: &str = "{name: apps, match: {header.x-app: '*'}, key: header.x-app, rate: 2/h}";
const SLOTS: &str = "{name: slots, concurrency: 3, over: wait 2s}";

/// The first asks for no header; all others limit apps, and each asks for something else beside.
fn policies() -> [String; 5] {
    let slow = "{name: slow, rate: 5/s burst 1, over: wait 3s}";
    [
        format!("limits: [{slow}, {SLOTS}]"),
        format!("limits: [{slow}, {APPS}, {SLOTS}]"),
        format!(
            "limits: [{APPS}, {SLOTS}, {{name: b, match: {{header.x-b: '*'}}, key: header.x-b, rate: 9/s}}]"
        ),
        format!(
            "limits: [{APPS}, {slow}, {{name: users, key: [user, ip], rate: 9/s, over: wait 1s}}]"
        ),
        format!(
            "limits: [{slow}, {SLOTS}, {{name: apps, match: {{header.x-app: '*'}}, key: header.x-app, rate: 2/h, over: wait 9s}}]"
        ),
    ]
}

fn of_app(number: usize) -> Request<Body> {
    let mut request = from("192.0.2.1", "/");
    let name = number.to_string().parse().expect("a value");
    request.headers_mut().insert("x-app", name);
    request
}

#[tokio::test(start_paused = true)]
async fn reloads_waits_and_drops_let_nobody_past_and_leave_nothing() {
    let mut asked_again = 0;
    for seed in 1..=60_u64 {
        let memory = Memory::builder().clock(Tokio::new()).wall(Manual::new());
        let engine = Engine::new(policy(&policies()[0]), memory.build());
        let engine = Arc::new(engine.expect("a policy"));
        let limits = match seed % 2 {
            0 => PolicyLimits::in_memory(Arc::clone(&engine)),
            _ => PolicyLimits::new(Arc::clone(&engine)),
        };
        let app = app(RateLimitLayer::new(limits));
        let mut dice = Dice::new(seed);
        let mut calls: Vec<(usize, Task<_>)> = Vec::new();
        let mut open: Vec<Response<Body>> = Vec::new();
        let mut passed: HashMap<usize, u32> = HashMap::new();
        // All that comes before the first reload waits.
        while calls.len() < 8 {
            let number = dice.below(4);
            let mut call = task(app.clone().oneshot(of_app(number)));
            if call.poll_once().is_none() {
                calls.push((number, call));
            }
        }
        asked_again += engine.waiter_count();
        for step in 0..120 {
            match dice.below(8) {
                _ if step == 0 => reload(&engine, &mut dice),
                0 => reload(&engine, &mut dice),
                1 | 2 if calls.len() < 40 => {
                    let number = dice.below(4);
                    calls.push((number, task(app.clone().oneshot(of_app(number)))));
                }
                3 if !calls.is_empty() => {
                    let gone = dice.below(calls.len());
                    drop(calls.remove(gone));
                }
                4 => open.clear(),
                _ => {
                    let millis = 1 + dice.below(400) as u64;
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                }
            }
            calls.retain_mut(|(number, call)| match call.poll_once() {
                None => true,
                Some(answer) => {
                    let answer = answer.unwrap_or_else(|never| match never {});
                    if answer.status() == 200 {
                        *passed.entry(*number).or_default() += 1;
                        open.push(answer);
                    }
                    false
                }
            });
        }
        for (number, count) in passed {
            assert!(count <= 2, "{count} of app {number}, seed {seed}");
        }
        drop((calls, open));
        assert_eq!(engine.waiter_count(), 0, "seed {seed}");
        engine
            .reload(policy(&format!("limits: [{SLOTS}]")))
            .expect("a policy");
        let mut held = Vec::new();
        for _ in 0..3 {
            let answer = task(app.clone().oneshot(of_app(9))).poll_once();
            held.push(answer.expect("a slot").expect("an answer"));
        }
        assert!(held.iter().all(|answer| answer.status() == 200), "{seed}");
    }
    assert!(asked_again > 400, "{asked_again} waited over a reload");
}

fn reload(engine: &Engine<Memory<Tokio, Manual>>, dice: &mut Dice) {
    let text = &policies()[1 + dice.below(4)];
    engine.reload(policy(text)).expect("a policy");
}

#[tokio::test(start_paused = true)]
async fn a_table_that_fills_up_tells_each_what_is_so() {
    let mut told: HashMap<u16, u32> = HashMap::new();
    for seed in 1..=60_u64 {
        let limiter = KeyedConcurrencyLimiter::builder(1, 4).clock(Arc::new(Tokio::new()));
        let limiter = Arc::new(limiter.build().expect("a limiter"));
        let limits =
            ConcurrencyLimit::with_limiter(Arc::clone(&limiter), keys::ClientAddress::new());
        let layer = RateLimitLayer::new(limits.max_wait(Duration::from_secs(seed % 3)));
        let app = app(layer);
        let mut dice = Dice::new(seed);
        let mut calls: Vec<(usize, Task<_>)> = Vec::new();
        let mut open: Vec<(usize, Response<Body>)> = Vec::new();
        for _ in 0..300 {
            match dice.below(6) {
                0..=2 => {
                    let number = dice.below(12);
                    let request = from(&format!("198.51.100.{number}"), "/");
                    calls.push((number, task(app.clone().oneshot(request))));
                }
                3 if !open.is_empty() => drop(open.swap_remove(dice.below(open.len()))),
                4 if !calls.is_empty() => drop(calls.swap_remove(dice.below(calls.len()))),
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
            let under_way = calls.iter().map(|(number, _)| *number);
            let under_way = under_way.chain(open.iter().map(|(number, _)| *number));
            let under_way: Vec<_> = under_way.collect();
            calls.retain_mut(|(number, call)| {
                let Some(answer) = call.poll_once() else {
                    return true;
                };
                let answer = answer.unwrap_or_else(|never| match never {});
                *told.entry(answer.status().as_u16()).or_default() += 1;
                if answer.status() == 429 {
                    // Who is told that it has too much under way has something.
                    let own = under_way.iter().filter(|one| *one == number).count();
                    assert!(own >= 2, "seed {seed}");
                } else if answer.status() == 200 {
                    open.push((*number, answer));
                }
                false
            });
            let own = |number| open.iter().filter(|(one, _)| *one == number).count();
            assert!((0..12).all(|number| own(number) <= 2), "seed {seed}");
            // One more than there is room for: what all newcomers share.
            assert!(open.len() <= 5, "{} at once, seed {seed}", open.len());
        }
        drop((calls, open));
        assert!(limiter.is_empty() && limiter.waiters() == 0, "seed {seed}");
        let answer = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!(answer.status, 200, "seed {seed}");
    }
    let mut told: Vec<_> = told.into_iter().collect();
    told.sort_unstable();
    assert_eq!(told.len(), 3, "{told:?}");
    let many = told.iter().all(|(_, times)| *times > 100);
    assert!(many, "{told:?}");
}

/// The responses of a layer, and of the same in shadow mode, to a gRPC call and another request.
async fn told<L: RequestLimits<RequestHead>>(
    guard: impl Fn() -> RequestLimiter<RequestHead, L>,
) -> [(u16, Option<String>); 4] {
    let mut answers = Vec::new();
    for guard in [guard(), guard().shadow()] {
        let app = Router::new()
            .route("/", any(|| async { "hello" }))
            .layer(RateLimitLayer::from_limiter(guard));
        for request in [as_grpc(from("192.0.2.1", "/")), from("192.0.2.1", "/")] {
            let answer = ask(&app, request).await;
            let status = |line: &String| Some(line.strip_prefix("grpc-status: ")?.to_owned());
            let status = answer.fields.iter().find_map(status);
            answers.push((answer.status, status));
        }
    }
    answers.try_into().expect("four")
}

#[tokio::test]
async fn grpc_and_shadow_agree_on_what_is_refused() {
    let passes = || (200, None);
    let grpc = |code: &str| (200, Some(code.to_owned()));
    let no_key = told(|| RequestLimiter::new(per_key(Rate::per_hour(1), keys::Bearer).0)).await;
    assert_eq!(no_key, [grpc("16"), (401, None), passes(), passes()]);
    let limits = || per_key(Rate::per_hour(1), keys::ClientAddress::new()).0;
    let denied = told(|| RequestLimiter::new(limits()).deny(|_| true)).await;
    assert_eq!(denied, [grpc("8"), (429, None), passes(), passes()]);
    let none = told(|| RequestLimiter::new(ConcurrencyLimit::new(0, keys::Global))).await;
    assert_eq!(none, [grpc("8"), (429, None), passes(), passes()]);
    let crowded = told(|| {
        let limiter = KeyedConcurrencyLimiter::builder(1, 1)
            .build()
            .expect("a limiter");
        let limiter = Arc::new(limiter);
        for other in 0..20 {
            let other = limiter.key_owned(&[other, 0]).try_acquire();
            std::mem::forget(other);
        }
        RequestLimiter::new(ConcurrencyLimit::with_limiter(
            limiter,
            keys::ClientAddress::new(),
        ))
    });
    assert_eq!(crowded.await, [grpc("14"), (503, None), passes(), passes()]);
}

/// A request that waits for a permit, for a delayed denial, or for a new decision frees its position wherever it is
/// dropped.
#[tokio::test(start_paused = true)]
async fn tarpits_blocks_and_reloads_leave_no_place_taken() {
    let mut told: HashMap<(u16, bool), u32> = HashMap::new();
    for seed in 1..=60_u64 {
        let memory = Memory::builder().clock(Tokio::new()).wall(Manual::new());
        let engine = Engine::new(policy(&policies()[0]), memory.build());
        let engine = Arc::new(engine.expect("a policy"));
        let guard = RequestLimiter::new(PolicyLimits::new(Arc::clone(&engine)))
            .clock(Arc::new(Tokio::new()));
        let many = NonZero::new(6).expect("more than zero");
        let block = BlockAfter::after(many, Duration::from_secs(5));
        let guard = guard
            .block(block, keys::ClientAddress::new())
            .expect("a block");
        let guard = guard.tarpit(
            Tarpit::new(Duration::from_secs(1), 2),
            keys::ClientAddress::new(),
        );
        let app = app(RateLimitLayer::from_limiter(guard));
        let of = |client: usize, number: usize| {
            let mut request = of_app(number);
            *request.extensions_mut() =
                from(&format!("192.0.2.{client}"), "/").extensions().clone();
            task(app.clone().oneshot(request))
        };
        let mut dice = Dice::new(seed);
        let (mut calls, mut open) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            match dice.below(8) {
                0 => reload(&engine, &mut dice),
                1..=4 if calls.len() < 40 => calls.push(of(dice.below(4), dice.below(3))),
                5 if !calls.is_empty() => drop(calls.swap_remove(dice.below(calls.len()))),
                6 => open.clear(),
                _ => tokio::time::sleep(Duration::from_millis(1 + dice.below(300) as u64)).await,
            }
            calls.retain_mut(|call: &mut Task<_>| {
                let Some(answer) = call.poll_once() else {
                    return true;
                };
                let answer = answer.unwrap_or_else(|never| match never {});
                let shows_limit = answer.headers().contains_key("ratelimit");
                let told = told.entry((answer.status().as_u16(), shows_limit));
                *told.or_default() += 1;
                open.push(answer);
                false
            });
        }
        drop((calls, open));
        assert_eq!(engine.waiter_count(), 0, "seed {seed}");
        let one_an_hour = "limits: [{name: one, key: ip, rate: 1/h}]";
        engine.reload(policy(one_an_hour)).expect("a policy");
        // Both places are free: of three who come too early two wait.
        let clients = [11, 12, 13].map(|client| {
            let statuses = [of(client, 9).poll_once(), of(client, 9).poll_once()];
            let statuses = statuses.map(|answer| {
                answer
                    .expect("at once")
                    .expect("an answer")
                    .status()
                    .as_u16()
            });
            assert_eq!(statuses, [200, 429], "seed {seed}");
            let mut early = of(client, 9);
            let is_stuck = early.poll_once().is_none();
            (early, is_stuck)
        });
        assert_eq!(
            clients.map(|(_, is_stuck)| is_stuck),
            [true, true, false],
            "seed {seed}"
        );
    }
    // The last of these was blocked.
    for case in [(200, true), (429, true), (429, false)] {
        assert!(told.contains_key(&case), "{told:?}");
    }
}
