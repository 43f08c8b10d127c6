//! Shutdown under load: every decision is answered, on every protocol, and no client sees half an answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::{JoinHandle, JoinSet};
use tollgate::clock::{Clock, Monotonic};
use tollgate_server::{DrainOutcome, DrainSettings, Server};
use tollgate_testkit::redis::wait_until;

use crate::kit::{Client, Running};
use crate::rls_client::{Grpc, SHOULD, framed};

/// The error for waiting requests.
const ENDS: &str = "the service ends before it is the request's turn: ask again";

const LONG: Duration = Duration::from_secs(60);

/// One limit that all protocols spend of.
const POLICY: &str = "limits: [{name: all, key: user, quota: 1000000000/day}]";
const QUOTA: u64 = 1_000_000_000;
/// Of each client of HTTP, of RESP and of Envoy.
const USERS: [&str; 3] = ["ada", "bob", "cyd"];
const BODY: &str = r#"{"facts": {"user": "ada"}}"#;
const COMMAND: &str = "TG.CHECK user=bob\r\n";
const MESSAGE: &[u8] = b"\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x04user\x12\x03cyd";

/// Lines of an answer to `TG.CHECK`.
const LINES: usize = 22;
/// Requests that are sent before an answer is read.
const PIPELINE: usize = 30;

fn post(path: &str) -> String {
    let length = BODY.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{BODY}"
    )
}

/// A service that a test ends, and where it listens.
struct Ending {
    running: Running,
    server: Server,
    http: SocketAddr,
    resp: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
}

fn start(policy: &str) -> Ending {
    ending(Running::new(policy, |_| {}))
}

fn ending(mut running: Running) -> Ending {
    let (http, resp, grpc, admin) = (
        running.http_address(),
        running.resp_address(),
        running.grpc(),
        running.admin_address(),
    );
    Ending {
        server: running.server.take().expect("a service"),
        running,
        http,
        resp,
        grpc,
        admin,
    }
}

/// The same in still time: nobody is too slow for what it gives them, and it ends as time is let pass.
fn start_still(policy: &str) -> Ending {
    ending(Running::in_still_time(policy, |_| {}))
}

/// Begins to end a service in still time.
fn begin_still(
    running: &Running,
    server: Server,
    drain: DrainSettings,
) -> JoinHandle<DrainOutcome> {
    running.spawn_in_its_time(server.drain(drain))
}

/// Lets time pass while something is done.
fn while_time_passes<T>(running: &Running, doing: impl FnOnce() -> T) -> T {
    /// That it is done, also if it fails.
    struct Done<'a>(&'a AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                running.pass(Duration::from_millis(100));
            }
        });
        let done = Done(&is_done);
        let what = doing();
        drop(done);
        what
    })
}

/// Begins to end it.
fn begin(running: &Running, server: Server, drain: DrainSettings) -> JoinHandle<DrainOutcome> {
    running.spawn(server.drain(drain))
}

const SOON: DrainSettings = DrainSettings {
    delay: Duration::ZERO,
    timeout: LONG,
};

/// How many were cut in the end.
fn end(running: &Running, ending: JoinHandle<DrainOutcome>) -> usize {
    let drained = running.block_on(async { tokio::time::timeout(LONG, ending).await });
    drained.expect("an end in time").expect("no panic").aborted
}

/// The number of complete HTTP responses, and whether the last announces the close; `None` if one is incomplete.
fn answers_of_http(mut bytes: &[u8]) -> Option<(usize, bool)> {
    let (mut count, mut is_last) = (0, false);
    while !bytes.is_empty() {
        assert!(!is_last, "an answer after the last");
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let text = std::str::from_utf8(&bytes[..head]).expect("text");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        let mut lines = text.lines();
        let length = lines.find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length?.parse().expect("a number");
        is_last = text.contains("\r\nconnection: close");
        bytes = bytes.get(head + 4 + length..)?;
        count += 1;
    }
    Some((count, is_last))
}

