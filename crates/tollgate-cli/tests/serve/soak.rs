//! Full load on all protocols, with new keys all the time and a reload every second: no answer is wrong, and neither
//! memory nor files grow. It runs ten minutes with `TOLLGATE_SOAK=1` (`TOLLGATE_SOAK_SECONDS` sets the duration), else
//! some seconds, which check the answers alone.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a real process is asked for a real time, and says what came of it"
)]

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::temp_folder::TempFolder;

use self::clients::{Answer, connect};
use crate::kit::{ANY, LONG, Service};

mod clients;

const PROTOCOLS: [&str; 3] = ["http", "grpc", "resp"];
/// Connections of each protocol.
const CONNECTIONS: usize = 2;
/// New keys in one write, and the requests for each.
const KEYS: usize = 8;
const TIMES: usize = 12;
/// The burst of a key, by one policy and by the other.
const BURSTS: [u64; 2] = [5, 8];
/// The common limit: its burst, and one a second.
const TOGETHER: u64 = 1000;
/// Memory may be so much more in the last quarter than in the second: this part, and so many bytes.
const MORE: u64 = 20;
const MORE_BYTES: u64 = 4 << 20;

/// One of both policies, which differ in what a key may have.
fn policy(number: usize) -> String {
    let burst = BURSTS[number % BURSTS.len()];
    format!(
        "limits:\n- {{name: churn, key: key, rate: {burst}/s}}\n\
         - {{name: together, key: tenant, rate: 1/s burst {TOGETHER}}}\n"
    )
}

/// Puts a policy in the place of the one before, in one step.
fn swap(path: &Path, number: usize) {
    let new = path.with_extension("new");
    fs::write(&new, policy(number)).expect("a file");
    fs::rename(new, path).expect("a swap");
}

/// What all clients have seen.
#[derive(Default)]
struct Seen {
    asked: AtomicU64,
    keys: AtomicU64,
    together: AtomicU64,
    by: [AtomicU64; BURSTS.len()],
    wrong: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Seen {
    /// Sends requests for new keys on one connection until the end.
    fn ask(&self, protocol: &str, address: &str, number: usize) {
        let mut client = connect(protocol, address);
        let mut round = 0_u64;
        while !self.is_over.load(Ordering::Relaxed) {
            let keys: Vec<_> = (0..KEYS)
                .map(|key| format!("{protocol}{number}-{round}-{key}"))
                .collect();
            let each = keys.iter().flat_map(|key| [("key", key.as_str()); TIMES]);
            let questions: Vec<_> = each.chain([("tenant", "all")]).collect();
            let began = Instant::now();
            let answers = client.ask(&questions);
            let took = began.elapsed();
            for (key, answers) in keys.iter().zip(answers.chunks(TIMES)) {
                self.judge(key, answers, took);
            }
            let last = answers[KEYS * TIMES];
            self.together
                .fetch_add(u64::from(last.is_allowed), Ordering::Relaxed);
            self.asked
                .fetch_add(answers.len() as u64, Ordering::Relaxed);
            self.keys.fetch_add(KEYS as u64, Ordering::Relaxed);
            round += 1;
        }
    }

    /// A new key has the burst of one policy or the other, and what it has earned since its first request.
    fn judge(&self, key: &str, answers: &[Answer], took: Duration) {
        let [low, high] = BURSTS;
        let passed = answers.iter().filter(|answer| answer.is_allowed).count() as u64;
        let most = high + high * (u64::try_from(took.as_millis()).expect("short") + 1) / 1000 + 1;
        let are_known = answers.iter().all(|answer| BURSTS.contains(&answer.limit));
        if passed < low || passed > most || !are_known {
            let mut wrong = self.wrong.lock().expect("nobody panicked");
            wrong.push(format!("{key}: {passed} passed in {took:?}: {answers:?}"));
            self.is_over.store(true, Ordering::Relaxed);
        }
        for (burst, by) in BURSTS.iter().zip(&self.by) {
            let own = answers.iter().filter(|answer| answer.limit == *burst);
            by.fetch_add(own.count() as u64, Ordering::Relaxed);
        }
    }
}

/// What a process has at a time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    resident: u64,
    files: usize,
}

impl Sample {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
        Self {
            resident: kilobytes.expect("a number") << 10,
            files: files.count(),
        }
    }
}

