//! What a request is answered at one look, where looks are mixed with waits, drops, and changes of all kinds.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Clock, KeyedLimiter, Rate, Timestamp};
use tollgate_tower::{Answers, Dialect, Guard, Head, KeyOf, PerKey, RateLimitLayer, keys};
use tower::ServiceExt;

use crate::kit::{Task, app, ask, fields, from, per_key, task};

/// One of some dozens is searched for what a proxy may have told that isn't trusted, and that one waits as the others do.
#[tokio::test]
async fn who_is_to_wait_waits_whichever_of_many_it_is() {
    let (limits, clock) = per_key(Rate::per_second(1), keys::Address::new());
    let app = app(RateLimitLayer::new(limits.wait(Duration::from_secs(2))));
    for round in 0..1_000 {
        assert_eq!(
            ask(&app, from("192.0.2.1", "/")).await.status,
            200,
            "{round}"
        );
        let mut second = task(app.clone().oneshot(from("192.0.2.1", "/")));
        let refused = second
            .poll_once()
            .map(|answer| answer.map(|answer| answer.status()));
        assert_eq!(refused, None, "round {round}");
        drop(second);
        // Of another client, so that others are searched in the next rounds.
        if round % 2 == 0 {
            ask(&app, from("192.0.2.2", "/")).await;
        }
        clock.advance(Duration::from_secs(2));
    }
}

thread_local! {
    static LAST_WORDS: RefCell<Option<LastWords>> = const { RefCell::new(None) };
}

struct LastWords(Router, std::sync::mpsc::Sender<Vec<u16>>);

impl Drop for LastWords {
    fn drop(&mut self) {
        let mut heard = Vec::new();
        for _ in 0..3 {
            let mut call = task(self.0.clone().oneshot(from("192.0.2.1", "/")));
            let answer = call.poll_once().expect("an answer at once");
            heard.push(answer.expect("an answer").status().as_u16());
        }
        self.1.send(heard).expect("somebody who listens");
    }
}

/// What a thread remembers of texts may be gone before the last request that it serves.
#[test]
fn a_thread_that_ends_still_answers() {
    let (limits, _) = per_key(Rate::per_hour(3), keys::Address::new());
    let app = app(RateLimitLayer::new(limits));
    let (sender, heard) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        LAST_WORDS.set(Some(LastWords(app.clone(), sender)));
        let mut call = task(app.oneshot(from("192.0.2.1", "/")));
        assert!(call.poll_once().is_some());
    });
    assert!(thread.join().is_ok());
    assert_eq!(heard.recv(), Ok(vec![200, 200, 429]));
}

