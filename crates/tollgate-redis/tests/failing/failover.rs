//! Failures of stores that recover by themselves: a replaced master, a hash slot that moves.

use std::time::Duration;

use tokio::time::Instant;

use crate::common::{DEADLINE, Subject, eventually, is_soak};
use tollgate_testkit::redis::{Builder, Cluster, Sentinels, Server, hash_slot};

/// Where the keys of a [`Subject`] are in a cluster.
fn slot() -> u16 {
    hash_slot("{key=k}")
}

/// What a master may come to.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Killed,
    Stopped,
}

impl Fate {
    fn befall(self, server: &Server) {
        match self {
            Self::Killed => server.kill(),
            Self::Stopped => server.pause(),
        }
    }

    fn undo(self, server: &Server) {
        match self {
            Self::Killed => server.restart_empty(),
            Self::Stopped => server.resume(),
        }
    }
}

/// Every kind of server and every fate in a soak; in a hurry, one.
fn variants() -> Vec<(Builder, Fate)> {
    let all = [
        (Server::builder(), Fate::Killed),
        (Server::builder(), Fate::Stopped),
        (Server::builder().valkey().password("open"), Fate::Killed),
        (Server::builder().valkey(), Fate::Stopped),
    ];
    let count = if is_soak() { all.len() } else { 1 };
    all.into_iter().take(count).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_a_new_master() {
    for (builder, fate) in variants() {
        sentinels_replace(builder, fate).await;
    }
}

async fn sentinels_replace(builder: Builder, fate: Fate) {
    // What counting rates takes, and asking a server whether it is the master.
    let rights = "resetchannels ~tollgate:* +evalsha +eval +time +get +set +role";
    let sentinels = Sentinels::start_with(builder.acl("limits", "secret", rights));
    let url = sentinels.url().replace("://:open@", "://");
    let url = url.replace("://", "://limits:secret@");
    let mut subject = Subject::new(&url).await;
    let old = sentinels.master();
    fate.befall(old);
    subject.weathers().await;
    let new = sentinels.wait_for_new_master(DEADLINE);
    assert_ne!(new.port(), old.port());
    subject.recovers().await;
    let events = subject.told_in_order();
    assert!(events.starts_with(&["began"]), "{events:?}");
    assert!(events.ends_with(&["ended"]), "{events:?}");

    // One that is still there is replaced: its clients are told, or find that it takes no writes.
    let others = || sentinels.servers().iter().filter(|one| one.answers());
    eventually("a replica that can take over", async || {
        let replicas = new.info("replication", "connected_slaves");
        replicas == "1" && others().count() == 2
    })
    .await;
    let sentinel = &sentinels.sentinels()[0];
    eventually("a failover by hand", async || {
        let asked = sentinel.client();
        let asked = asked.and_then(|mut one| one.command(&["SENTINEL", "FAILOVER", "mymaster"]));
        asked.is_ok()
    })
    .await;
    eventually("another master", async || {
        subject.carries_on().await;
        sentinels.master().port() != new.port()
    })
    .await;
    sentinels.wait_for_new_master(DEADLINE);
    subject.carries_on().await;
    subject.recovers().await;
    subject.told_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_loses_a_master_and_moves_a_slot() {
    for (builder, fate) in variants() {
        a_cluster_suffers(builder, fate).await;
    }
}

async fn a_cluster_suffers(builder: Builder, fate: Fate) {
    let cluster = Cluster::start_with(builder);
    let mut subject = Subject::new(&cluster.url()).await;
    slot_moves(&cluster, &mut subject).await;

    let old = cluster.master_of(slot());
    fate.befall(old);
    subject.weathers().await;
    cluster.wait_until_ok(DEADLINE);
    let new = cluster.master_of(slot());
    assert_ne!(new.port(), old.port());
    subject.recovers().await;
    let events = subject.told_in_order();
    assert!(
        events.contains(&"began") && events.ends_with(&["ended"]),
        "{events:?}"
    );

    // By hand, with nobody down.
    fate.undo(old);
    eventually("the old master to answer", async || old.answers()).await;
    cluster.wait_until_ok(DEADLINE);
    let mut asked: Option<Instant> = None;
    eventually("the old master to be it again", async || {
        // It isn't heard before its successor has a link to it.
        if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(1)) {
            asked = Some(Instant::now());
            let again = old.client();
            let _ = again.and_then(|mut again| again.command(&["CLUSTER", "FAILOVER"]));
        }
        subject.carries_on().await;
        old.info("replication", "role") == "master"
    })
    .await;
    cluster.wait_until_ok(DEADLINE);
    subject.carries_on().await;
    subject.recovers().await;
    subject.told_in_order();
}

/// Moves the hash slot to the next master and back, and decides by every policy at every step.
async fn slot_moves(cluster: &Cluster, subject: &mut Subject) {
    let home = cluster.master_of(slot());
    let away = cluster.masters().find(|one| one.port() != home.port());
    let away: &Server = away.expect("another master");
    for to in [away, home] {
        let migration = cluster.begin_migration(slot(), to);
        subject.carries_on().await;
        while migration.move_keys(7) > 0 {
            subject.carries_on().await;
        }
        migration.finish();
        subject.carries_on().await;
    }
    subject.recovers().await;
    subject.told_in_order();
}
