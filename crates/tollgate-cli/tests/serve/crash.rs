//! Killed at any moment under load: decisions before the latest snapshot and the latest journal flush are still charged
//! after the restart, and no file is ever damaged.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tollgate::Timestamp;
use tollgate::clock::{Clock, Wall};
use tollgate_testkit::redis::{Client, wait_until};
use tollgate_testkit::temp_folder::TempFolder;
use tollgate_testkit::traffic::Random;

use crate::kit::{ANY, LONG, Service, file};

/// Nothing of note comes back during the test: one of a large limit in 26 seconds, and none of a small one.
const POLICY: &str = "\
limits:
- {name: calls, key: user, rate: 100000/30d}
- {name: bytes, key: org, rate: 100000/30d, algorithm: token-bucket}
- {name: monthly, key: account, quota: 100000/month}
- {name: few, key: tenant, rate: 30/30d}
- {name: few-a-month, key: team, quota: 30/month}
";
const LIMIT: u64 = 100_000;
const FEW: u64 = 30;
/// Seconds in which one comes back of what has a rate of so many in thirty days.
const COMES_BACK: u64 = 25;

/// The continuous requests, by one client each.
const KINDS: [Kind; 5] = [
    Kind::Calls,
    Kind::Bytes,
    Kind::Throttle,
    Kind::Monthly,
    Kind::Few,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Calls,
    Bytes,
    Throttle,
    Monthly,
    /// Two small limits, of a rate and of a quota, which are soon used up.
    Few,
}

impl Kind {
    /// A command that charges, or one that only looks.
    fn command(self, key: u64, cost: u64) -> Vec<String> {
        let fact = match self {
            Self::Calls => "user",
            Self::Bytes => "org",
            Self::Monthly => "account",
            Self::Few => "tenant",
            Self::Throttle => {
                let words = ["CL.THROTTLE", "k", "99999", "100000", "2592000"];
                let words = words.map(str::to_owned).into_iter();
                return words.chain([cost.to_string()]).collect();
            }
        };
        let verb = if cost == 0 { "TG.PEEK" } else { "TG.CHECK" };
        vec![verb.to_owned(), format!("{fact}={key}")]
    }
}

/// What one client was granted in one life of the service: when each answer came.
#[derive(Default)]
struct Granted {
    at: Vec<Timestamp>,
    /// How many there were each time that the journal had been written.
    at_flushes: Vec<usize>,
    /// By key of the small limits: when.
    few: HashMap<String, Vec<Timestamp>>,
}

/// Asks until the service is gone.
fn load(mut client: Client, kind: Kind, key: u64, folder: &Path, answered: &AtomicU64) -> Granted {
    let (mut granted, mut journal) = (Granted::default(), None);
    loop {
        let few = [format!("tenant={key}"), format!("team={key}")];
        let few = &few[usize::from(granted.at.len() % 2 == 1)];
        let words = match kind {
            Kind::Few => vec!["TG.CHECK".to_owned(), few.clone()],
            kind => kind.command(key, 1),
        };
        let Ok(reply) = client.command(&words) else {
            return granted;
        };
        let now = Wall.now();
        answered.fetch_add(1, Ordering::Relaxed);
        let is_allowed = match kind {
            Kind::Throttle => reply.items()[0] == "0",
            _ => reply.items()[1] == "1",
        };
        if kind == Kind::Few {
            granted.at.push(now);
            if is_allowed {
                granted.few.entry(few.clone()).or_default().push(now);
            }
            continue;
        }
        assert!(is_allowed, "{kind:?}: there is room for all");
        granted.at.push(now);
        let found = fs::metadata(folder.join("quotas")).ok();
        let found = found.map(|file| (file.len(), file.ino(), file.mtime_nsec()));
        if kind == Kind::Monthly && found != journal {
            journal = found;
            granted.at_flushes.push(granted.at.len());
        }
    }
}

/// When the latest snapshot was begun.
fn saved_at(folder: &Path) -> Timestamp {
    let bytes = fs::read(folder.join("snapshot")).expect("a snapshot");
    let wall = bytes[24..].first_chunk().expect("a time");
    Timestamp::from_nanos(u64::from_le_bytes(*wall))
}

/// What each limit has used.
fn used(service: &Service, key: u64) -> [u64; 4] {
    let mut client = connect(service);
    [Kind::Calls, Kind::Bytes, Kind::Throttle, Kind::Monthly].map(|kind| {
        let reply = client.command(&kind.command(key, 0)).expect("an answer");
        let place = if kind == Kind::Throttle { 2 } else { 7 };
        let left = reply.items()[place].integer().expect("a number");
        LIMIT - u64::try_from(left).expect("a count")
    })
}

