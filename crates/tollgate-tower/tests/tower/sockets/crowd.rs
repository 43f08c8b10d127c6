//! Ten thousand concurrent connections, from a process of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tollgate::Rate;
use tollgate_tower::{ConcurrencyLimit, RateLimitLayer, RatePerKey, keys};

use super::{Http1, serve, wait_until};

const CLIENTS: usize = 10_000;
/// The environment variable with the address for the clients' process.
const CROWD: &str = "TOLLGATE_TEST_CROWD";

/// Lets this process have as many connections as the system allows it.
fn raise_the_limit_of_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: it writes a limit into the place that it is given.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(got, 0);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: it reads the limit that it is given.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
    let needed = u64::try_from(CLIENTS).expect("a number") + 200;
    assert!(limit.rlim_max >= needed, "ulimit -Hn is below {needed}");
}

/// The status of the next answer.
fn ask(stream: &mut TcpStream, number: usize) -> u16 {
    let request = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut text = Vec::new();
    loop {
        let mut more = [0; 4_096];
        let count = stream.read(&mut more);
        let count = count.unwrap_or_else(|error| panic!("client {number}: {error}"));
        assert!(count > 0, "client {number}: closed");
        text.extend_from_slice(&more[..count]);
        let read = String::from_utf8_lossy(&text);
        let Some((head, body)) = read.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        if body.len() >= length {
            let status = head.split(' ').nth(1).expect("a status");
            return status.parse().expect("a number");
        }
    }
}

/// The process of the clients: without the variable it does nothing.
#[test]
fn clients_of_the_crowd() {
    let Ok(address) = std::env::var(CROWD) else {
        return;
    };
    raise_the_limit_of_files();
    let address: SocketAddr = address.parse().expect("an address");
    let mut clients = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        let stream = TcpStream::connect(address);
        let mut stream = stream.unwrap_or_else(|error| panic!("client {number}: {error}"));
        assert_eq!(ask(&mut stream, number), 200, "client {number}");
        clients.push(stream);
    }
    // All are open, and each has used up what it may have.
    for (number, stream) in clients.iter_mut().enumerate() {
        assert_eq!(ask(stream, number), 429, "client {number}");
    }
    let mut out = std::io::stdout();
    writeln!(out, "\nall are here").expect("written");
    out.flush().expect("written");
    // Until whoever has started this has seen enough.
    let _ = std::io::stdin().read(&mut [0]);
}

fn crowd(address: SocketAddr) -> Child {
    let mut crowd = Command::new(std::env::current_exe().expect("a test that runs"))
        .args([
            "--exact",
            "sockets::crowd::clients_of_the_crowd",
            "--nocapture",
        ])
        .env(CROWD, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process of clients");
    let lines = BufReader::new(crowd.stdout.as_mut().expect("a pipe")).lines();
    let are_here = lines
        .map_while(Result::ok)
        .any(|line| line == "all are here");
    assert!(are_here, "the clients came");
    crowd
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_have_each_its_limit_and_leave_nothing_behind() {
    raise_the_limit_of_files();
    let limits = RatePerKey::new(Rate::per_hour(1), keys::Connection).expect("a rate");
    let slots = ConcurrencyLimit::new(1, keys::Connection);
    let limiter = Arc::clone(slots.limiter());
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(limits))
        .layer(RateLimitLayer::new(slots));
    let served = serve(app).await;
    let address = served.address;
    let crowd = tokio::task::spawn_blocking(move || crowd(address));
    let mut crowd = crowd.await.expect("a crowd");
    // One more is served meanwhile.
    let mut other = Http1::to(&served).await;
    assert_eq!(other.get("/").await.status, 200);
    drop(crowd.stdin.take());
    assert!(crowd.wait().expect("an end").success());
    wait_until("free slots", || limiter.is_empty()).await;
}
