//! A process of a fleet: sends the requests of its plan, and records its admissions.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Wall};
use tollgate::{Rate, Timestamp};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{Redis, RedisLimiter};

use crate::windows::Admission;

/// Tells a node what to do.
pub(crate) const ROLE: &str = "TOLLGATE_PROCESSES_NODE";
/// A node's report once the store has answered it.
pub(crate) const READY: &str = "ready";
/// A node's report once it holds tokens, before their time and number.
pub(crate) const HOLDS: &str = "holds";
/// A busy machine may take its time: these tests are about counts.
const PATIENT: Duration = Duration::from_secs(20);
const KEY: &str = "all";

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) url: String,
    pub(crate) rate: Rate,
    pub(crate) is_leased: bool,
    pub(crate) tasks: u64,
    /// The fallback while the store is unreachable, and its timeout.
    pub(crate) failure: Failure,
    pub(crate) does: Does,
    /// Where it writes when it was admitted.
    pub(crate) file: String,
}

/// How a node fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It must not: it waits as long as it takes.
    Never,
    /// As by default, in a fleet of so many nodes.
    Local(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// Asks again as soon as it has its answer.
    Hammers,
    /// Asks so often a second.
    Wants(u64),
    /// Takes tokens, at least so many, and keeps them.
    Holds(u64),
}

/// How long a node holds leases: long enough to tell one lease from two on a busy machine.
pub(crate) const LIFE: Duration = Duration::from_secs(3);

impl Role {
    pub(crate) fn to_text(&self) -> String {
        let (does, number) = match self.does {
            Does::Hammers => ("hammers", 0),
            Does::Wants(number) => ("wants", number),
            Does::Holds(number) => ("holds", number),
        };
        let Self {
            url,
            rate,
            is_leased,
            tasks,
            file,
            ..
        } = self;
        let nodes = match self.failure {
            Failure::Never => 0,
            Failure::Local(nodes) => nodes,
        };
        format!("{url}|{rate}|{is_leased}|{tasks}|{nodes}|{does}|{number}|{file}")
    }

    fn from_text(text: &str) -> Option<Self> {
        let [url, rate, is_leased, tasks, nodes, does, number, file] =
            text.split('|').collect::<Vec<_>>().try_into().ok()?;
        let number = number.parse().ok()?;
        Some(Self {
            url: url.to_owned(),
            rate: rate.parse().ok()?,
            is_leased: is_leased.parse().ok()?,
            tasks: tasks.parse().ok()?,
            failure: match nodes.parse().ok()? {
                0 => Failure::Never,
                nodes => Failure::Local(nodes),
            },
            does: match does {
                "hammers" => Does::Hammers,
                "wants" => Does::Wants(number),
                "holds" => Does::Holds(number),
                _ => return None,
            },
            file: file.to_owned(),
        })
    }

    /// The limit in the form of this node's requests. A node that holds much may hold it all, and for longer than
    /// usual.
    pub(crate) fn limiter(&self) -> (Redis, Arc<RedisLimiter>) {
        let builder = Redis::builder(&self.url).expect("a server's own URL");
        let (mut builder, failure) = match self.failure {
            Failure::Never => (
                builder.timeout(PATIENT).node_count(1),
                OnStoreFailure::Closed,
            ),
            Failure::Local(nodes) => (builder.node_count(nodes), OnStoreFailure::Local),
        };
        if let Does::Holds(_) = self.does {
            builder = builder.lease_duration(LIFE).lease_divisor(1);
        }
        let builder = builder.on_event(|event| say(&format!("{event:?}")));
        let redis = builder.build().expect("a runtime");
        let mut limiter = redis.limiter("fleet", self.rate).on_store_failure(failure);
        if self.is_leased {
            limiter = limiter.leased();
        }
        let limiter = limiter.build().expect("a limit that the store takes");
        (redis, Arc::new(limiter))
    }
}

/// Not a test of its own: what the tests run as a process.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let role = Role::from_text(&role).expect("a role");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::try_from(role.tasks).unwrap())
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (redis, limiter) = role.limiter();
        // On a crowded machine the first answers may come late.
        let answered = async {
            while limiter.peek(KEY).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
        answered.expect("a store that answers");
        if let Does::Holds(least) = role.does {
            return hold(&redis, &limiter, least).await;
        }
        let (start, end) = told_when();
        tokio::time::sleep(start - Wall.now()).await;
        let tasks: Vec<_> = (0..role.tasks)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                let wants = match role.does {
                    Does::Wants(number) => Some(number.div_ceil(role.tasks)),
                    _ => None,
                };
                tokio::spawn(ask(limiter, (wants, role.failure), (start, end)))
            })
            .collect();
        let mut bytes = Vec::new();
        for task in tasks {
            for admission in task.await.unwrap() {
                bytes.extend(admission.asked.to_le_bytes());
                bytes.extend(admission.told.to_le_bytes());
                bytes.extend(u64::from(admission.is_local).to_le_bytes());
            }
        }
        std::fs::write(&role.file, bytes).unwrap();
        redis.close().await;
    });
}

/// Reports that it is ready, and waits for the times of its start and end.
fn told_when() -> (Timestamp, Timestamp) {
    say(READY);
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .expect("a parent that is there");
    let (start, end) = line.trim().split_once(' ').expect("two times");
    let read = |text: &str| Timestamp::from_nanos(text.parse().expect("nanoseconds"));
    (read(start), read(end))
}

fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").expect("a parent that is there");
}

async fn ask(
    limiter: Arc<RedisLimiter>,
    (wants, failure): (Option<u64>, Failure),
    (start, end): (Timestamp, Timestamp),
) -> Vec<Admission> {
    let mut admissions = Vec::new();
    let mut asked_for = 0_u128;
    loop {
        let asked = Wall.now();
        if asked >= end {
            return admissions;
        }
        if let Some(wants) = wants {
            let due = (asked - start).as_nanos() * u128::from(wants) / 1_000_000_000;
            if asked_for >= due {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            asked_for += 1;
        }
        let answer = limiter.check(KEY).await;
        let told = Wall.now();
        let is_local = answer.fallback.is_some();
        assert!(
            !is_local || failure != Failure::Never,
            "the store was there all the time"
        );
        if answer.denied().is_none() {
            admissions.push(Admission {
                asked: asked.as_nanos(),
                told: told.as_nanos(),
                is_local,
            })
        } else {
            tokio::task::yield_now().await
        }
    }
}

/// Sends requests until it holds as much, reports that, and waits for its end.
async fn hold(redis: &Redis, limiter: &RedisLimiter, least: u64) {
    let mut before = Wall.now();
    while redis.stats().leased_tokens < least {
        if limiter.check(KEY).await.denied().is_some() {
            // It spent what it was to hold: once more when that is back.
            tokio::time::sleep(LIFE).await;
            before = Wall.now();
        }
    }
    say(&format!(
        "{HOLDS} {} {}",
        before.as_nanos(),
        redis.stats().leased_tokens
    ));
    std::future::pending().await
}

#[test]
fn a_role_is_read_as_it_was_written() {
    let role = Role {
        url: "redis://127.0.0.1:1".to_owned(),
        rate: "7/s burst 9".parse().unwrap(),
        is_leased: true,
        tasks: 4,
        failure: Failure::Local(8),
        does: Does::Wants(12),
        file: "a folder/a file".to_owned(),
    };
    assert_eq!(Role::from_text(&role.to_text()), Some(role));
}
