//! Limits in a cluster: batches, refunds, and the migration of hash slots.

#[path = "../common/mod.rs"]
mod common;
mod half;
mod idle;
mod lost;
mod parts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{DEADLINE, LIMIT, PATIENT, connect, eventually, is_soak, lateness};
use tokio::time::Instant;
use tollgate::Rate;
use tollgate_engine::document::Format;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::{FailureKind, Redis};
use tollgate_testkit::redis::{Cluster, Server, hash_slot};

fn engine(cluster: &Cluster, policy: &str) -> Engine<Redis> {
    let builder = Redis::builder(&cluster.url()).expect("a URL");
    // Every refusal is asked for.
    let redis = builder.timeout(PATIENT).deny_cache(0).build();
    let policy = Policy::from_text(policy, Format::Yaml).expect("a policy");
    Engine::new(policy.policy, redis.expect("a runtime")).expect("a policy")
}

/// Scripts that all masters have run.
fn scripts(cluster: &Cluster) -> u64 {
    let of = |node: &Server| node.command_calls("evalsha") + node.command_calls("eval");
    cluster.masters().map(of).sum()
}

/// The remaining tokens by a rule with a cost of 0.
async fn left(engine: &Engine<Redis>, facts: &Facts<'_>) -> u64 {
    let verdict = engine.decide_async(facts).await;
    let Ok(verdict) = verdict;
    assert_eq!(verdict.fallback(), None);
    verdict.decision().remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_in_a_cluster() {
    let user = Server::builder().acl("limits", "secret", &format!("resetchannels {RIGHTS}"));
    let cluster = Cluster::start_with(user);
    a_user_with_few_rights(&cluster).await;
    one_tenant_is_asked_about_in_one_call(&cluster).await;
    what_was_charged_is_given_back(&cluster).await;
    moved_keys_are_found(&cluster).await;
    a_slot_half_way(&cluster).await;
    one_deadline_for_all_slots(&cluster).await;
    a_node_taken_for_all_there_is(&cluster).await;
}

/// What counting rates takes, and looking for the nodes.
const RIGHTS: &str = "~tollgate:* +evalsha +eval +time +get +set +cluster|slots";

async fn a_user_with_few_rights(cluster: &Cluster) {
    let url = cluster.url().replace("://", "://limits:secret@");
    let redis = connect(&url);
    let limiter = redis.limiter("few", Rate::per_hour(LIMIT)).build();
    let limiter = limiter.expect("a limit");
    for number in 0..LIMIT + 2 {
        let answer = limiter.try_check("k", 1).await.expect("an answer");
        assert_eq!(answer.denied().is_none(), number < LIMIT);
    }
}

async fn a_node_taken_for_all_there_is(cluster: &Cluster) {
    let redis = connect(&cluster.nodes()[0].url());
    let limiter = redis.limiter("few", Rate::per_hour(LIMIT)).build();
    let limiter = limiter.expect("a limit");
    let mut kinds = Vec::new();
    for number in 0..20 {
        let answer = limiter.try_check(&number.to_string(), 1).await;
        kinds.extend(answer.err().map(|error| error.kind()));
    }
    assert!(kinds.contains(&FailureKind::Moved), "{kinds:?}");
    let failures = redis.stats().failures;
    let counts: Vec<_> = (failures.iter()).map(|one| (one.kind, one.count)).collect();
    assert_eq!(counts, [(FailureKind::Moved, kinds.len() as u64)]);
}

async fn one_tenant_is_asked_about_in_one_call(cluster: &Cluster) {
    let engine = engine(
        cluster,
        "limits:
         - {name: per-user, key: [tenant, user], rate: 1000/h}
         - {name: per-path, key: [path, tenant], hash_tag: tenant, rate: 1000/h, algorithm: sliding-log}
         - {name: per-tenant, key: tenant, rate: 5/h, quota: 1000/day}",
    );
    for tenant in ["acme", "globex", "initech", "umbrella"] {
        let facts = Facts::new().with("tenant", tenant);
        let facts = facts.with("user", "ada").with("path", "/");
        // The scripts are told to each master once.
        assert!(
            engine
                .decide_async(&facts)
                .await
                .unwrap()
                .allowed()
                .is_some()
        );
        let (before, stats) = (scripts(cluster), engine.backend().stats());
        for number in 1..8 {
            let verdict = engine.decide_async(&facts).await.unwrap();
            assert_eq!(verdict.denied().is_none(), number < 5);
        }
        let now = engine.backend().stats();
        assert_eq!(now.round_trips - stats.round_trips, 7);
        assert_eq!(now.queries - stats.queries, 4 * 7);
        assert_eq!(scripts(cluster) - before, 7);
    }
    assert_eq!(engine.backend().stats().fallback, Default::default());
}

async fn what_was_charged_is_given_back(cluster: &Cluster) {
    let rule = |name: &str, rate: &str| {
        format!("{{name: {name}, key: {name}, rate: {rate}, cost: {{fact: cost}}}}")
    };
    let rules = [
        rule("first", "10/h"),
        rule("second", "10/h"),
        rule("third", "2/h"),
    ];
    let engine = engine(cluster, &format!("limits: [{}]", rules.join(", ")));
    let all = Facts::new()
        .with("first", "1")
        .with("second", "1")
        .with("third", "1");
    let slots = ["{first=1}", "{second=1}", "{third=1}"].map(hash_slot);
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2]);
    for _ in 0..2 {
        assert!(engine.decide_async(&all).await.unwrap().allowed().is_some());
    }
    // In order: the third is asked last, and refuses.
    let stats = engine.backend().stats();
    let verdict = engine.decide_async(&all).await.unwrap();
    assert_eq!(
        (verdict.denied().is_none(), verdict.cause()),
        (false, Cause::Rule("third"))
    );
    drop(verdict);
    let peek = |fact: &'static str| Facts::new().with(fact, "1").with("cost", "0");
    for fact in ["first", "second"] {
        let facts = peek(fact);
        eventually("what was charged to be back", async || {
            left(&engine, &facts).await == 8
        })
        .await;
    }
    assert_eq!(left(&engine, &peek("third")).await, 0);
    // Three charges and two that were given back, and what looking took; some may have shared a call.
    eventually("all answers", async || {
        engine.backend().stats().queries - stats.queries >= 3 + 2 + 3
    })
    .await;

    // The first one refuses: no other is asked.
    let facts = Facts::new().with("first", "1").with("cost", "8");
    assert!(
        engine
            .decide_async(&facts)
            .await
            .unwrap()
            .allowed()
            .is_some()
    );
    let (before, stats) = (scripts(cluster), engine.backend().stats());
    for _ in 0..5 {
        let verdict = engine.decide_async(&all).await.unwrap();
        assert_eq!(verdict.cause(), Cause::Rule("first"));
    }
    assert_eq!(engine.backend().stats().round_trips - stats.round_trips, 5);
    assert_eq!(scripts(cluster) - before, 5);
    assert_eq!(left(&engine, &peek("second")).await, 8);
}

