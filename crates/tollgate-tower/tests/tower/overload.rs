//! The load-shedding layer in front of axum, over sockets. The handler has a fixed number of workers and a latency on a
//! clock that the test moves, so that the outcome of an overload depends on nothing else.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tollgate::ConcurrencyLimiter;
use tollgate::clock::Manual;
use tollgate_adaptive::shed::{Criticality, LoadShedder};
use tollgate_adaptive::{AdaptiveController, Bounds, LimitAlgorithm, Little};
use tollgate_tower::{AcquirePermit, ConcurrencyLimitLayer};

/// Events, in the order in which the test observes them.
enum Event {
    /// A request came to the handler, which answers when the test says so.
    Arrived {
        path: String,
        go: oneshot::Sender<()>,
    },
    /// A client has read its whole answer.
    Answered { answer: String },
}

/// A server and its clients, all in this process.
struct World {
    address: SocketAddr,
    tell: mpsc::UnboundedSender<Event>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Those that the handler works on or that wait for it, oldest first.
    waiting: VecDeque<(String, oneshot::Sender<()>)>,
    refused: Vec<String>,
    done: usize,
}

impl World {
    async fn new<A>(layer: ConcurrencyLimitLayer<A>) -> Self
    where
        A: AcquirePermit<Body, Home: Send + Sync + 'static> + Clone + Send + Sync + 'static,
    {
        let (tell, events) = mpsc::unbounded_channel();
        let handler = {
            let tell = tell.clone();
            move |request: Request<Body>| async move {
                let (go, told) = oneshot::channel();
                let path = request.uri().path().to_owned();
                tell.send(Event::Arrived { path, go }).expect("a test");
                told.await.expect("the test says when");
                "done"
            }
        };
        let app = Router::new().route("/{class}", get(handler)).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            tell,
            events,
            waiting: VecDeque::new(),
            refused: Vec::new(),
            done: 0,
        }
    }

    /// Sends requests, and waits until each has come to the handler or was denied.
    async fn offer(&mut self, path: &'static str, count: usize) {
        let seen = self.waiting.len() + self.refused.len();
        for _ in 0..count {
            let (address, tell) = (self.address, self.tell.clone());
            tokio::spawn(async move {
                let answer = fetch(address, path).await.expect("an answer");
                // The test may be over.
                let _ = tell.send(Event::Answered { answer });
            });
        }
        while self.waiting.len() + self.refused.len() < seen + count {
            self.next().await;
        }
    }

    /// Lets the oldest of them be answered, and waits until their clients have read it.
    async fn serve(&mut self, most: usize) {
        let count = most.min(self.waiting.len());
        let done = self.done + count;
        for (_, go) in self.waiting.drain(..count) {
            go.send(()).expect("a handler");
        }
        while self.done < done {
            self.next().await;
        }
    }

    async fn next(&mut self) {
        let event = tokio::time::timeout(Duration::from_secs(60), self.events.recv());
        match event.await.expect("within a minute").expect("this sends") {
            Event::Arrived { path, go } => self.waiting.push_back((path, go)),
            Event::Answered { answer } if answer.starts_with("HTTP/1.1 200") => self.done += 1,
            Event::Answered { answer } => self.refused.push(answer),
        }
    }
}

async fn fetch(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[track_caller]
fn is_a_refusal(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(
        body.starts_with('{') && body.contains(r#""reason":"shed""#),
        "{answer}"
    );
}

/// When each of those that wait is done, by the tick, if so many workers take a tick for each of them.
#[derive(Default)]
struct Workers {
    finishes: VecDeque<u64>,
    last: [u64; WORKERS],
    begun: usize,
}

const WORKERS: usize = 4;

impl Workers {
    /// So many came at this tick.
    fn take(&mut self, now: u64, count: usize) {
        for _ in 0..count {
            // Whoever has done the last but three is free for this one.
            let free = &mut self.last[self.begun % WORKERS];
            *free = (*free).max(now) + WORKERS as u64;
            self.finishes.push_back(*free);
            self.begun += 1;
        }
    }

    /// How many are done by this tick.
    fn done(&mut self, now: u64) -> usize {
        let count = self.finishes.iter().take_while(|at| **at <= now).count();
        self.finishes.drain(..count);
        count
    }
}

/// Four workers, 10 ms each, and three times as many requests as they can do: by Little's law 1.75 × 4 + 1.5 are best.
#[tokio::test]
async fn under_overload_the_limit_settles_and_what_is_too_much_is_503() {
    const TICKS: usize = 1_500;
    const LAST: usize = 500;
    let clock = Arc::new(Manual::new());
    let law = Little::new(Bounds::new(1.0, 200.0).expect("in order"));
    let controller = AdaptiveController::new(law.initial(40.0).samples(20));
    let limiter = controller.concurrency().clock(Arc::clone(&clock)).build();
    let limiter = Arc::new(limiter);
    let mut world = World::new(ConcurrencyLimitLayer::with_limiter(Arc::clone(&limiter))).await;
    let (mut workers, mut limits) = (Workers::default(), Vec::new());
    for now in 0..TICKS as u64 {
        let done = workers.done(now);
        world.serve(done).await;
        let before = world.waiting.len();
        world.offer("/any", 3).await;
        workers.take(now, world.waiting.len() - before);
        assert_eq!(limiter.peek().in_use as usize, world.waiting.len());
        limits.push(limiter.peek().limit as usize);
        clock.advance(Duration::from_micros(2_500));
    }
    let (first, settled) = limits.split_at(TICKS - LAST);
    assert!(first[0] > 30, "it begins too high: {first:?}");
    let mean = settled.iter().sum::<usize>() / LAST;
    let most = settled.iter().max().copied().unwrap_or_default();
    assert!((5..=12).contains(&mean) && most <= 16, "{settled:?}");
    // One is done each tick but for the first few and while the limit probes, and nothing was lost.
    assert!(world.done > TICKS * 9 / 10, "{} are done", world.done);
    let all = world.done + world.waiting.len() + world.refused.len();
    assert_eq!(all, 3 * TICKS);
    assert!(world.refused.len() > TICKS, "{}", world.refused.len());
    world.refused.iter().for_each(|answer| is_a_refusal(answer));
}

#[tokio::test]
async fn a_critical_request_passes_while_sheddable_ones_are_refused() {
    let limiter = Arc::new(ConcurrencyLimiter::new(10));
    let shedder = Arc::new(LoadShedder::new(Arc::clone(&limiter)));
    let layer =
        ConcurrencyLimitLayer::by_criticality(Arc::clone(&shedder), |request: &Request<Body>| {
            let class = request.uri().path().trim_start_matches('/').parse();
            class.unwrap_or_default()
        });
    let mut world = World::new(layer).await;
    world.offer("/sheddable", 9).await;
    assert_eq!((world.waiting.len(), world.refused.len()), (7, 2));
    world.offer("/default", 4).await;
    assert_eq!((world.waiting.len(), world.refused.len()), (9, 4));
    world.offer("/sheddable", 1).await;
    world.offer("/critical", 1).await;
    assert_eq!((world.waiting.len(), world.refused.len()), (10, 5));
    let (last, _) = world.waiting.back().expect("some wait");
    assert_eq!(last, "/critical");
    world.refused.iter().for_each(|answer| is_a_refusal(answer));
    let shed = Criticality::ALL.map(|class| shedder.shed(class));
    assert_eq!(shed, [3, 2, 0]);
    world.serve(10).await;
    assert_eq!((world.done, limiter.peek().in_use), (10, 0));
    world.offer("/sheddable", 1).await;
    assert_eq!(world.refused.len(), 5, "there is room again");
}