fn connect(service: &Service) -> Client {
    let address = service.ready["resp"].as_str().expect("an address");
    Client::tcp(address.parse().expect("an address")).expect("a connection")
}

/// How long a life is.
#[derive(Clone, Copy)]
struct Length {
    /// About so many answers.
    answers: u64,
    /// And until a snapshot is there that was begun after this one, however long a disk takes for it.
    beyond: Option<Timestamp>,
}

/// One life, and what each client was granted in it.
fn life(service: Service, key: u64, folder: &Path, length: Length) -> Vec<Granted> {
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        let clients = KINDS.map(|kind| {
            let (client, answered) = (connect(&service), &answered);
            scope.spawn(move || load(client, kind, key, folder, answered))
        });
        wait_until(LONG, "answers", || {
            answered.load(Ordering::Relaxed) >= length.answers
        });
        if let Some(first) = length.beyond {
            wait_until(LONG, "a snapshot", || saved_at(folder) > first);
        }
        drop(service);
        let granted = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        granted.collect()
    })
}

/// All that was seen.
#[derive(Debug, Default)]
struct Seen {
    granted: usize,
    lost: usize,
    most_lost: usize,
    lives_with_several_snapshots: u64,
}

#[test]
fn a_service_that_is_killed_loses_what_it_had_not_saved_and_no_more() {
    let is_soak = std::env::var_os("TOLLGATE_SOAK").is_some();
    let (lives, seed) = (if is_soak { 500 } else { 50 }, 20_240_601);
    let (scratch, mut random) = (TempFolder::new("crash"), Random::new(seed));
    let policy = file(&scratch, "policy.yaml", POLICY);
    let folder = scratch.path("state");
    let paths = [&policy, &folder].map(|path| path.to_str().expect("text"));
    let mut options = vec![paths[0], "--state", paths[1], "--state-every", "20ms"];
    options.extend(ANY);
    let began = Wall.now();
    let (mut seen, mut few) = (Seen::default(), HashMap::<String, (u64, u64)>::new());
    let mut service = Service::start(&options);
    for number in 0..lives {
        // Another key before a limit is used up.
        let key = number / 10;
        let before = used(&service, key);
        let first = saved_at(&folder);
        let length = Length {
            answers: 1 + random.below(1_500),
            beyond: (number % 2 == 0).then_some(first),
        };
        let granted = life(service, key, &folder, length);
        let saved = saved_at(&folder);
        seen.lives_with_several_snapshots += u64::from(saved > first);
        service = Service::start(&options);
        assert!(!service.warned().contains("error"), "{}", service.warned());
        let after = used(&service, key);
        let came_back = (Wall.now() - began).as_secs() / COMES_BACK + 1;
        let kept = granted.iter().zip(KINDS).map(|(own, kind)| match kind {
            // A flush that began after the answer came has ended.
            Kind::Monthly => own.at_flushes.iter().rev().nth(2).copied().unwrap_or(0),
            _ => own.at.iter().filter(|at| **at < saved).count(),
        });
        let kept: Vec<usize> = kept.collect();
        for place in 0..4 {
            let (all, kept) = (granted[place].at.len(), kept[place]);
            let used = after[place] - before[place].min(after[place]);
            let told = format!("life {number}: {:?}: {used} of {all}, {kept}", KINDS[place]);
            assert!(used + came_back >= kept as u64, "{told} are kept");
            // One was perhaps decided, and not answered.
            assert!(used <= all as u64 + 1, "{told}: more than was granted");
            let lost = all.saturating_sub(usize::try_from(used).expect("a count"));
            seen.granted += all;
            seen.lost += lost;
            seen.most_lost = seen.most_lost.max(lost);
        }
        for (name, at) in &granted[4].few {
            let (all, lost) = few.entry(name.clone()).or_default();
            *all += at.len() as u64;
            // All that a journal hasn't, at most; of a snapshot it is known.
            let is_quota = name.starts_with("team");
            *lost += at.iter().filter(|at| is_quota || **at >= saved).count() as u64;
        }
        for (name, (all, lost)) in &few {
            assert!(
                *all <= FEW + lost,
                "{name}: {all} admitted, {lost} of them lost"
            );
        }
    }
    let names = fs::read_dir(&folder).expect("a folder");
    let names = names.map(|entry| entry.expect("an entry").file_name());
    let damaged = names.filter(|name| name.to_string_lossy().contains("damaged"));
    assert_eq!(damaged.count(), 0);
    println!("{lives} lives: {seen:?}");
    assert!(seen.lives_with_several_snapshots > lives / 4, "{seen:?}");
    assert!(
        seen.lost > 0,
        "it was never killed between two snapshots: {seen:?}"
    );
}