async fn one_deadline_for_all_slots(cluster: &Cluster) {
    const SECOND: Duration = Duration::from_secs(1);
    let policy =
        "limits: [{name: a, key: user, rate: 1000/h}, {name: b, key: tenant, rate: 1000/h}]";
    let policy = Policy::from_text(policy, Format::Yaml)
        .expect("a policy")
        .policy;
    let redis = Redis::builder(&cluster.url())
        .expect("a URL")
        .timeout(SECOND);
    let engine = Engine::new(policy, redis.build().expect("a runtime")).expect("a policy");
    // A user and a tenant who live with different masters.
    let user = cluster.master_of(hash_slot("{user=1}"));
    let tenants = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let home = |tenant: &&str| cluster.master_of(hash_slot(format!("{{tenant={tenant}}}")));
    let tenant = tenants
        .iter()
        .find(|tenant| home(tenant).port() != user.port());
    let tenant = tenant.expect("a tenant who lives elsewhere");
    let facts = Facts::new().with("user", "1").with("tenant", tenant);
    assert!(
        engine
            .decide_async(&facts)
            .await
            .unwrap()
            .allowed()
            .is_some()
    );

    // The first takes its time and the second takes more than there is: together not two timeouts.
    let pause = |server: &Server, millis: &str| {
        server.command(&["CLIENT", "PAUSE", millis, "WRITE"]);
    };
    pause(home(tenant), "20000");
    pause(user, "800");
    let (began, late) = (Instant::now(), lateness());
    let verdict = engine.decide_async(&facts).await.unwrap();
    let (took, late) = (began.elapsed(), lateness() - late);
    assert!(verdict.fallback().is_some());
    assert!(took >= SECOND, "{took:?}");
    assert!(
        took <= SECOND + Duration::from_millis(500) + 3 * late,
        "{took:?}"
    );
    drop(verdict);
    home(tenant).command(&["CLIENT", "UNPAUSE"]);
    eventually("the store", async || {
        engine
            .decide_async(&facts)
            .await
            .unwrap()
            .fallback()
            .is_none()
    })
    .await;
}

