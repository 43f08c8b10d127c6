//! redis-cell's arithmetic when the parameters of a key change from one call to the next: a key has one theoretical
//! arrival time. Our service in memory, our service on a real Redis and the arithmetic itself answer the same five
//! numbers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::Policy;
use tollgate_engine::backend::Memory;
use tollgate_redis::Redis;
use tollgate_server::{Address, Server, Settings};
use tollgate_testkit::redis::Server as Store;
use tollgate_testkit::traffic::Random;

/// The parameters of a call.
#[derive(Clone, Copy, Debug)]
struct Parameters {
    max_burst: i64,
    count: i64,
    period: i64,
}

/// redis-cell's state and arithmetic, in nanoseconds.
#[derive(Default)]
struct Model {
    arrivals: HashMap<u64, i128>,
}

impl Model {
    fn throttle(&mut self, now: i128, key: u64, limit: Parameters, quantity: i64) -> [i64; 5] {
        let emission = i128::from(limit.period) * 1_000_000_000 / i128::from(limit.count);
        let most = i128::from(limit.max_burst) + 1;
        let tolerance = emission * most;
        let arrival = self.arrivals.get(&key).copied().unwrap_or(now).max(now);
        let increment = emission * i128::from(quantity);
        let after = arrival + increment;
        let is_limited = now < after - tolerance;
        let (retry_after, owed) = if is_limited {
            let wait = (increment <= tolerance).then(|| after - tolerance - now);
            (wait, arrival - now)
        } else {
            self.arrivals.insert(key, after);
            (None, after - now)
        };
        let left = (tolerance - owed) / 1_000 / (emission / 1_000).max(1);
        let number = |number: i128| i64::try_from(number).expect("a small number");
        let seconds = |nanos: i128| {
            let rest = i128::from(nanos % 1_000_000_000 >= 1_000_000);
            number(nanos / 1_000_000_000 + rest)
        };
        [
            i64::from(is_limited),
            number(most),
            number(left.max(0)),
            retry_after.map_or(-1, seconds),
            seconds(owed),
        ]
    }
}

/// A service, and a client of it.
struct Asked {
    client: BufReader<TcpStream>,
    _server: Server,
}

fn settings() -> Settings {
    Settings {
        http: Address::Disabled,
        grpc: Address::Disabled,
        admin: Address::Disabled,
        resp: "127.0.0.1:0".parse().expect("an address"),
        max_throttle_keys: 1_000,
        ..Settings::default()
    }
}

impl Asked {
    fn new(server: Server) -> Self {
        let Some(Address::Tcp(address)) = server.addresses().resp else {
            panic!("a port");
        };
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a timeout");
        Self {
            client: BufReader::new(stream),
            _server: server,
        }
    }

    async fn in_memory(clock: &Manual) -> Self {
        let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
        let (policy, memory) = (Policy::default(), memory.build());
        let server = Server::in_memory(policy, memory, clock.clone(), settings()).await;
        Self::new(server.expect("a service"))
    }

    async fn on_store(clock: &Manual, store: &Store) -> Self {
        let builder = Redis::builder(&store.url()).expect("a server's own URL");
        let builder = builder.timeout(Duration::from_secs(20)).node_count(1);
        let redis = builder.clock(clock.clone()).build().expect("a runtime");
        let server = Server::on_store(Policy::default(), redis, settings()).await;
        Self::new(server.expect("a service"))
    }

