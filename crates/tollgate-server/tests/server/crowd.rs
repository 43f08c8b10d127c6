//! Ten thousand concurrent clients, in a process of their own: the cost of a connection to the service.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use tollgate_testkit::allocation_counter::{held_bytes, is_isolated};

use crate::hostile::{POLICY, others_are_served};
use crate::kit::Running;
use crate::rls_client::{Grpc, SHOULD};

/// As many as a service takes of each protocol by default.
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

/// The first bytes of each client, and the length of the answer that it reads.
fn greeting(protocol: &str) -> (Vec<u8>, usize) {
    let http = "POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: 24\r\n\r\n{\"facts\":{\"user\":\"ada\"}}";
    match protocol {
        "resp" => (b"TG.CHECK user=ada\r\n".to_vec(), 100),
        "http" => (http.as_bytes().to_vec(), 200),
        // The first words of HTTP/2, and empty settings: those of the service, and that it has read these.
        _ => {
            let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            ([&preface[..], &settings].concat(), 27)
        }
    }
}

/// The process of the clients: without the variable it does nothing.
#[test]
fn clients_of_the_crowd() {
    let Ok(asked) = std::env::var(CROWD) else {
        return;
    };
    raise_the_limit_of_files();
    let (protocol, address) = asked.split_once('=').expect("a protocol and an address");
    let address: SocketAddr = address.parse().expect("an address");
    let (say, length) = greeting(protocol);
    let mut clients = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        let stream = TcpStream::connect(address);
        let mut stream = stream.unwrap_or_else(|error| panic!("client {number}: {error}"));
        stream.write_all(&say).expect("written");
        let read = stream.read_exact(&mut vec![0; length]);
        read.unwrap_or_else(|error| panic!("client {number}: {error}"));
        clients.push(stream);
    }
    let mut out = std::io::stdout();
    writeln!(out, "\nall are here").expect("written");
    out.flush().expect("written");
    // Until whoever has started this has seen enough.
    let _ = std::io::stdin().read(&mut [0]);
}

fn crowd(protocol: &str, address: SocketAddr) -> Child {
    let mut crowd = Command::new(std::env::current_exe().expect("a test that runs"))
        .args(["--exact", "crowd::clients_of_the_crowd", "--nocapture"])
        .env(CROWD, format!("{protocol}={address}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process of clients");
    let lines = BufReader::new(crowd.stdout.as_mut().expect("a pipe")).lines();
    let are_here = lines
        .map_while(Result::ok)
        .any(|line| line == "all are here");
    assert!(are_here, "the clients of {protocol} came");
    crowd
}

/// Starts a service and a crowd, and compares what a connection costs with what it may, in bytes. What was measured is
/// in docs/reference/service.md; a build for release costs the same.
fn a_connection_costs(protocol: &str, most: usize) {
    if !is_isolated() {
        return;
    }
    raise_the_limit_of_files();
    let running = Running::new(POLICY, |settings| {
        settings.bounds.max_connections = CLIENTS + 100;
    });
    others_are_served(&running);
    let address = match protocol {
        "resp" => running.resp_address(),
        "http" => running.http_address(),
        _ => running.grpc(),
    };
    let before = held_bytes();
    let mut crowd = crowd(protocol, address);
    let each = held_bytes().saturating_sub(before) / CLIENTS;
    #[expect(clippy::print_stdout, reason = "docs/reference/service.md states it")]
    {
        println!("{protocol}: {each} bytes a connection");
    }
    assert!(each < most, "{protocol}: {each} bytes a connection");
    // All others are served meanwhile.
    others_are_served(&running);
    let grpc = Grpc::to(&running).call(SHOULD, b"\x0a\x01a\x12\x00");
    assert_eq!(grpc.map(|answer| answer[..2].to_vec()), Ok(vec![8, 1]));
    drop(crowd.stdin.take());
    assert!(crowd.wait().expect("an end").success());
}

#[test]
fn ten_thousand_connections_of_resp_cost_what_is_stated() {
    a_connection_costs("resp", 8 << 10);
}

#[test]
fn ten_thousand_connections_of_http_cost_what_is_stated() {
    a_connection_costs("http", 10 << 10);
}

#[test]
fn ten_thousand_connections_of_grpc_cost_what_is_stated() {
    a_connection_costs("grpc", 32 << 10);
}
