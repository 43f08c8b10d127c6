//! A client that learns how many concurrent calls a slow HTTP server can take, and doesn't send more.
//!
//! The server, on loopback, answers four calls at a time in 5 ms each and queues the rest. 60 tasks call it as fast
//! as they can. The limit starts at 60 and falls to about what the server can take: as many calls are answered as
//! before, in a fraction of the time each. tokio's time is paused and advances when all tasks wait, so the program is
//! quicker than the times it prints.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tollgate::clock::Tokio;
use tollgate_adaptive::{AdaptiveController, Bounds, LimitAlgorithm, Little};

type BoxError = Box<dyn std::error::Error>;

const CALLS: u32 = 5_000;
const PHASE_COUNT: usize = 5;
const TASKS: u32 = 60;

/// Answers calls with 200, four at a time and 5 ms each.
async fn serve(listener: TcpListener) {
    let workers = Arc::new(Semaphore::new(4));
    while let Ok((mut socket, _)) = listener.accept().await {
        let workers = Arc::clone(&workers);
        tokio::spawn(async move {
            let mut request = [0; 1_024];
            while socket.read(&mut request).await.is_ok_and(|read| read > 0) {
                let Ok(_worker) = workers.acquire().await else {
                    return;
                };
                tokio::time::sleep(Duration::from_millis(5)).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                if socket.write_all(answer).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// One call on an open connection. Returns whether the status was 200.
async fn call(socket: &mut TcpStream) -> Result<bool, std::io::Error> {
    socket
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await?;
    let mut answer = [0; 256];
    let read = socket.read(&mut answer).await?;
    Ok(answer[..read].starts_with(b"HTTP/1.1 200"))
}

/// The measurements of a series of calls.
#[derive(Default)]
struct LoadPhase {
    calls: u32,
    latency: Duration,
    limits: u32,
    ended: Duration,
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener));

    let law = Little::new(Bounds::new(1.0, 100.0)?).initial(60.0);
    let limiter = AdaptiveController::new(law)
        .concurrency()
        .clock(Tokio::new());
    let limiter = Arc::new(limiter.build());
    let sent = Arc::new(AtomicU32::new(0));
    let seen: Arc<Mutex<[LoadPhase; PHASE_COUNT]>> = Arc::default();
    let began = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limiter, sent, seen) = (limiter.clone(), sent.clone(), seen.clone());
            tokio::spawn(async move {
                let mut socket = TcpStream::connect(address).await?;
                while sent.fetch_add(1, Ordering::Relaxed) < CALLS {
                    // Waits for a permit; a server that sheds load would use `try_acquire`.
                    let permit = limiter.acquire().await.map_err(std::io::Error::other)?;
                    let started = Instant::now();
                    match call(&mut socket).await {
                        Ok(true) => permit.success(),
                        Ok(false) | Err(_) => permit.dropped(),
                    }
                    let mut seen = seen.lock().map_err(|_| std::io::ErrorKind::Other)?;
                    let done: u32 = seen.iter().map(|stretch| stretch.calls).sum();
                    let stretch = &mut seen[(done / (CALLS / PHASE_COUNT as u32)) as usize];
                    stretch.calls += 1;
                    stretch.latency += started.elapsed();
                    stretch.limits += limiter.peek().limit;
                    stretch.ended = began.elapsed();
                }
                Ok::<_, std::io::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }

    println!("{CALLS} calls by {TASKS} tasks; the server answers 4 at once, 5 ms each:");
    println!("  calls  mean limit  mean latency  answered a second");
    let seen = seen.lock().map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    let mut before = Duration::ZERO;
    for stretch in &*seen {
        let calls = f64::from(stretch.calls);
        let limit = f64::from(stretch.limits) / calls;
        let latency = stretch.latency.as_secs_f64() * 1_000.0 / calls;
        let rate = calls / (stretch.ended - before).as_secs_f64();
        before = stretch.ended;
        println!(
            "  {:5}  {limit:10.1}  {latency:9.1} ms  {rate:17.0}",
            stretch.calls
        );
        rows.push((limit, latency, rate));
    }
    let (first, last) = (rows[0], rows[PHASE_COUNT - 1]);
    let stats = limiter.stats();
    assert_eq!(stats.succeeded, u64::from(CALLS));
    assert!(
        (3.0..20.0).contains(&last.0),
        "four are served at once: {}",
        last.0
    );
    assert!(last.1 < first.1 / 2.0, "calls queue less: {} ms", last.1);
    // Probes, moments with few calls, make the runs differ.
    assert!(last.2 > first.2 / 2.0, "they are answered: {}", last.2);
    Ok(())
}
