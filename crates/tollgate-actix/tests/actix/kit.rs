//! A server on a free port, a client by hand, and a clock that tests move.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{ServerHandle, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::{App, Error, HttpServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate};
use tollgate_actix::{KeyExtractor, RatePerKey, RequestHead};

/// Long enough for any machine, however busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on a system of actix.
pub(crate) fn run(test: impl Future<Output = ()>) {
    actix_web::rt::System::new().block_on(test);
}

/// A server with two workers.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    handle: ServerHandle,
}

impl Server {
    pub(crate) fn start<F, T, B>(app: F) -> Self
    where
        F: Fn() -> App<T> + Send + Clone + 'static,
        T: ServiceFactory<
                ServiceRequest,
                Config = (),
                Response = ServiceResponse<B>,
                Error = Error,
                InitError = (),
            > + 'static,
        B: MessageBody + 'static,
    {
        let server = HttpServer::new(app).workers(2).disable_signals();
        // A client that is gone ends what is done for it.
        let server = server.h1_allow_half_closed(false);
        let server = server.bind(("127.0.0.1", 0)).expect("a port");
        let address = server.addrs()[0];
        let running = server.run();
        let handle = running.handle();
        actix_web::rt::spawn(running);
        Self { address, handle }
    }

    pub(crate) async fn stop(self) {
        self.handle.stop(false).await;
    }

    pub(crate) async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).await;
        Client(stream.expect("a connection"))
    }

    /// Asks on a connection of its own.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, "").await
    }

    /// The same with more header fields.
    pub(crate) async fn get_with(&self, path: &str, lines: &str) -> Answer {
        self.connect().await.get_with(path, lines).await
    }
}

pub(crate) struct Client(pub(crate) TcpStream);

/// What a client read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }
}

impl Client {
    pub(crate) async fn send(&mut self, path: &str, lines: &str) {
        let head = format!("GET {path} HTTP/1.1\r\nhost: app\r\n{lines}\r\n");
        self.0
            .write_all(head.as_bytes())
            .await
            .expect("it takes it");
    }

    /// Asks, and reads an answer whose body has a length.
    pub(crate) async fn get_with(&mut self, path: &str, lines: &str) -> Answer {
        self.send(path, lines).await;
        let head = self.head().await;
        let mut answer = Answer {
            status: head[9..12].parse().expect("a status"),
            head,
            body: String::new(),
        };
        let length = answer
            .field("content-length")
            .map_or(0, |length| length.parse().expect("a length"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.expect("a body");
        answer.body = String::from_utf8(body).expect("text");
        answer
    }

    /// Reads to the end of a head, and no further.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("a head"));
        }
        String::from_utf8(head).expect("text")
    }
}

/// A rate for each key on a clock that stands still.
pub(crate) fn per_key<K: KeyExtractor<RequestHead>>(
    rate: Rate,
    key: K,
) -> (RatePerKey<K, Manual>, Manual) {
    let clock = Manual::new();
    let limiter = KeyedLimiter::builder(rate, 1_000).clock(clock.clone());
    let limiter = limiter.build().expect("a rate");
    (RatePerKey::with_limiter(Arc::new(limiter), key), clock)
}

/// Waits until something is so.
pub(crate) async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let looks = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, looks).await;
    assert!(waited.is_ok(), "{what}: not in {PATIENCE:?}");
}
