//! A request on the fast path is decided, counted and answered like one on the full path.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use http::Request;
use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Clock, KeyedLimiter, Rate, Timestamp};
use tollgate_tower::client::Trust;
use tollgate_tower::{
    BlockAfter, HeaderDialect, KeyExtractor, OnMissingKey, RateLimitLayer, RatePerKey, RequestHead,
    RequestLimiter, ResponseFormat, keys,
};

use crate::kit::{Answer, app, ask, from, left, per_key};

#[derive(Clone, Debug)]
enum Step {
    /// A request of this peer, with these hops.
    Ask(Option<IpAddr>, Option<&'static str>),
    Pass(Duration),
    /// The clock is set back, if there is one client: with several, what is known then depends on a seed.
    Back(Duration),
    /// Changes the rate, per second and burst.
    Rate(u64, u64),
    /// An operator does something to a client.
    Act(IpAddr, Act),
    /// Drops one of the waiters.
    Leave(usize),
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Block,
    Forget,
    Refund,
    Penalize,
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    is_loud: bool,
    missing: OnMissingKey,
    trusts: bool,
    /// How long a request may wait for its turn.
    wait: Duration,
    is_shadow: bool,
    /// Whether all requests are of one client.
    is_alone: bool,
}

impl Setting {
    /// The lone client's address for requests that show none, where those have a counter of their own: it would be a
    /// second client.
    fn address_of_nobody(self) -> Option<IpAddr> {
        let has_counter = self.missing == OnMissingKey::OneCounter;
        (self.is_alone && has_counter).then_some(ALONE)
    }
}

const ALONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The layer on a clock of its own, and with `in_full` one in which a predicate has a say, so that nothing is known at one look.
struct Played {
    app: Router,
    limiter: Arc<KeyedLimiter<Arc<Manual>>>,
    clock: Arc<Manual>,
    is_alone: bool,
    address_of_nobody: Option<IpAddr>,
    asked: usize,
    /// Those that wait for their turn, by their numbers.
    waiting: Vec<(usize, Asked)>,
}

type Asked = Pin<Box<dyn Future<Output = Answer>>>;

impl Played {
    fn new(setting: Setting, is_in_full: bool) -> Self {
        let clock = Arc::new(Manual::starting_at(Timestamp::from_secs(10_000_000)));
        let limiter = KeyedLimiter::builder(Rate::per_second(2).burst(3), 64);
        let limiter = limiter.clock(Arc::clone(&clock)).max_waiters(3).build();
        let limiter = Arc::new(limiter.expect("a rate"));
        let mut key = keys::ClientAddress::new();
        if setting.trusts {
            key = key.trust(Trust::proxies(["10.0.0.0/8".parse().expect("a network")]));
        }
        let limits = RatePerKey::with_limiter(Arc::clone(&limiter), key)
            .on_missing_key(setting.missing)
            .max_wait(setting.wait);
        let mut layer = RateLimitLayer::new(limits);
        if setting.is_shadow {
            layer = layer.configure(RequestLimiter::shadow);
        }
        if !setting.is_loud {
            layer = layer.response_format(ResponseFormat::new().dialects([] as [HeaderDialect; 0]));
        }
        if is_in_full {
            layer = layer.exempt(|_| false);
        }
        Self {
            app: app(layer),
            limiter,
            clock,
            is_alone: setting.is_alone,
            address_of_nobody: setting.address_of_nobody(),
            asked: 0,
            waiting: Vec::new(),
        }
    }