/// Whoever is asked by a guard may ask another.
#[tokio::test]
async fn guards_are_asked_within_guards() {
    let other = |rate| {
        let (limits, _) = per_key(rate, keys::Address::new());
        app(RateLimitLayer::new(limits.named("inner")))
    };
    let (inner, refuser) = (other(Rate::per_hour(1_000)), other(Rate::per_hour(1)));
    let ask_now = |app: &Router| {
        let mut call = task(app.clone().oneshot(from("192.0.2.1", "/")));
        let answer = call.poll_once().expect("at once").expect("an answer");
        (answer.status().as_u16(), fields(answer.headers()))
    };
    let (in_key, in_handler) = ((inner.clone(), refuser.clone()), (inner, refuser));
    let key = keys::by(move |_: &Head| {
        ask_now(&in_key.0);
        ask_now(&in_key.1);
        Some(1)
    });
    let (limits, _) = per_key(Rate::per_hour(2), key);
    let layer = RateLimitLayer::new(limits.named("outer")).with(|guard| {
        guard.on_refusal(move |_, _, refused| {
            ask_now(&in_handler.0);
            ask_now(&in_handler.1);
            refused.fields.set("ratelimit", "changed");
            refused.body = "changed".into();
        })
    });
    let app = app(layer);
    for _ in 0..2 {
        let answer = ask(&app, from("192.0.2.1", "/")).await;
        assert!(
            answer.fields.iter().all(|line| !line.contains("inner")),
            "{answer:?}"
        );
        assert_eq!(answer.status, 200);
    }
    for _ in 0..3 {
        let answer = ask(&app, from("192.0.2.1", "/")).await;
        assert_eq!((answer.status, &*answer.body), (429, "changed"));
        assert!(answer.fields.contains(&"ratelimit: changed".to_owned()));
        assert!(
            answer.fields.iter().all(|line| !line.contains("inner")),
            "{answer:?}"
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u8),
    Drop(usize),
    Pass(u64),
    Back(u64),
    Rate(u64, u64),
    Block(u8),
    Forget(u8),
    Refund(u8),
    Penalize(u8),
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    wait: u64,
    is_shadow: bool,
    is_loud: bool,
    burst: u64,
    clients: u8,
}

type Call = Task<std::pin::Pin<Box<dyn Future<Output = Response<Body>>>>>;

struct Played {
    app: Router,
    limiter: Arc<KeyedLimiter<Arc<Manual>>>,
    clock: Arc<Manual>,
    calls: Vec<Call>,
    clients: u8,
}

fn told(answer: &Response<Body>) -> String {
    format!("{} {:?}", answer.status(), fields(answer.headers()))
}

impl Played {
    fn new(setting: Setting, is_in_full: bool) -> Self {
        let clock = Arc::new(Manual::starting_at(Timestamp::from_nanos(
            10_000_000_000_000_000,
        )));
        let limiter = KeyedLimiter::builder(Rate::per_second(2).burst(setting.burst), 1_000);
        let limiter = limiter
            .clock(Arc::clone(&clock))
            .max_waiters(3)
            .build()
            .expect("a rate");
        let limiter = Arc::new(limiter);
        let limits = PerKey::by(Arc::clone(&limiter), keys::Address::new());
        let limits = limits.wait(Duration::from_millis(setting.wait));
        let mut layer = RateLimitLayer::new(limits);
        if setting.is_shadow {
            layer = layer.with(Guard::shadow);
        }
        if !setting.is_loud {
            layer = layer.answers(Answers::new().dialects([] as [Dialect; 0]));
        }
        if is_in_full {
            layer = layer.exempt(|_| false);
        }
        let app = app(layer);
        Self {
            app,
            limiter,
            clock,
            calls: Vec::new(),
            clients: setting.clients,
        }
    }

    fn play(&mut self, step: &Step) -> Vec<String> {
        let address = |number: u8| format!("192.0.2.{}", number % self.clients);
        let key = |number: u8| {
            let mut request = Request::new(());
            let peer: SocketAddr = format!("{}:1", address(number))
                .parse()
                .expect("an address");
            request.extensions_mut().insert(peer);
            let key = KeyOf::<Head>::key(&keys::Address::new(), &request);
            self.limiter.key(&key.expect("a key"))
        };
        match step {
            Step::Ask(number) => {
                let call = self.app.clone().oneshot(from(&address(*number), "/"));
                let call = async { call.await.unwrap_or_else(|never| match never {}) };
                self.calls.push(task(Box::pin(call)));
            }
            Step::Drop(at) if !self.calls.is_empty() => {
                drop(self.calls.remove(at % self.calls.len()));
            }
            Step::Drop(_) => {}
            Step::Pass(millis) => self.clock.advance(Duration::from_millis(*millis)),
            // How far others have come then depends on which of them share a part of the table, and that on a seed.
            Step::Back(_) if self.clients > 1 => {}
            Step::Back(millis) => {
                let now = self.clock.now().as_nanos();
                self.clock.set(Timestamp::from_nanos(
                    now.saturating_sub(*millis * 1_000_000),
                ));
            }
            Step::Rate(count, burst) => {
                let rate = Rate::per_second(*count).burst(*burst);
                self.limiter.set_rate(rate).expect("a rate");
            }
            Step::Block(number) => {
                key(*number)
                    .block_for(Duration::from_millis(700))
                    .expect("room");
            }
            Step::Forget(number) => key(*number).reset(),
            Step::Refund(number) => key(*number).refund(1),
            Step::Penalize(number) => key(*number).penalize(2).expect("room"),
        }
        let mut heard = Vec::new();
        let mut at = 0;
        self.calls.retain_mut(|call| {
            at += 1;
            match call.poll_once() {
                Some(answer) => {
                    heard.push(format!("{at}: {}", told(&answer)));
                    false
                }
                None => true,
            }
        });
        let stats = self.limiter.stats();
        heard.push(format!(
            "{} allowed, {} denied, {} wait",
            stats.allowed,
            stats.denied,
            self.limiter.waiters()
        ));
        heard
    }
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..3u8;
    prop_oneof![
        20 => who().prop_map(Step::Ask),
        3 => (0..9usize).prop_map(Step::Drop),
        5 => (0..900u64).prop_map(Step::Pass),
        1 => (0..2_000u64).prop_map(Step::Back),
        1 => Just(Step::Back(3 * 86_400_000)),
        1 => Just(Step::Pass(400 * 86_400_000)),
        1 => (1..20u64, 1..5u64).prop_map(|(count, burst)| Step::Rate(count, burst)),
        1 => who().prop_map(Step::Block),
        1 => who().prop_map(Step::Forget),
        1 => who().prop_map(Step::Refund),
        1 => who().prop_map(Step::Penalize),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let wait = prop_oneof![Just(0), Just(600), Just(3_000)];
    let clients = prop_oneof![Just(1), Just(3)];
    (wait, any::<bool>(), any::<bool>(), 1..4u64, clients).prop_map(
        |(wait, is_shadow, is_loud, burst, clients)| Setting {
            wait,
            is_shadow,
            is_loud,
            burst,
            clients,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn one_look_and_a_closer_one_wait_and_change_alike(
        setting in setting(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let (mut glance, mut full) = (Played::new(setting, false), Played::new(setting, true));
        for (number, step) in steps.iter().enumerate() {
            let (one, other) = (glance.play(step), full.play(step));
            prop_assert_eq!(one, other, "step {} of {:?}", number, &steps);
        }
    }
}
