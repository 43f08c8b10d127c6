//! The layer over real sockets, in front of axum and tonic.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

mod crowd;
mod grpc;
mod http1;
mod http2;
mod upgrade;

/// How long something may take that takes no time but on a machine that has none.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A service that listens, until this is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn serve(app: Router) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let task = tokio::spawn(async move {
        axum::serve(listener, service).await.expect("a service");
    });
    Served { address, task }
}

/// A connection of HTTP/1.
pub(crate) struct Http1 {
    stream: TcpStream,
    read: Vec<u8>,
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    text: String,
}

impl Head {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Http1 {
    pub(crate) async fn to(served: &Served) -> Self {
        let stream = TcpStream::connect(served.address).await;
        Self {
            stream: stream.expect("a connection"),
            read: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes()).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("sent");
    }

    pub(crate) async fn get(&mut self, path: &str) -> Head {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n"))
            .await;
        let head = self.head().await;
        if let Some(length) = head.field("content-length") {
            let length = length.parse().expect("a number");
            self.bytes(length).await;
        }
        head
    }

    pub(crate) async fn head(&mut self) -> Head {
        let end = b"\r\n\r\n";
        loop {
            if let Some(at) = self.read.windows(4).position(|four| four == end) {
                let rest = self.read.split_off(at + 4);
                let text = std::mem::replace(&mut self.read, rest);
                let text = String::from_utf8(text).expect("text");
                let status = text.split(' ').nth(1).expect("a status");
                let status = status.parse().expect("a number");
                return Head { status, text };
            }
            self.more().await;
        }
    }

    pub(crate) async fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            self.more().await;
        }
        let rest = self.read.split_off(count);
        std::mem::replace(&mut self.read, rest)
    }

    async fn more(&mut self) {
        let read = tokio::time::timeout(LONG, self.stream.read_buf(&mut self.read));
        let count = read.await.expect("in time").expect("bytes");
        assert!(
            count > 0,
            "closed after {:?}",
            String::from_utf8_lossy(&self.read)
        );
    }
}

/// Waits until this is so, and panics if that takes too long.
pub(crate) async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(LONG, wait).await;
    waited.unwrap_or_else(|_| panic!("{what} took too long"));
}
