//! redis-cell in a Redis: our service gets the same commands over a socket, on virtual time, and replies with the same
//! five numbers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tollgate::clock::Manual;
use tollgate_engine::Policy;
use tollgate_engine::backend::Memory;
use tollgate_server::{Address, Server, Settings};

use crate::tally::Side::Ours;
use crate::tally::{Judged, Tally, Verdict, sequences};

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    max_burst: u64,
    count: u64,
    period_s: u64,
    ops: Vec<Op>,
}

#[derive(Debug, Deserialize)]
struct Op {
    t_us: u64,
    n: u64,
    reply: [i64; 5],
    pttl_ms: i64,
}

/// A service by a clock of its own, and a client of it.
struct Service {
    clock: Arc<Manual>,
    client: BufReader<TcpStream>,
    _server: Server,
}

async fn start() -> Service {
    let clock = Arc::new(Manual::new());
    let memory = Memory::builder()
        .clock(Arc::clone(&clock))
        .wall(Arc::clone(&clock))
        .build();
    let settings = Settings {
        http: Address::Disabled,
        grpc: Address::Disabled,
        admin: Address::Disabled,
        resp: "127.0.0.1:0".parse().expect("an address"),
        max_throttle_keys: 1_000,
        ..Settings::default()
    };
    let started = Server::in_memory(Policy::default(), memory, Arc::clone(&clock), settings);
    let server = started.await.expect("a service");
    let Some(Address::Tcp(address)) = server.addresses().resp else {
        panic!("a port");
    };
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    Service {
        clock,
        client: BufReader::new(stream),
        _server: server,
    }
}

impl Service {
    fn throttle(&mut self, key: &str, sequence: &Sequence, quantity: u64) -> [i64; 5] {
        let Sequence {
            max_burst,
            count,
            period_s,
            ..
        } = sequence;
        let line = format!("CL.THROTTLE {key} {max_burst} {count} {period_s} {quantity}\r\n");
        self.client
            .get_mut()
            .write_all(line.as_bytes())
            .expect("written");
        assert_eq!(self.line(), "*5");
        std::array::from_fn(|_| {
            let line = self.line();
            line.strip_prefix(':')
                .and_then(|number| number.parse().ok())
                .unwrap_or_else(|| panic!("{line:?}"))
        })
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.client.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }
}

/// A key of the peer, which Redis forgets in whole milliseconds: up to one sooner than it would be idle. Then another
/// key stands for it here.
struct Key {
    name: u64,
    /// The last millisecond in which the peer has it.
    until: Option<u64>,
}

impl Key {
    fn at(&mut self, micros: u64) -> &'static str {
        let is_gone = self.until.is_some_and(|until| micros / 1_000 > until);
        if is_gone {
            (self.name, self.until) = (self.name + 1, None);
            return "the key had ended, in whole milliseconds";
        }
        ""
    }

    fn heard(&mut self, op: &Op) {
        self.until = u64::try_from(op.pttl_ms)
            .ok()
            .map(|left| op.t_us / 1_000 + left);
    }
}

#[test]
fn redis_cell_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let mut tally = Tally::new("redis_cell_server");
    for sequence in sequences::<Sequence>("redis_cell_server") {
        let mut service = runtime.block_on(start());
        let mut key = Key {
            name: 0,
            until: None,
        };
        let mut now = 0;
        tally.replay(sequence.id, &sequence.ops, |op| -> Judged {
            service.clock.advance(Duration::from_micros(op.t_us - now));
            now = op.t_us;
            let ended = key.at(op.t_us);
            let reply = service.throttle(&format!("k{}", key.name), &sequence, op.n);
            key.heard(op);
            let names = [
                "limited",
                "limit",
                "remaining",
                "retry after",
                "reset after",
            ];
            for ((name, ours), theirs) in names.into_iter().zip(reply).zip(op.reply) {
                Ours.says(name, ours, theirs)?;
            }
            Ok(if ended.is_empty() {
                Verdict::Compared
            } else {
                Verdict::ComparedThenSet(ended)
            })
        });
    }
    tally.finish();
}
