//! Clients that are slow or gone, and requests that wait, on streams in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};

use super::*;
use crate::drain::ShutdownSignal;

const PATIENCE: TimeLimits = TimeLimits {
    idle: Duration::from_secs(600),
    request: Duration::from_secs(10),
    pipeline: 1_000,
};

/// Answers each byte with many, except the last byte, which begins a request.
struct Many;

impl ByteProtocol for Many {
    fn time_limits(&self) -> TimeLimits {
        PATIENCE
    }

    fn begin_batch(&mut self) -> Timestamp {
        Timestamp::ZERO
    }

    async fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> InputProgress {
        if input.len() <= 1 {
            return InputProgress::Incomplete;
        }
        out.extend([b'!'; 100]);
        InputProgress::Answered(1)
    }

    fn record_batch(&mut self, _: Timestamp, _: u64) {}

    fn may_wait(&self) -> bool {
        false
    }

    fn write_timeout(&mut self, out: &mut Vec<u8>) {
        out.extend([b'?'; 100]);
    }

    const ANNOUNCES_CLOSE: bool = false;

    fn announce_close(&mut self) {}

    fn ends_first(&mut self, _: &mut Vec<u8>) {}
}

/// Serves a client that sends these bytes, reads this many, and stays connected. Returns how many seconds it is served,
/// and the bytes it reads.
async fn served(said: &[u8], reads: usize) -> (u64, Vec<u8>) {
    // The stream has room for less than one answer.
    let (mut client, service) = duplex(16);
    let begun = Instant::now();
    let serving = tokio::spawn(serve(
        service,
        Many,
        PATIENCE,
        ShutdownSignal::default().notice(),
    ));
    client.write_all(said).await.expect("written");
    let mut heard = vec![0; reads];
    client.read_exact(&mut heard).await.expect("read");
    // An I/O error needs no report.
    let _ = serving.await.expect("an end");
    (begun.elapsed().as_secs(), heard)
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_is_let_go_whether_it_reads_or_not() {
    assert_eq!(served(b"", 0).await, (600, Vec::new()));
    // An answer that isn't read.
    assert_eq!(served(b"ab", 0).await.0, 10);
    assert_eq!(served(b"ab", 50).await.0, 10);
    // A request that never completes; its error response is read or not.
    assert_eq!(served(b"a", 100).await, (10, vec![b'?'; 100]));
    assert_eq!(served(b"a", 0).await.0, 20);
    let (seconds, heard) = served(b"ab", 200).await;
    assert_eq!((seconds, &heard[99..101]), (10, &b"!?"[..]));
}

/// Answers each byte with a hundred of its kind: `w` after three seconds, and `s` never.
#[derive(Default)]
struct Waiting {
    /// How many requests were answered, as far as they were recorded.
    answered: Arc<AtomicUsize>,
}

impl ByteProtocol for Waiting {
    fn time_limits(&self) -> TimeLimits {
        PATIENCE
    }

    fn begin_batch(&mut self) -> Timestamp {
        Timestamp::ZERO
    }

    async fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> InputProgress {
        let Some(request) = input.first() else {
            return InputProgress::Incomplete;
        };
        // The beginning of an answer, written before the wait, isn't an answer without its end.
        out.push(*request);
        match request {
            b'w' => sleep(Duration::from_secs(3)).await,
            b's' => std::future::pending().await,
            _ => {}
        }
        out.extend([*request; 99]);
        InputProgress::Answered(1)
    }

    fn record_batch(&mut self, _: Timestamp, requests: u64) {
        let requests = usize::try_from(requests).expect("a small number");
        self.answered.fetch_add(requests, Ordering::Relaxed);
    }

    fn may_wait(&self) -> bool {
        true
    }

    fn write_timeout(&mut self, _: &mut Vec<u8>) {}

    const ANNOUNCES_CLOSE: bool = false;

    fn announce_close(&mut self) {}

    fn ends_first(&mut self, out: &mut Vec<u8>) {
        out.extend(b"closed");
    }
}

/// A stream that counts its writes.
struct CountedWrites(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for CountedWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, bytes)
    }
}

impl AsyncWrite for CountedWrites {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(cx, bytes);
        if written.is_ready() {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A client whose requests may wait.
struct Client {
    stream: DuplexStream,
    answered: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
    closing: ShutdownSignal,
    serving: JoinHandle<io::Result<()>>,
}

impl Client {
    /// A client that has sent these bytes, on a stream with this much room.
    async fn saying(said: &[u8], room: usize) -> Self {
        let (mut stream, service) = duplex(room);
        stream.write_all(said).await.expect("written");
        let (protocol, writes, closing) = (
            Waiting::default(),
            Arc::default(),
            ShutdownSignal::default(),
        );
        let answered = Arc::clone(&protocol.answered);
        let service = CountedWrites(service, Arc::clone(&writes));
        let serving = tokio::spawn(serve(service, protocol, PATIENCE, closing.notice()));
        Self {
            stream,
            answered,
            writes,
            closing,
            serving,
        }
    }

    /// Reads the answers to these requests. Returns how many seconds that takes.
    async fn read(&mut self, requests: &str) -> u64 {
        let begun = Instant::now();
        let mut read = vec![0; requests.len() * 100];
        self.stream.read_exact(&mut read).await.expect("read");
        let expected: Vec<_> = requests.bytes().flat_map(|kind| [kind; 100]).collect();
        assert_eq!(String::from_utf8(read), String::from_utf8(expected));
        begun.elapsed().as_secs()
    }

    /// Reads all bytes until the service closes its side.
    async fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest).await.expect("read");
        rest
    }

    fn writes(&self) -> usize {
        self.writes.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_written_before_a_request_behind_them_waits() {
    let mut client = Client::saying(b"aabwcdwe", 10_000).await;
    assert_eq!(client.read("aab").await, 0);
    assert_eq!(client.read("wcd").await, 3);
    assert_eq!(client.read("we").await, 3);
    // Immediate answers leave in one write with their neighbours.
    assert_eq!(client.writes(), 3);
    client.stream.write_all(b"abcd").await.expect("written");
    assert_eq!(client.read("abcd").await, 0);
    assert_eq!(client.writes(), 4);
    assert_eq!(client.answered.load(Ordering::Relaxed), 12);
}

#[tokio::test(start_paused = true)]
async fn answers_keep_their_order_while_they_are_read_slowly() {
    // The stream has room for less than one answer.
    let mut client = Client::saying(b"abwcwd", 16).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(client.read("abwcwd").await, 1);
}

#[tokio::test(start_paused = true)]
async fn who_closes_its_side_gets_the_answers_before_a_request_that_waits() {
    for room in [10_000, 16] {
        let mut client = Client::saying(b"abs", room).await;
        client.stream.shutdown().await.expect("closed");
        assert_eq!(client.read("ab").await, 0);
        assert_eq!(client.rest().await, "");
        assert_eq!(client.answered.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_answers_while_a_request_waits_is_let_go() {
    let client = Client::saying(b"abs", 16).await;
    let begun = Instant::now();
    let ended = timeout(Duration::from_secs(60), client.serving).await;
    let ended = ended.expect("it ends").expect("an end");
    assert_eq!(
        ended.map_err(|error| error.kind()),
        Err(io::ErrorKind::TimedOut)
    );
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_service_is_said_after_the_answers_before_it() {
    let mut client = Client::saying(b"abs", 10_000).await;
    advance(Duration::from_secs(1)).await;
    client.closing.set_stage(Stage::Aborting);
    assert_eq!(client.read("ab").await, 0);
    let closed = client.rest().await;
    assert_eq!(closed, "closed");
}