/// The same of RESP, where no answer can say so.
fn answers_of_resp(bytes: &[u8]) -> Option<(usize, bool)> {
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    let is_whole = lines.is_multiple_of(LINES) && (bytes.is_empty() || bytes.ends_with(b"\r\n"));
    is_whole.then_some((lines / LINES, false))
}

/// A client that a busy machine kept from running for so long may say something to a service that has waited for it, and
/// is gone: the system resets that. All who come sooner find an end.
const KEPT_AWAY: Duration = Duration::from_millis(250);

/// Asks in pipelines until the service closes: how many were answered.
fn ask(
    address: SocketAddr,
    request: &str,
    answers: fn(&[u8]) -> Option<(usize, bool)>,
    all: &AtomicU64,
) -> u64 {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    let pipeline = request.repeat(PIPELINE);
    let (mut answered, mut heard, mut bytes) = (0, Vec::new(), [0; 16_384]);
    let clock = Monotonic::default();
    let mut reported_at = clock.now();
    loop {
        // It may be closed; what was answered before is read still.
        let written = stream.write_all(pipeline.as_bytes());
        loop {
            let read = match stream.read(&mut bytes) {
                Err(error)
                    if error.kind() == ErrorKind::ConnectionReset
                        && clock.now() - reported_at > KEPT_AWAY =>
                {
                    0
                }
                read => read.expect("an end, and no reset"),
            };
            reported_at = clock.now();
            heard.extend_from_slice(&bytes[..read]);
            match answers(&heard) {
                None if read == 0 => {
                    panic!("half an answer: {:?}", heard.escape_ascii().to_string())
                }
                Some((count, is_last)) if count == PIPELINE || is_last || read == 0 => {
                    answered += u64::try_from(count).expect("a number");
                    all.fetch_add(u64::try_from(count).expect("a number"), Ordering::Relaxed);
                    heard.clear();
                    if is_last {
                        assert_eq!(
                            stream.read(&mut bytes).expect("an end"),
                            0,
                            "nothing after the last"
                        );
                    }
                    if is_last || read == 0 {
                        return answered;
                    }
                    break;
                }
                _ => {}
            }
        }
        written.expect("written, as all was answered");
    }
}

/// Sends calls on many streams until the service sends GOAWAY: how many were answered.
async fn call(address: SocketAddr, all: Arc<AtomicU64>) -> u64 {
    let stream = tokio::net::TcpStream::connect(address).await;
    let handshake = h2::client::handshake(stream.expect("a connection"));
    let (client, connection) = handshake.await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let (mut calls, mut answered) = (JoinSet::new(), 0);
    let mut is_open = true;
    while is_open || !calls.is_empty() {
        is_open = is_open && begin_call(client.clone(), &mut calls).await;
        if calls.len() < PIPELINE && is_open {
            continue;
        }
        match calls.join_next().await.expect("a call").expect("no panic") {
            Ok(status) => {
                assert_eq!(status, b"0");
                answered += 1;
                all.fetch_add(1, Ordering::Relaxed);
            }
            // Nothing was done about it, and it may be asked elsewhere.
            Err(error) => assert!(
                error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR),
                "{error:?}"
            ),
        }
    }
    connection
        .await
        .expect("no panic")
        .expect("a goodbye, and no reset");
    answered
}

/// Whether one more call could be begun.
async fn begin_call(
    client: h2::client::SendRequest<Bytes>,
    calls: &mut JoinSet<Result<Vec<u8>, h2::Error>>,
) -> bool {
    let Ok(mut client) = client.ready().await else {
        return false;
    };
    let asked = http::Request::post(format!("http://service{SHOULD}"))
        .header("content-type", "application/grpc")
        .body(())
        .expect("a request");
    let Ok((response, mut send)) = client.send_request(asked, false) else {
        return false;
    };
    calls.spawn(async move {
        send.send_data(framed(MESSAGE), true)?;
        let mut body = response.await?.into_body();
        while let Some(bytes) = body.data().await {
            bytes?;
        }
        let trailers = body.trailers().await?.expect("an end with a status");
        Ok(trailers["grpc-status"].as_bytes().to_vec())
    });
    true
}