/// After the first quarter, which is for tables to grow, neither memory nor files may.
fn is_flat(samples: &[Sample]) {
    let quarter = samples.len() / 4;
    let most = |part: &[Sample]| part.iter().map(|one| one.resident).max().expect("samples");
    let files = |part: &[Sample]| part.iter().map(|one| one.files).max().expect("samples");
    let (second, last) = (&samples[quarter..2 * quarter], &samples[3 * quarter..]);
    let (before, after) = (most(second), most(last));
    println!(
        "resident: {} MB, then {} MB; files: {}, then {}",
        before >> 20,
        after >> 20,
        files(second),
        files(last)
    );
    assert!(
        after <= before + before / MORE + MORE_BYTES,
        "memory grows: {before} {after}"
    );
    assert!(files(last) <= files(second) + 2, "files stay open");
}

/// The duration, and whether it is long enough to judge growth.
fn length() -> (Duration, bool) {
    let seconds = |text: String| text.parse().expect("TOLLGATE_SOAK_SECONDS is a number");
    let seconds = std::env::var("TOLLGATE_SOAK_SECONDS").map_or(600, seconds);
    match std::env::var_os("TOLLGATE_SOAK") {
        Some(_) => (Duration::from_secs(seconds), true),
        None => (Duration::from_secs(5), false),
    }
}

fn soak(name: &str, options: &[&str]) {
    let scratch = TempFolder::new(name);
    let path = scratch.path("policy.yaml");
    swap(&path, 0);
    let state = scratch.path("state");
    let mut all = vec![path.to_str().expect("text")];
    all.extend(options.iter().map(|option| match *option {
        "STATE" => state.to_str().expect("text"),
        other => other,
    }));
    all.extend(ANY);
    let service = Service::start(&all);
    let (length, is_long) = length();
    let (seen, mut samples, began) = (Seen::default(), Vec::new(), Instant::now());
    let mut reloads = 0;
    thread::scope(|scope| {
        for number in 0..PROTOCOLS.len() * CONNECTIONS {
            let protocol = PROTOCOLS[number % PROTOCOLS.len()];
            let address = service.ready[protocol].as_str().expect("an address");
            let seen = &seen;
            scope.spawn(move || {
                // Whoever is waited for must be told that one has failed.
                let over = Over(seen);
                seen.ask(protocol, address, number);
                drop(over);
            });
        }
        // However slow a machine is, a reload is seen in the end.
        let is_due = || began.elapsed() >= length && (seen.has_both() || began.elapsed() >= LONG);
        while !is_due() && !seen.is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_secs(1));
            samples.push(Sample::of(service.pid()));
            reloads += 1;
            swap(&path, reloads);
        }
        seen.is_over.store(true, Ordering::Relaxed);
    });
    let took = began.elapsed();
    seen.report(name, took, reloads);
    if is_long {
        is_flat(&samples);
    }
    assert_eq!(service.end("TERM").code(), Some(0));
}

/// Ends it for all when one ends.
struct Over<'s>(&'s Seen);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Seen {
    /// Whether there were answers by each policy.
    fn has_both(&self) -> bool {
        let mut each = self.by.iter();
        each.all(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Says what came of it, and whether it was right.
    fn report(&self, name: &str, took: Duration, reloads: usize) {
        let wrong = self.wrong.lock().expect("nobody panicked");
        assert!(wrong.is_empty(), "{wrong:#?}");
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (asked, keys) = (number(&self.asked), number(&self.keys));
        let by: Vec<_> = self.by.iter().map(number).collect();
        let a_second = asked / took.as_secs().max(1);
        println!(
            "{name}: {asked} answers ({a_second} a second) of {keys} keys in {took:?}, {reloads} reloads, {by:?} by each policy"
        );
        assert!(self.has_both(), "no reload: {by:?}");
        // No reload hands out again what was spent.
        let (together, back) = (number(&self.together), took.as_secs());
        assert!(
            together <= TOGETHER + back + 2,
            "{together} passed in {took:?}"
        );
    }
}

#[test]
fn in_memory() {
    soak("soak", &[]);
}

#[test]
fn in_memory_with_state() {
    soak("soak-state", &["--state", "STATE", "--state-every", "1s"]);
}