/// The owner of a key's hash slot, and another master.
fn owner_and_other(cluster: &Cluster, slot: u16) -> (&Server, &Server) {
    let owner = cluster.master_of(slot);
    let other = cluster.masters().find(|one| one.port() != owner.port());
    (owner, other.expect("another master"))
}

async fn moved_keys_are_found(cluster: &Cluster) {
    let redis = connect(&cluster.url());
    let limiter = redis
        .limiter("moved", Rate::per_hour(LIMIT))
        .build()
        .expect("a limit");
    let slot = hash_slot("{key=mover}");
    let (_, other) = owner_and_other(cluster, slot);
    assert!(
        limiter
            .check_n("mover", LIMIT - 2)
            .await
            .allowed()
            .is_some()
    );
    cluster.migrate_slot(slot, other);
    // MOVED: what was spent there is spent here.
    let answer = limiter.check("mover").await;
    assert_eq!((answer.fallback, answer.decision.remaining), (None, 1));
    assert!(limiter.check("mover").await.allowed().is_some());
    assert!(limiter.check("mover").await.denied().is_some());
    assert_eq!(redis.stats().fallback.errors, 0);
}

async fn a_slot_half_way(cluster: &Cluster) {
    let redis = connect(&cluster.url());
    let limiter = |name: &str| {
        redis
            .limiter(name, Rate::per_hour(LIMIT))
            .build()
            .expect("a limit")
    };
    let (moved, new) = (limiter("gone ahead"), limiter("new"));
    let slot = hash_slot("{key=half}");
    let (owner, other) = owner_and_other(cluster, slot);
    assert!(moved.check_n("half", LIMIT - 2).await.allowed().is_some());
    let migration = cluster.begin_migration(slot, other);
    assert_eq!(migration.move_keys(100), 1);
    // ASK: both what has moved and what was never there is at the other node.
    for (limiter, left) in [(&moved, 1), (&new, LIMIT - 1)] {
        let answer = limiter.check("half").await;
        assert_eq!((answer.fallback, answer.decision.remaining), (None, left));
    }
    assert_eq!(
        owner
            .command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()])
            .integer(),
        Some(0)
    );
    migration.finish();
    assert_eq!(moved.check("half").await.decision.remaining, 0);
    assert_eq!(new.check("half").await.decision.remaining, LIMIT - 2);
    assert_eq!(redis.stats().fallback.errors, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_admitted_twice_while_slots_move() {
    const BURST: u64 = 50;
    const RATE: u64 = 200;
    let cluster = Arc::new(Cluster::start());
    let redis = Redis::builder(&cluster.url()).unwrap();
    let redis = redis.timeout(Duration::from_millis(100)).build().unwrap();
    let rate = Rate::per_second(RATE).burst(BURST);
    let limiter = redis
        .limiter("hot", rate)
        .on_store_failure(OnStoreFailure::Closed);
    let limiter = Arc::new(limiter.build().unwrap());
    eventually("the store", async || {
        limiter.check_n("k", 0).await.fallback.is_none()
    })
    .await;
    let (admitted, without) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (limiter, is_over) = (Arc::clone(&limiter), Arc::clone(&is_over));
            let (admitted, without) = (Arc::clone(&admitted), Arc::clone(&without));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let answer = limiter.check("k").await;
                    let failed = answer.fallback.is_some();
                    assert!(!(failed && answer.denied().is_none()));
                    admitted.fetch_add(u64::from(answer.denied().is_none()), Ordering::Relaxed);
                    without.fetch_add(u64::from(failed), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    let moves = if is_soak() { 100 } else { 12 };
    let own = Arc::clone(&cluster);
    let moving = tokio::task::spawn_blocking(move || {
        let slot = hash_slot("{key=k}");
        for _ in 0..moves {
            let (_, other) = owner_and_other(&own, slot);
            own.migrate_slot(slot, other);
        }
    });
    moving.await.unwrap();
    let before = admitted.load(Ordering::Relaxed);
    eventually("more to be admitted", async || {
        admitted.load(Ordering::Relaxed) > before
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    for task in load {
        tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
    }
    let (admitted, millis) = (
        admitted.load(Ordering::Relaxed),
        began.elapsed().as_millis(),
    );
    let most = BURST + RATE * (u64::try_from(millis).unwrap() + 1) / 1000;
    assert!(admitted <= most, "{admitted} of {most}");
    assert!(admitted >= BURST, "{admitted}");
    assert_eq!(
        redis.stats().fallback.closed,
        without.load(Ordering::Relaxed)
    );
    eventually("the store to decide", async || {
        limiter.check_n("k", 0).await.fallback.is_none()
    })
    .await;
    assert!(!redis.is_fallback_active());
}
