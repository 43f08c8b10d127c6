//! A client of reqwest and a real server on a loopback port, which both read a clock that tests move.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error};
use tokio::net::TcpListener;
use tollgate::clock::{Clock, Manual};
use tollgate::{KeyedLimiter, Rate, Timestamp};
use tollgate_reqwest::{
    HostPacer, HostPacerBuilder, MaxWait, PaceError, PaceMiddleware, pace_error,
};
use tollgate_tower::{RateLimitLayer, RatePerKey, ResponseFormat, keys};

const SECOND: Duration = Duration::from_secs(1);

/// A client and its requests.
struct World {
    client: ClientWithMiddleware,
    pacer: Arc<HostPacer<Manual, Manual>>,
    url: String,
    clock: Manual,
    refused: Arc<AtomicU32>,
}

impl World {
    /// Serves at this rate, for a client with this pace.
    async fn new(
        server: Rate,
        answers: ResponseFormat,
        builder: HostPacerBuilder,
        retries: u32,
    ) -> Self {
        let clock = Manual::starting_at(Timestamp::from_secs(1_700_000_000));
        let limiter = KeyedLimiter::builder(server, 100).clock(clock.clone());
        let limits = RatePerKey::with_limiter(
            Arc::new(limiter.build().expect("a rate")),
            keys::ClientAddress::new(),
        );
        let refused = Arc::new(AtomicU32::new(0));
        let count = {
            let refused = Arc::clone(&refused);
            axum::middleware::map_response(move |response: axum::response::Response| {
                if response.status() == StatusCode::TOO_MANY_REQUESTS {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                std::future::ready(response)
            })
        };
        let app = Router::new()
            .route(
                "/",
                get(|| async { "hello" }).post(|body: String| async { body }),
            )
            .layer(RateLimitLayer::new(limits).response_format(answers))
            .layer(count);
        let url = serve(app).await;
        let pacer = builder.build_on(clock.clone(), clock.clone());
        let pacer = Arc::new(pacer.expect("a rate"));
        let client = ClientBuilder::new(reqwest::Client::new());
        let client = client.with(PaceMiddleware::with_pacer(Arc::clone(&pacer)).retries(retries));
        Self {
            client: client.build(),
            pacer,
            url,
            clock,
            refused,
        }
    }

    /// Asks, and moves the time while the call waits for it.
    async fn get(&self) -> Result<u16, Error> {
        let answer = self.client.get(&self.url).send();
        Ok(self.moving(answer).await?.status().as_u16())
    }

    /// Moves the time while somebody waits for it, until this ends.
    async fn moving<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        loop {
            let looked = tokio::time::timeout(Duration::from_millis(1), future.as_mut()).await;
            if let Ok(done) = looked {
                return done;
            }
            if self.clock.parked() > 0 {
                self.clock.advance(Duration::from_millis(250));
            }
        }
    }

    fn refused(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}/")
}

fn generous() -> HostPacerBuilder {
    HostPacer::builder(Rate::per_second(1_000)).max_wait(600 * SECOND)
}

#[tokio::test]
async fn who_honours_retry_after_gets_through_without_a_second_refusal() {
    // The server says nothing but when to come back.
    let quiet = ResponseFormat::new().dialects([]);
    for burst in [1, 3, 10] {
        let world = World::new(
            Rate::per_minute(6).burst(burst),
            quiet.clone(),
            generous(),
            1,
        )
        .await;
        for _ in 0..burst {
            assert_eq!(world.get().await.expect("an answer"), 200);
        }
        assert_eq!(world.refused(), 0);
        let before = world.clock.now();
        // Refused once, and made again when it may be.
        assert_eq!(world.get().await.expect("an answer"), 200);
        assert_eq!(world.refused(), 1);
        assert!(world.clock.now() - before >= 9 * SECOND, "it waited");
    }
}

#[tokio::test]
async fn who_is_told_what_is_left_is_not_refused_at_all() {
    let world = World::new(
        Rate::per_second(5).burst(10),
        ResponseFormat::new(),
        generous(),
        0,
    )
    .await;
    for _ in 0..40 {
        assert_eq!(world.get().await.expect("an answer"), 200);
    }
    assert_eq!(world.refused(), 0);
}

#[tokio::test]
async fn a_refusal_is_handed_on_if_nobody_asks_again() {
    let quiet = ResponseFormat::new().dialects([]);
    let world = World::new(Rate::per_minute(1), quiet, generous(), 0).await;
    assert_eq!(world.get().await.expect("an answer"), 200);
    assert_eq!(world.get().await.expect("an answer"), 429);
    // The next one waits until it may.
    assert_eq!(world.get().await.expect("an answer"), 200);
    assert_eq!(world.refused(), 1);
}

#[tokio::test]
async fn a_call_that_would_wait_for_too_long_fails_or_keeps_its_refusal() {
    let quiet = ResponseFormat::new().dialects([]);
    let world = World::new(Rate::per_minute(1), quiet, generous(), 3).await;
    assert_eq!(world.get().await.expect("an answer"), 200);
    let hasty = || {
        let request = world.client.post(&world.url).body("once");
        request.with_extension(MaxWait(SECOND)).send()
    };
    let refusal = world.moving(hasty()).await.expect("an answer");
    assert_eq!(refusal.status().as_u16(), 429);
    let before = world.clock.now();
    let error = world.moving(hasty()).await.expect_err("it isn't made");
    assert_eq!(world.clock.now(), before, "nobody waited");
    match pace_error(&error) {
        Some(PaceError::WaitTooLong { wait, patience, .. }) => {
            assert_eq!((*wait, *patience), (60 * SECOND, SECOND));
        }
        other => panic!("{other:?}: {error}"),
    }
    // A body is sent again as it was.
    let answer = world.moving(world.client.post(&world.url).body("twice").send());
    assert_eq!(
        answer
            .await
            .expect("an answer")
            .text()
            .await
            .expect("a body"),
        "twice"
    );
}

#[tokio::test]
async fn a_call_that_is_dropped_frees_its_place() {
    let own = HostPacer::builder(Rate::per_minute(1).burst(1)).max_wait(600 * SECOND);
    let world = World::new(Rate::per_second(1_000), ResponseFormat::new(), own, 0).await;
    assert_eq!(world.get().await.expect("an answer"), 200);
    for _ in 0..10 {
        let call = world.client.get(&world.url).send();
        let looked = tokio::time::timeout(Duration::from_millis(1), call).await;
        assert!(looked.is_err(), "a minute hasn't passed");
        assert_eq!(world.pacer.waiting(), 0);
    }
    let before = world.clock.now();
    assert_eq!(world.get().await.expect("an answer"), 200);
    assert_eq!(world.clock.now() - before, 60 * SECOND);
}

/// Headers that no decent server sends.
#[tokio::test]
async fn a_hostile_server_stops_nobody_for_long() {
    let huge = || async {
        let retry_after = [
            ("retry-after", "99999999999999"),
            ("ratelimit", "\"a\";r=0;t=99999999999"),
        ];
        (StatusCode::TOO_MANY_REQUESTS, retry_after).into_response()
    };
    let url = serve(Router::new().route("/", get(huge))).await;
    let most = generous().max_stop(30 * SECOND);
    let mut world = World::new(Rate::per_second(1), ResponseFormat::new(), most, 0).await;
    world.url = url;
    for turn in 0..4 {
        let before = world.clock.now();
        assert_eq!(world.get().await.expect("an answer"), 429);
        let waited = world.clock.now() - before;
        assert!(waited <= 30 * SECOND, "{waited:?} in turn {turn}");
    }
}
