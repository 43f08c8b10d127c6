//! A pacer on paused time, and servers to ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::clock::{Clock, Manual, Tokio};
use tollgate::core::WindowAlignment;
use tollgate::{Algorithm, Decision, Limiter, Rate, StoredKeyLimiter, Timestamp};
use tollgate_http::outgoing::{CallPermit, HostPacer, HostPacerBuilder, ServerAdvice};
use tollgate_http::{HeaderDialect, ShownLimit, fields, retry_after};

/// The time that all servers believe it is when a test begins.
pub(crate) const EPOCH: u64 = 1_700_000_000;

pub(crate) type TestPacer = HostPacer<Tokio, Wall>;

/// Seconds since 1970 that go on with tokio's time.
#[derive(Debug)]
pub(crate) struct Wall(Tokio, Timestamp);

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(EPOCH) + (self.0.now() - self.1)
    }
}

pub(crate) fn wall() -> Wall {
    let clock = Tokio::new();
    let begin = clock.now();
    Wall(clock, begin)
}

pub(crate) fn pacer(builder: HostPacerBuilder) -> Arc<TestPacer> {
    Arc::new(builder.build_on(Tokio::new(), wall()).expect("a rate"))
}

/// Tells a pacer an answer with these fields.
pub(crate) fn tell(
    pacer: &TestPacer,
    call: &CallPermit,
    status: u16,
    fields: &[(&str, String)],
) -> ServerAdvice {
    pacer.record_response(call, status, |name| {
        let own = fields.iter().filter(move |(own, _)| *own == name);
        own.map(|(_, value)| value.as_bytes())
    })
}

/// How long it takes to be let through to a host.
pub(crate) async fn time_to_pass(pacer: &TestPacer, host: &str) -> Duration {
    let clock = Tokio::new();
    let before = clock.now();
    pacer.acquire(host).await.expect("a place");
    clock.now() - before
}

/// A server with a limit, which reports it in these dialects.
pub(crate) struct Server {
    limit: Limit,
    dialects: Vec<HeaderDialect>,
    rate: Rate,
    wall: Wall,
    pub(crate) served: AtomicU64,
    pub(crate) refused: AtomicU64,
}

enum Limit {
    Bucket(Box<Limiter<Tokio>>),
    Window(Box<StoredKeyLimiter<u8, Tokio>>),
}

impl Server {
    pub(crate) fn new(algorithm: Algorithm, rate: Rate, dialects: &[HeaderDialect]) -> Arc<Self> {
        let limit = match algorithm {
            Algorithm::Gcra => Limit::Bucket(Box::new(Limiter::with_clock(rate, Tokio::new()))),
            other => {
                let window = StoredKeyLimiter::builder(rate, 1).algorithm(other);
                Limit::Window(Box::new(
                    window.clock(Tokio::new()).build().expect("a rate"),
                ))
            }
        };
        Arc::new(Self {
            limit,
            dialects: dialects.to_vec(),
            rate,
            wall: wall(),
            served: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// What it answers now.
    pub(crate) fn answer(&self) -> (u16, Vec<(&'static str, String)>) {
        let (decision, shown) = self.decide();
        let mut lines = Vec::new();
        let now = self.wall.now().as_nanos() / 1_000_000_000;
        fields::write(&self.dialects, &[shown], now, |name, value| {
            lines.push((name, value.to_owned()));
        });
        let wait = retry_after(&decision);
        lines.extend(wait.map(|seconds| ("retry-after", seconds.to_string())));
        let (status, count) = if decision.is_allowed() {
            (200, &self.served)
        } else {
            (429, &self.refused)
        };
        count.fetch_add(1, Ordering::Relaxed);
        (status, lines)
    }

    fn decide(&self) -> (Decision, ShownLimit<'static>) {
        match &self.limit {
            Limit::Bucket(limiter) => {
                let decision = limiter.check();
                (decision, ShownLimit::of_bucket("a", &decision, self.rate))
            }
            Limit::Window(limiter) => {
                let decision = limiter.check(&0);
                let window = self.rate.period().expect("a window");
                (decision, ShownLimit::of("a", &decision).window(window))
            }
        }
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (count(&self.served), count(&self.refused))
    }
}

pub(crate) const WINDOW: Algorithm = Algorithm::FixedWindow(WindowAlignment::FirstHit);

/// Asks until as many are served; each answer takes this long.
pub(crate) async fn ask(pacer: &TestPacer, server: &Server, served: u64, latency: Duration) {
    let mut done = 0;
    while done < served {
        let call = pacer.acquire("server").await.expect("a place");
        tokio::time::sleep(latency / 2).await;
        let (status, fields) = server.answer();
        tokio::time::sleep(latency / 2).await;
        tell(pacer, &call, status, &fields);
        done += u64::from(status == 200);
    }
}

/// A clock that nothing moves but a test.
pub(crate) fn by_hand(builder: HostPacerBuilder) -> (Arc<HostPacer<Manual, Manual>>, Manual) {
    let clock = Manual::new();
    let pacer = builder.build_on(clock.clone(), clock.clone());
    (Arc::new(pacer.expect("a rate")), clock)
}
