//! A client that finds out how many calls at once a slow HTTP server can take, and doesn't send it more.
//!
//! The server, on loopback, answers four calls at once after 5 ms each and queues the rest. 60 tasks call it as fast as
//! they may; the limit starts at 60 and falls to about what the server can take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tollgate::adaptive::{Bounds, Controller, Little};

type Failed = Box<dyn std::error::Error>;

const CALLS: u32 = 3_000;
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

/// One call on an open connection; whether it was answered with 200.
async fn call(socket: &mut TcpStream) -> Result<bool, std::io::Error> {
    socket
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await?;
    let mut answer = [0; 256];
    let read = socket.read(&mut answer).await?;
    Ok(answer[..read].starts_with(b"HTTP/1.1 200"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener));

    let law = Little::new(Bounds::new(1.0, 100.0)?).initial(60.0);
    let controller = Controller::new(law);
    let limiter = Arc::new(controller.concurrency().build());
    let sent = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limiter, sent) = (Arc::clone(&limiter), Arc::clone(&sent));
            tokio::spawn(async move {
                let mut socket = TcpStream::connect(address).await?;
                while sent.fetch_add(1, Ordering::Relaxed) < CALLS {
                    // Waits for a place; a server that turns callers away would use `try_acquire`.
                    let permit = limiter.acquire().await.map_err(std::io::Error::other)?;
                    match call(&mut socket).await {
                        Ok(true) => permit.success(),
                        Ok(false) | Err(_) => permit.dropped(),
                    }
                }
                Ok::<_, std::io::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    println!(
        "{CALLS} calls by {TASKS} tasks: the limit began at 60, and is {:.0} (four are served at once)",
        controller.limit()
    );
    Ok(())
}
