//! Stores that are reachable but can't serve requests, and their recovery without help.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::core::WindowAlignment;
use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate};
use tollgate_engine::backend::LimitKind;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{FailureKind, Redis};
use tollgate_testkit::redis::{Client, Server, wait_until};

use crate::common::proxy::{Act, Proxy};
use crate::common::{DEADLINE, LIMIT, Subject, connect, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_out_of_memory() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let mut subject = Subject::new(&server.url()).await;
    let most = |bytes: &str| {
        server.command(&["CONFIG", "SET", "maxmemory", bytes]);
    };
    subject.story(|| most("1"), || most("0")).await;
    // It said so, and no connection was given up for that.
    assert_eq!(subject.redis.stats().connects, 1);
    subject.failed_by(FailureKind::OutOfMemory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_no_writes_until_it_is_the_master() {
    let master = Server::start();
    let replica = Server::start();
    let port = master.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    wait_until(DEADLINE, "a replica in sync", || {
        replica.info("replication", "master_link_status") == "up"
    });
    let mut subject = Subject::unready(&replica.url());
    let promote = || {
        replica.command(&["REPLICAOF", "NO", "ONE"]);
    };
    subject.story(|| (), promote).await;
    // And back.
    let demote = || {
        replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    };
    subject.story(demote, promote).await;
    subject.failed_by(FailureKind::ReadOnly);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_takes_too_long() {
    let server = Arc::new(Server::builder().arg("lua-time-limit", "20").start());
    let mut subject = Subject::new(&server.url()).await;
    let own = Arc::clone(&server);
    let run = || {
        std::thread::spawn(move || {
            let mut client = own.client().expect("a server");
            client.set_timeout(DEADLINE).expect("a timeout");
            client.command(&["EVAL", "while true do end", "0"])
        })
    };
    let mut running = None;
    let harm = || {
        running = Some(run());
        wait_until(DEADLINE, "a busy server", || !server.answers());
    };
    let heal = || {
        server.command(&["SCRIPT", "KILL"]);
    };
    subject.story(harm, heal).await;
    subject.failed_by(FailureKind::Busy);
    let ended = running.unwrap().join().unwrap();
    assert!(ended.unwrap_err().contains("killed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_closed_again_and_again() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    let mut admin = server.client().unwrap();
    for _ in 0..50 {
        admin
            .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .unwrap();
        subject.carries_on().await;
    }
    subject.recovers().await;
    subject.told_in_order();
    assert!(subject.redis.stats().connects > 10);
    // None was left behind.
    let clients = admin.info("clients", "connected_clients").unwrap();
    assert_eq!(clients, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_no_more_connections() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    // It has the only connection while no more are taken.
    let admin = RefCell::new(server.client().unwrap());
    let most = |most: &str| {
        admin
            .borrow_mut()
            .command(&["CONFIG", "SET", "maxclients", most])
    };
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    let harm = || {
        most("1").unwrap();
        admin.borrow_mut().command(&kill).unwrap();
    };
    let heal = || {
        most("100").unwrap();
    };
    subject.story(harm, heal).await;
    subject.failed_by(FailureKind::Disconnected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_still_loading() {
    // Two thousand keys, a millisecond each.
    let server = Server::builder()
        .arg("key-load-delay", "1000")
        .arg("loading-process-events-interval-bytes", "1024");
    let server = Arc::new(server.start());
    let mut subject = Subject::new(&server.url()).await;
    let fill =
        "for i = 1, 2000 do redis.call('SET', 'filler:' .. i, i) end return redis.call('DBSIZE')";
    server.command(&["EVAL", fill, "0"]);
    server.command(&["SAVE"]);
    let own = Arc::clone(&server);
    let restarting = tokio::task::spawn_blocking(move || own.restart_empty());
    let limiter = subject.fresh(OnStoreFailure::Open);
    eventually("an error that says so", async || {
        let error = limiter.try_check("k", 1).await.err();
        error.is_some_and(|error| error.kind() == FailureKind::Loading)
    })
    .await;
    subject.suffers().await;
    restarting.await.unwrap();
    subject.recovers().await;
    subject.told_in_order();
}

/// Asks for a while, in which connections may be made now and then but not again and again.
async fn is_patient(redis: &Redis, connections: impl Fn() -> u64) {
    const WHILE: Duration = Duration::from_secs(2);
    let limiter = redis.limiter("odd", Rate::per_day(LIMIT)).build();
    let limiter = limiter.expect("a limit");
    let (began, before) = (Instant::now(), connections());
    while began.elapsed() < WHILE {
        let asked = limiter.try_check("k", 1).await;
        asked.expect_err("it answers no call");
        tokio::time::sleep(crate::common::POLL).await;
    }
    // Twice as long each time, up to a second, and half of that by chance.
    let most = 9 + 2 * began.elapsed().as_secs();
    let made = connections() - before;
    assert!(made <= most, "{made} connections in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_answers_no_call_is_not_connected_to_again_and_again() {
    let server = Server::start();
    let received = || {
        let count = server.info("stats", "total_connections_received");
        // Without this look.
        count.parse::<u64>().unwrap() - LOOKS.fetch_add(1, Ordering::Relaxed)
    };
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    is_patient(&connect(&server.url()), received).await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    // One that hangs up at each script.
    let proxy = Proxy::start(server.address(), |words| {
        if words[0].starts_with("EVAL") {
            Act::Cut
        } else {
            Act::Pass
        }
    });
    is_patient(&connect(&proxy.url()), || proxy.connections()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_connection_that_is_replaced_end_with_it() {
    let server = Server::start();
    let calls = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&calls);
    let proxy = Proxy::start(server.address(), move |words| {
        // Answers come in the order of what was asked: a look at the clock that is answered after the first call would be
        // taken for the answer to that.
        if words[0] == "TIME" && seen.load(Ordering::Relaxed) == 1 {
            return Act::Swallow;
        }
        if !words[0].starts_with("EVAL") {
            return Act::Pass;
        }
        // Two are under way, and one answer comes: that this is the wrong place.
        match seen.fetch_add(1, Ordering::Relaxed) {
            0 => Act::Swallow,
            1 => Act::Error("READONLY You can't write against a read only replica."),
            _ => Act::Pass,
        }
    });
    // Longer than this test may take.
    let builder = Redis::builder(&proxy.url()).unwrap().node_count(1);
    let redis = builder.timeout(20 * DEADLINE).build().unwrap();
    let limiter = redis.limiter("odd", Rate::per_day(LIMIT));
    let limiter = Arc::new(
        limiter
            .on_store_failure(OnStoreFailure::Closed)
            .build()
            .unwrap(),
    );
    let own = Arc::clone(&limiter);
    let first = tokio::spawn(async move { own.try_check("k", 1).await.map(drop) });
    // What is asked before that would share its call.
    let is_sent = async || calls.load(Ordering::Relaxed) > 0;
    eventually("the first call", is_sent).await;
    eventually("an answer to another", async || {
        let leased = redis.limiter("leased", Rate::per_day(LIMIT)).leased();
        let answered = tokio::time::timeout(DEADLINE, async {
            let answer = leased.build().unwrap().try_check("k", 1).await;
            answer.is_ok()
        });
        answered.await.expect("an answer, whatever it is")
    })
    .await;
    let ended = tokio::time::timeout(DEADLINE, first).await;
    // Asked once more or told that it failed, but not left alone.
    let _ = ended.expect("it ends").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_outlives_connections_that_are_closed_every_few_milliseconds() {
    const CALLS: usize = 500;
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap().node_count(1);
    let redis = builder.timeout(20 * DEADLINE).build().unwrap();
    let limiter = redis.limiter("odd", Rate::per_day(1_000_000)).build();
    let limiter = Arc::new(limiter.unwrap());
    let is_over = Arc::new(AtomicBool::new(false));
    let (own, port) = (Arc::clone(&is_over), server.address());
    let killing = tokio::task::spawn_blocking(move || {
        let mut admin = Client::tcp(port).unwrap();
        let (_keep, never) = std::sync::mpsc::channel::<()>();
        while !own.load(Ordering::Relaxed) {
            let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
            admin.command(&kill).unwrap();
            let _ = never.recv_timeout(crate::common::POLL);
        }
    });
    let asking = (0..8).map(|number| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            let key = number.to_string();
            for _ in 0..CALLS {
                let asked = limiter.try_check(&key, 1);
                let ended = tokio::time::timeout(DEADLINE, asked).await;
                let _ = ended.expect("an answer, or that there is none");
            }
        })
    });
    for task in asking.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    killing.await.unwrap();
}

/// Every kind of limit, each of which passes `LIMIT` in a long time.
pub(crate) fn kinds() -> Vec<LimitKind> {
    let rate = |algorithm| LimitKind::Rate {
        rate: Rate::per_day(LIMIT),
        algorithm,
    };
    vec![
        rate(Algorithm::Gcra),
        rate(Algorithm::TokenBucket),
        rate(Algorithm::LeakyBucket),
        rate(Algorithm::FixedWindow(WindowAlignment::default())),
        rate(Algorithm::FixedWindow(WindowAlignment::FirstHit)),
        rate(Algorithm::SlidingLog),
        rate(Algorithm::SlidingCounter),
        LimitKind::Quota(Quota::per_month(LIMIT)),
        LimitKind::Quota(Quota::rolling(LIMIT, Duration::from_secs(2_592_000)).expect("a period")),
        LimitKind::Concurrency(8),
    ]
}

#[tokio::test]
async fn no_client_tells_a_store_the_time() {
    let server = Server::builder().arg("slowlog-max-len", "10000").start();
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    let redis = connect(&server.url());
    for kind in kinds() {
        let limiter = redis
            .limiter_with_kind("all", kind.clone())
            .build()
            .unwrap();
        let _held = limiter.check("k").await;
        if !matches!(kind, LimitKind::Concurrency(_)) {
            limiter.allow_at_most("k", 2).await.unwrap();
            limiter.refund("k", 1).await.unwrap();
        }
        limiter.reset("k").await.unwrap();
    }
    let leased = redis.limiter("leased", Rate::per_hour(1000)).leased();
    assert!(leased.build().unwrap().check("k").await.allowed().is_some());
    let log = server.command(&["SLOWLOG", "GET", "10000"]);
    let mut scripts = 0;
    for entry in log.items() {
        let words: Vec<_> = entry.items()[3]
            .items()
            .iter()
            .map(|word| word.text().unwrap_or_default())
            .collect();
        if !words[0].to_lowercase().starts_with("eval") {
            continue;
        }
        scripts += 1;
        let keys: usize = words[2].parse().unwrap();
        // After the script, the number of keys, the keys and the questions.
        assert_eq!(words[4 + keys], "", "{words:?}");
    }
    assert!(scripts >= 40, "{scripts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_limit_of_a_tier_has_its_own_answer_when_the_store_dies() {
    let policy = "
limits: [{name: per-user, key: user, rate: 3/h}]
tiers:
  strict: {rate: 5/h, quota: 100/day}
  lenient: {rate: 5/h, quota: 100/day, on_store_failure: {quota: local}}
default_tier: strict
tenants: {acme: lenient}
";
    let policy =
        tollgate_engine::Policy::from_text(policy, tollgate_engine::document::Format::Yaml);
    let server = Server::start();
    let redis = connect(&server.url());
    redis.ready(DEADLINE).await.expect("a store");
    let engine =
        tollgate_engine::Engine::new(policy.expect("a policy").policy, redis).expect("a policy");
    let count = async |facts: &tollgate_engine::Facts<'_>| {
        let mut passed = 0;
        for _ in 0..8 {
            let Ok(verdict) = engine.decide_async(facts).await;
            passed += usize::from(verdict.allowed().is_some());
        }
        passed
    };
    let facts = tollgate_engine::Facts::new;
    assert_eq!(
        count(&facts().with("tenant", "one")).await,
        5,
        "while it answers"
    );
    server.kill();
    assert_eq!(
        count(&facts().with("tenant", "other")).await,
        0,
        "its quota is closed"
    );
    assert_eq!(
        count(&facts().with("tenant", "acme")).await,
        5,
        "all of it is local"
    );
    assert_eq!(
        count(&facts().with("user", "ada")).await,
        3,
        "a rate alone is local"
    );
}