#[test]
fn all_that_was_decided_is_answered_on_every_protocol() {
    let Ending {
        running,
        server,
        http,
        resp,
        grpc,
        ..
    } = start(POLICY);
    // What each was answered so far.
    let counts: [Arc<AtomicU64>; 9] = Default::default();
    // One that is in the middle of its request, and will tell what was spent by all others.
    let mut witness = Client::to(http);
    let question = post("/v1/peek");
    let (half, rest) = question.split_at(80);
    witness.0.write_all(half.as_bytes()).expect("written");
    let mut threads = Vec::new();
    for number in 0..3 {
        let own = Arc::clone(&counts[number]);
        threads.push(std::thread::spawn(move || {
            ask(http, &post("/v1/check"), answers_of_http, &own)
        }));
        let own = Arc::clone(&counts[3 + number]);
        threads.push(std::thread::spawn(move || {
            ask(resp, COMMAND, answers_of_resp, &own)
        }));
    }
    let calls = [6, 7, 8].map(|number| running.spawn(call(grpc, Arc::clone(&counts[number]))));
    wait_until(LONG, "some load by each", || {
        let mut all = counts.iter();
        all.all(|count| count.load(Ordering::Relaxed) > 300)
    });
    let ending = begin(&running, server, SOON);
    let mut answered = [0; 3];
    for (number, thread) in threads.into_iter().enumerate() {
        let own = thread.join().expect("no panic");
        assert!(own > 0, "each was served");
        answered[number % 2] += own;
    }
    for call in calls {
        answered[2] += running.block_on(call).expect("no panic");
    }
    let others = [1, 2].map(|user| question.replace(USERS[0], USERS[user]));
    let rest = rest.to_owned() + &others.concat();
    witness.0.write_all(rest.as_bytes()).expect("written");
    let told = witness.rest();
    assert_eq!(answers_of_http(told.as_bytes()), Some((3, true)));
    let left = told
        .split("\"remaining\":")
        .skip(1)
        .filter_map(|text| text.split(',').next());
    let spent = left.map(|left| QUOTA - left.parse::<u64>().expect("a number"));
    assert_eq!(
        spent.collect::<Vec<_>>(),
        answered,
        "what was decided, and what was answered"
    );
    assert_eq!(end(&running, ending), 0);
    TcpStream::connect(http).expect_err("nobody listens");
}

#[test]
fn who_rests_is_let_go_and_who_has_just_come_is_answered() {
    let own = start_still(POLICY);
    let (mut http, mut resp) = (Client::to(own.http), Client::to(own.resp));
    resp.expect("PING\r\n", "+PONG\r\n");
    let (mut late, mut late_resp) = (Client::to(own.http), Client::to(own.resp));
    let ending = begin_still(&own.running, own.server, SOON);
    // Those who have said nothing are given a moment, which isn't over yet.
    let question = post("/v1/check");
    late.0.write_all(question.as_bytes()).expect("written");
    late_resp.expect("PING\r\n", "+PONG\r\n");
    let mut heard = Vec::new();
    while answers_of_http(&heard).is_none_or(|(count, _)| count == 0) {
        let mut byte = [0];
        late.0.read_exact(&mut byte).expect("an answer");
        heard.extend(byte);
    }
    while_time_passes(&own.running, || {
        for client in [&mut http, &mut resp, &mut late, &mut late_resp] {
            assert_eq!(client.rest(), "");
        }
        assert_eq!(end(&own.running, ending), 0);
    });
}