    fn ask(&mut self, command: &str) -> Vec<String> {
        let stream = self.client.get_mut();
        let wrote = stream.write_all(format!("{command}\r\n").as_bytes());
        wrote.expect("written");
        let head = self.line();
        match head.strip_prefix('*') {
            Some(count) => (0..count.parse().expect("a count"))
                .map(|_| self.line())
                .collect(),
            None => vec![head],
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.client.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }
}

/// Some limits that one key is charged by in turn.
fn limits(random: &mut Random) -> Vec<Parameters> {
    let counts = [1, 1, 2, 3, 7, 30, 60, 1_000, 999_999, 3_000_000];
    let periods = [1, 1, 2, 10, 59, 60, 61, 3_600, 86_400, 31_536_000];
    let one = |random: &mut Random| {
        let any = Parameters {
            max_burst: i64::try_from(random.below(8)).expect("a few"),
            count: counts[pick(random, counts.len())],
            period: periods[pick(random, periods.len())],
        };
        // No limit takes longer than two years to fill up.
        let is_long = any.period / any.count * (any.max_burst + 1) > 2 * 31_536_000;
        Parameters {
            max_burst: if is_long { 1 } else { any.max_burst },
            ..any
        }
    };
    (0..1 + random.below(4)).map(|_| one(random)).collect()
}

fn pick(random: &mut Random, of: usize) -> usize {
    usize::try_from(random.below(of as u64)).expect("an index")
}

/// The time before the next call, in microseconds: none, or about a token's time of one of the limits.
fn pause(random: &mut Random, limit: Parameters) -> u64 {
    let emission = u64::try_from(limit.period * 1_000_000 / limit.count).expect("a time");
    match random.below(6) {
        0..3 => 0,
        3 => emission.saturating_sub(1) + random.below(3),
        4 => random.below(2 * emission + 2),
        _ => {
            let reach = 1 << random.below(30);
            random.below(reach)
        }
    }
}

#[test]
fn redis_cell_changing_parameters() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let store = Store::start();
    let (mut compared, mut limited) = (0, 0);
    for seed in 0..40 {
        store.command(&["FLUSHALL"]);
        let mut random = Random::new(seed);
        let clock = Manual::new();
        let (mut memory, mut stored) = runtime.block_on(async {
            (
                Asked::in_memory(&clock).await,
                Asked::on_store(&clock, &store).await,
            )
        });
        let (limits, mut model, mut now) = (limits(&mut random), Model::default(), 0);
        for step in 0..150 {
            let limit = limits[pick(&mut random, limits.len())];
            let key = random.below(3);
            let most = u64::try_from(limit.max_burst).expect("a few") + 3;
            let quantity = match random.below(3) {
                0 => 1,
                _ => i64::try_from(random.below(most)).expect("a few"),
            };
            let micros = pause(&mut random, limit);
            clock.advance(Duration::from_micros(micros));
            now += i128::from(micros) * 1_000;
            let Parameters {
                max_burst,
                count,
                period,
            } = limit;
            let command = format!("CL.THROTTLE k{key} {max_burst} {count} {period} {quantity}");
            let expected = model.throttle(now, key, limit, quantity);
            let expected = expected.map(|number| format!(":{number}"));
            let told = format!("seed {seed}, step {step}: {command} at {now}");
            assert_eq!(memory.ask(&command), expected, "memory, {told}");
            assert_eq!(stored.ask(&command), expected, "Redis, {told}");
            compared += 1;
            limited += usize::from(expected[0] == ":1");
        }
    }
    println!("redis-cell with changing parameters: {compared} answers compared, {limited} limited");
    assert!(limited > 1_000 && compared - limited > 1_000);
}

/// The example of the issue: another period is no fresh burst.
#[test]
fn another_period_is_no_fresh_burst() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (store, clock) = (Store::start(), Manual::new());
    let both = runtime.block_on(async {
        [
            Asked::in_memory(&clock).await,
            Asked::on_store(&clock, &store).await,
        ]
    });
    for mut asked in both {
        let spent = asked.ask("CL.THROTTLE z 4 1 60 5");
        assert_eq!(spent, [":0", ":5", ":0", ":-1", ":300"]);
        let other = asked.ask("CL.THROTTLE z 4 1 61");
        assert_eq!(other, [":1", ":5", ":0", ":56", ":300"]);
        // A smaller limit is owed what a larger one let pass, and a look says so.
        let smaller = asked.ask("CL.THROTTLE z 0 1 10 0");
        assert_eq!(smaller, [":1", ":1", ":0", ":290", ":300"]);
    }
}