    /// Who is answered then, and what.
    fn play(&mut self, step: &Step) -> Vec<(usize, Answer)> {
        let only = |peer: IpAddr| if self.is_alone { ALONE } else { peer };
        match step {
            Step::Ask(peer, hops) => {
                let mut request = Request::new(axum::body::Body::empty());
                if let Some(hops) = hops.filter(|_| !self.is_alone) {
                    let hops = http::HeaderValue::from_static(hops);
                    request.headers_mut().insert("x-forwarded-for", hops);
                }
                if let Some(peer) = peer.map(only).or(self.address_of_nobody) {
                    let extensions = request.extensions_mut();
                    extensions.insert(SocketAddr::new(peer, 1));
                }
                let app = self.app.clone();
                let asked = Box::pin(async move { ask(&app, request).await });
                self.waiting.push((self.asked, asked));
                self.asked += 1;
            }
            Step::Pass(time) => self.clock.advance(*time),
            Step::Back(time) if self.is_alone => {
                let back = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                let now = self.clock.now().as_nanos();
                self.clock
                    .set(Timestamp::from_nanos(now.saturating_sub(back)));
            }
            Step::Back(_) => {}
            Step::Rate(count, burst) => {
                let rate = Rate::per_second(*count).burst(*burst);
                self.limiter.set_rate(rate).expect("a rate");
            }
            Step::Act(peer, act) => {
                let network = keys::ClientAddress::new();
                let mut request = Request::new(());
                let peer = SocketAddr::new(only(*peer), 1);
                request.extensions_mut().insert(peer);
                let key = KeyExtractor::<RequestHead>::key(&network, &request);
                let client = self.limiter.key(&key.expect("a key"));
                match act {
                    Act::Block => client.block_for(Duration::from_secs(1)).expect("room"),
                    Act::Forget => client.reset(),
                    Act::Refund => client.refund(1),
                    Act::Penalize => client.penalize(2).expect("room"),
                }
            }
            Step::Leave(which) if !self.waiting.is_empty() => {
                drop(self.waiting.remove(which % self.waiting.len()));
            }
            Step::Leave(_) => {}
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut answers = Vec::new();
        self.waiting
            .retain_mut(|(number, asked)| match asked.as_mut().poll(&mut context) {
                Poll::Ready(answer) => {
                    answers.push((*number, answer));
                    false
                }
                Poll::Pending => true,
            });
        answers
    }
}

fn peer() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..4u8).prop_map(|last| IpAddr::from([192, 0, 2, last])),
        (0..2u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        Just("2001:db8::1".parse().expect("an address")),
        Just("2001:db8::2".parse().expect("an address")),
        Just("::ffff:192.0.2.1".parse().expect("an address")),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let hops = prop_oneof![
        3 => Just(None),
        1 => Just(Some("198.51.100.7")),
        1 => Just(Some("198.51.100.7, 10.0.0.9")),
    ];
    let act = prop_oneof![
        Just(Act::Block),
        Just(Act::Forget),
        Just(Act::Refund),
        Just(Act::Penalize)
    ];
    prop_oneof![
        20 => (proptest::option::weighted(0.9, peer()), hops).prop_map(|(peer, hops)| Step::Ask(peer, hops)),
        4 => (0..900u64).prop_map(|millis| Step::Pass(Duration::from_millis(millis))),
        1 => prop_oneof![0..2_000u64, Just(3 * 86_400_000)].prop_map(|millis| Step::Back(Duration::from_millis(millis))),
        1 => Just(Step::Pass(Duration::from_secs(400 * 86_400))),
        1 => (1..20u64, 1..5u64).prop_map(|(count, burst)| Step::Rate(count, burst)),
        2 => (peer(), act).prop_map(|(peer, act)| Step::Act(peer, act)),
        2 => any::<usize>().prop_map(Step::Leave),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let missing = prop_oneof![
        Just(OnMissingKey::Deny),
        Just(OnMissingKey::OneCounter),
        Just(OnMissingKey::Pass)
    ];
    let wait = prop_oneof![3 => Just(0), 1 => 1..3_000u64].prop_map(Duration::from_millis);
    let shadow = prop_oneof![3 => Just(false), 1 => Just(true)];
    let (is_loud, trusts, is_alone) = (any::<bool>(), any::<bool>(), any::<bool>());
    (is_loud, missing, trusts, wait, shadow, is_alone).prop_map(
        |(is_loud, missing, trusts, wait, is_shadow, is_alone)| Setting {
            is_loud,
            missing,
            trusts,
            wait,
            is_shadow,
            is_alone,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn one_look_and_a_closer_one_answer_alike(
        setting in setting(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut glance = Played::new(setting, false);
            let mut full = Played::new(setting, true);
            let counts = |played: &Played| {
                let stats = played.limiter.stats();
                (stats.allowed, stats.denied, played.waiting.len(), played.limiter.waiters())
            };
            for (number, step) in steps.iter().enumerate() {
                let (one, other) = (glance.play(step), full.play(step));
                prop_assert_eq!(one, other, "step {} of {:?}", number, &steps);
                prop_assert_eq!(counts(&glance), counts(&full), "step {} of {:?}", number, &steps);
            }
            Ok(())
        })?;
    }
}

/// Each has its say about a client that is known already, and so could pass at one look.
#[tokio::test]
async fn what_is_looked_at_before_limits_is_looked_at_for_known_clients_as_well() {
    let known =
        |guard: RequestLimiter<RequestHead, RatePerKey<keys::ClientAddress, Arc<Manual>>>| async {
            let app = app(RateLimitLayer::from_limiter(guard));
            assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
            app
        };
    let guard = || {
        let (limits, clock) = per_key(Rate::per_hour(10), keys::ClientAddress::new());
        (RequestLimiter::new(limits).clock(Arc::clone(&clock)), clock)
    };
    let is_other = |head: &RequestHead| head.uri().path() == "/users/1";
    // The first few hundred requests of a thread take a closer look, for a proxy that isn't trusted.
    let first = app(RateLimitLayer::per_client(Rate::unlimited()));
    for _ in 0..300 {
        ask(&first, from("192.0.2.1", "/")).await;
    }

    let app = known(guard().0.exempt(is_other)).await;
    assert_eq!(ask(&app, from("192.0.2.1", "/users/1")).await.status, 200);
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/")).await), 8);

    let app = known(guard().0.deny(is_other)).await;
    assert_ne!(ask(&app, from("192.0.2.1", "/users/1")).await.status, 200);

    let app = known(
        guard()
            .0
            .cost(move |head| if is_other(head) { 5 } else { 1 }),
    )
    .await;
    assert_eq!(left(&ask(&app, from("192.0.2.1", "/users/1")).await), 4);

    let (guard, clock) = guard();
    let block = BlockAfter::after(NonZero::<u32>::MIN, Duration::from_secs(7_200));
    let app = known(
        guard
            .block(block, keys::ClientAddress::new())
            .expect("a block"),
    )
    .await;
    for _ in 0..10 {
        ask(&app, from("192.0.2.1", "/")).await;
    }
    // The limit has room again, and the block isn't over.
    clock.advance(Duration::from_secs(3_600));
    assert_ne!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
    clock.advance(Duration::from_secs(3_700));
    assert_eq!(ask(&app, from("192.0.2.1", "/")).await.status, 200);
}

/// A function that finds a key may take long, or say another thing the second time.
#[tokio::test]
async fn a_function_that_finds_a_key_is_called_once_a_request() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let own = keys::from_fn(move |head: &RequestHead| {
        count.fetch_add(1, Ordering::Relaxed);
        Some(head.uri().path().to_owned())
    });
    let (limits, clock) = per_key(Rate::per_second(2), (keys::ClientAddress::new(), own));
    let app = app(RateLimitLayer::new(
        limits.max_wait(Duration::from_millis(600)),
    ));
    let statuses = async |path: &'static str| {
        let mut asked = Vec::new();
        for _ in 0..4 {
            let mut one = Box::pin(ask(&app, from("192.0.2.1", path)));
            let mut context = Context::from_waker(Waker::noop());
            asked.push(match one.as_mut().poll(&mut context) {
                Poll::Ready(answer) => answer.status,
                // It waits; the next one would have to wait for too long.
                Poll::Pending => 0,
            });
        }
        asked
    };
    // New, known, waiting or refused: in the end all of them are known.
    for round in 1..200 {
        let before = calls.swap(0, Ordering::Relaxed);
        assert!(round == 1 || before == 8, "{before} calls in round {round}");
        let (one, other) = (statuses("/").await, statuses("/users/1").await);
        assert_eq!(
            (&one[..3], one == other),
            (&[200, 200, 0][..], true),
            "{one:?}"
        );
        clock.advance(Duration::from_secs(2));
    }
}