#[test]
fn probes_are_told_first_and_clients_are_still_taken() {
    let own = start_still(POLICY);
    let mut client = Grpc::at(&own.running, own.grpc);
    let check = "/grpc.health.v1.Health/Check";
    assert_eq!(client.call(check, b""), Ok(vec![8, 1]));
    let (response, mut send) = client.begin("/grpc.health.v1.Health/Watch");
    send.send_data(framed(b""), true).expect("sent");
    let response = own.running.block_on(response).expect("an answer");
    let mut watch = response.into_body();
    let hear = |watch: &mut h2::RecvStream| own.running.block_on(watch.data()).and_then(Result::ok);
    assert_eq!(hear(&mut watch), Some(framed(&[8, 1])));
    let drain = DrainSettings {
        delay: Duration::from_secs(3),
        timeout: LONG,
    };
    let ending = begin_still(&own.running, own.server, drain);
    assert_eq!(hear(&mut watch), Some(framed(&[8, 2])), "not serving");
    assert_eq!(client.call(check, b""), Ok(vec![8, 2]));
    // New clients are answered, and those of HTTP asked to come back elsewhere.
    let mut late = Client::to(own.http);
    let question = post("/v1/check");
    late.0.write_all(question.as_bytes()).expect("written");
    assert_eq!(answers_of_http(&late.bytes()), Some((1, true)));
    let mut late = Client::to(own.resp);
    late.expect("PING\r\n", "+PONG\r\n");
    late.expect("PING\r\n", "+PONG\r\n");
    // Then nobody watches any more.
    while_time_passes(&own.running, || {
        assert_eq!(hear(&mut watch), None);
        let trailers = own.running.block_on(watch.trailers());
        let trailers = trailers.expect("an end").expect("a status");
        assert_eq!(trailers["grpc-status"], "14");
        assert_eq!(late.rest(), "");
        drop((client, watch));
        assert_eq!(end(&own.running, ending), 0);
    });
}

#[test]
fn who_waits_for_its_turn_is_told_before_the_time_is_over() {
    let policy = "limits: [{name: slow, key: user, rate: 1/h, over: wait 9h}]";
    let own = start_still(policy);
    let (mut http, mut resp) = (Client::to(own.http), Client::to(own.resp));
    let fields = "content-type: application/json\r\n";
    let (status, _) = Client::to(own.http).request("POST", "/v1/check", fields, BODY);
    assert_eq!(status, 200);
    let question = post("/v1/check");
    http.0.write_all(question.as_bytes()).expect("written");
    let commands = b"PING\r\nTG.CHECK user=ada\r\n";
    resp.0.write_all(commands).expect("written");
    let mut client = Grpc::at(&own.running, own.grpc);
    assert!(client.call(SHOULD, MESSAGE).is_ok(), "the first");
    let (response, mut send) = client.begin(SHOULD);
    send.send_data(framed(MESSAGE), true).expect("sent");
    wait_until(LONG, "all three to wait", || {
        let (_, told) = Client::to(own.admin).request("GET", "/metrics", "", "");
        told.contains("\ntollgate_waiters 3\n")
    });
    let drain = DrainSettings {
        delay: Duration::ZERO,
        timeout: Duration::from_secs(2),
    };
    let ending = begin_still(&own.running, own.server, drain);
    // Nearly all of its time, and no more: however long it takes to read the answers, nobody is cut off meanwhile.
    for _ in 0..19 {
        own.running.pass(Duration::from_millis(100));
    }
    let failed = client.answer(response).expect_err("no answer");
    assert_eq!((failed.code, failed.why.as_str()), (14, ENDS));
    let told = http.rest();
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    assert!(told.contains(ENDS), "{told}");
    assert_eq!(resp.rest(), format!("+PONG\r\n-UNAVAILABLE {ENDS}\r\n"));
    drop(client);
    assert_eq!(end(&own.running, ending), 0);
}

#[test]
fn who_never_reads_is_cut_when_the_time_is_over() {
    let own = start(POLICY);
    let stuck = Client::to(own.resp);
    let brief = Some(Duration::from_millis(300));
    stuck.0.set_write_timeout(brief).expect("a timeout");
    let pipeline = COMMAND.repeat(1_000);
    // Nothing is taken ten times in a row: it isn't that the service is slow.
    let (mut at, mut in_vain) = (0, 0);
    while in_vain < 10 {
        match (&stuck.0).write(&pipeline.as_bytes()[at..]) {
            Ok(written) => (at, in_vain) = ((at + written) % pipeline.len(), 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => in_vain += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let drain = DrainSettings {
        delay: Duration::ZERO,
        timeout: Duration::from_secs(1),
    };
    let ending = begin(&own.running, own.server, drain);
    assert_eq!(end(&own.running, ending), 1);
}
