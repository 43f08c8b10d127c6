//! Every form of a store's URL.

#[path = "../common/mod.rs"]
mod common;
mod logins;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{DEADLINE, MARGIN, PATIENT, connect, eventually};
use logins::WRONG_LOGIN;
use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate, core::WindowAlignment};
use tollgate_engine::backend::LimitKind;
use tollgate_redis::{ConnectError, FailureKind, Redis, StoreError};
use tollgate_testkit::redis::{Cluster, Reply, Sentinels, Server};
use tollgate_testkit::temp_folder::TempFolder;

/// Whether a limit is kept at a URL: it holds for two clients together.
async fn holds_at(url: &str) {
    let (one, other) = (connect(url), connect(url));
    let limit = |redis: &Redis| redis.limiter("logins", Rate::per_hour(3)).build();
    let (one, other) = (
        limit(&one).expect("a limit"),
        limit(&other).expect("a limit"),
    );
    let mut allowed = 0;
    for _ in 0..3 {
        for limiter in [&one, &other] {
            let answer = limiter.check("ada").await;
            assert_eq!(answer.fallback, None, "{url}");
            allowed += u32::from(answer.denied().is_none());
        }
    }
    assert_eq!(allowed, 3, "{url}");
}

/// The reason why nothing is stored at a URL: returned at the start, and for each request.
async fn refused_at(url: &str) -> StoreError {
    let redis = connect(url);
    let limiter = redis.limiter("logins", Rate::per_hour(3)).build();
    let limiter = limiter.expect("a limit");
    assert!(limiter.check("ada").await.fallback.is_some());
    let error = limiter.try_check("ada", 1).await.expect_err("no store");
    if error.kind().is_lasting() {
        assert_eq!(redis.ready(DEADLINE).await, Err(error.clone()));
    }
    let failures = redis.stats().failures;
    let [failure] = &failures[..] else {
        panic!("one kind: {failures:?}");
    };
    let told = (failure.kind, failure.count, &*failure.first_error);
    assert_eq!(told, (error.kind(), 2, &*error.to_string()));
    assert!(failure.failing_for.is_some());
    error
}

#[tokio::test]
async fn a_database_by_number() {
    let server = Server::start();
    let url = server.url().replace("/0", "/3");
    holds_at(&url).await;
    let mut client = server.client().unwrap();
    assert_eq!(client.command(&["DBSIZE"]).unwrap(), Reply::Integer(0));
    client.command(&["SELECT", "3"]).unwrap();
    assert_eq!(client.command(&["DBSIZE"]).unwrap(), Reply::Integer(1));
    // What is counted there isn't counted here.
    holds_at(&server.url()).await;
    let error = refused_at(&server.url().replace("/0", "/99")).await;
    assert_eq!(error.kind(), FailureKind::Other);
    let text = error.to_string();
    assert!(text.contains("DB index is out of range"), "{text}");
}

#[tokio::test]
async fn tls_where_none_is_spoken_and_none_where_it_is() {
    for server in [Server::builder(), Server::builder().valkey()] {
        let server = server.tls().start();
        // Neither says so: the one waits, the other closes.
        let error = refused_at(&server.url().replace("redis://", "rediss://")).await;
        assert_eq!(error.kind(), FailureKind::Tls);
        assert_eq!(
            error.to_string(),
            "the store can't be reached: it speaks no TLS on this port; write redis instead of rediss \
             into its URL, or the port on which it does"
        );
        let error = refused_at(&server.tls_url().replace("rediss://", "redis://")).await;
        assert_eq!(error.kind(), FailureKind::Tls);
        assert_eq!(
            error.to_string(),
            "the store can't be reached: it speaks nothing but TLS on this port; write rediss instead \
             of redis into its URL, or the port on which it does"
        );
    }
}

#[tokio::test]
async fn a_unix_socket() {
    let server = Server::builder().unix_socket().start();
    let url = format!("redis+unix://{}", server.unix_socket().display());
    holds_at(&url).await;
    assert_eq!(server.command(&["DBSIZE"]), Reply::Integer(1));
    holds_at(&format!("{url}?db=2")).await;
}

#[tokio::test]
async fn valkey() {
    let server = Server::builder().valkey().start();
    holds_at(&server.url().replace("redis://", "valkey://")).await;
    exercise(&connect(&server.url())).await.unwrap();
}

#[tokio::test]
async fn tls_with_an_authority_and_a_certificate_of_ones_own() {
    let server = Server::builder().tls().start();
    let paths = server.certificates();
    let query = |name: &str, path: &Path| format!("{name}={}", path.display());
    let trusting = format!("{}?{}", server.tls_url(), query("ca", &paths.authority));
    holds_at(&trusting).await;
    // Without the authority the server could be anybody.
    let error = refused_at(&server.tls_url()).await;
    assert_eq!(error.kind(), FailureKind::Tls);
    assert_eq!(
        error.to_string(),
        "the store can't be reached: invalid peer certificate: UnknownIssuer; name who signed the \
         store's certificate in its URL: ?ca=FILE"
    );

    let server = Server::builder()
        .tls()
        .arg("tls-auth-clients", "yes")
        .start();
    let paths = server.certificates();
    let trusting = format!("{}?{}", server.tls_url(), query("ca", &paths.authority));
    let error = refused_at(&trusting).await;
    assert_eq!(error.kind(), FailureKind::Tls);
    assert_eq!(
        error.to_string(),
        "the store can't be reached: received fatal alert: CertificateRequired; name a certificate \
         that the store knows in its URL: ?cert=FILE&key=FILE"
    );
    let known = [
        query("cert", &paths.client),
        query("key", &paths.client_key),
    ]
    .join("&");
    holds_at(&format!("{trusting}&{known}")).await;

    let missing = Redis::connect(&format!("{}?ca=/no/such/file", server.tls_url()));
    let error = missing.unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    let ConnectError::Store(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.kind(), FailureKind::Tls);
}

#[tokio::test]
async fn certificates_that_are_renewed_are_read_again() {
    let (server, other) = (
        Server::builder().tls().start(),
        Server::builder().tls().start(),
    );
    let scratch = TempFolder::new("renewed");
    let file = scratch.path("authority.pem");
    let copy = |of: &Server| std::fs::copy(&of.certificates().authority, &file).unwrap();
    copy(&other);
    let redis = connect(&format!("{}?ca={}", server.tls_url(), file.display()));
    let limiter = redis.limiter("logins", Rate::per_hour(3)).build().unwrap();
    let error = limiter
        .try_check("ada", 1)
        .await
        .expect_err("another authority");
    assert_eq!(error.kind(), FailureKind::Tls, "{error}");
    // There is none for a moment, as when it is replaced.
    std::fs::remove_file(&file).unwrap();
    let error = limiter
        .try_check("ada", 1)
        .await
        .expect_err("still another");
    assert_eq!(error.kind(), FailureKind::Tls, "{error}");
    copy(&server);
    eventually("the right authority", async || {
        limiter.try_check("ada", 1).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_ready_says_so_and_who_is_not_says_why() {
    let server = Server::builder().acl("none", "secret", "~* +ping").start();
    let redis = connect(&server.url());
    assert_eq!(redis.ready(DEADLINE).await, Ok(()));
    server.pause();
    // What waiting may mend is waited for.
    let within = Duration::from_millis(50);
    let late = StoreError::TimedOut { after: within };
    assert_eq!(redis.ready(within).await, Err(late));
    let waiting = redis.clone();
    let waiting = tokio::spawn(async move { waiting.ready(DEADLINE).await });
    server.resume();
    assert_eq!(waiting.await.unwrap(), Ok(()));
    server.kill();
    let error = redis.ready(MARGIN).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Refused, "{error}");
    // A connection that nobody waits for isn't a question that failed.
    assert_eq!(redis.stats().failures, []);
    server.restart_empty();
    assert_eq!(redis.ready(DEADLINE).await, Ok(()));

    let url = server.url().replace("redis://", "redis://none:secret@");
    let error = connect(&url).ready(DEADLINE).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::NoPermission, "{error}");
    let error = connect("redis+unix:///no/such/socket").ready(within).await;
    assert_eq!(error.unwrap_err().kind(), FailureKind::NotFound);
}

/// What was logged, as `LEVEL kind: message`.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, event: &tracing::Metadata<'_>) -> bool {
        event.target() == "tollgate"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { kind, message } = line;
        let line = format!("{} {kind}: {message}", event.metadata().level());
        self.0.lock().expect("not poisoned").push(line);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn enter(&self, _: &tracing::Id) {}
    fn exit(&self, _: &tracing::Id) {}
}

#[derive(Default)]
struct Line {
    kind: String,
    message: String,
}

impl tracing::field::Visit for Line {
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        if field.name() == "kind" {
            self.kind = value.to_owned();
        }
    }

    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

#[tokio::test]
async fn a_failure_to_connect_is_logged_at_once_though_nobody_asks() {
    let server = Server::builder().password("sesame").start();
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let logged = || log.0.lock().expect("not poisoned").clone();
    let _redis = connect(&server.url().replace("sesame", "barley"));
    eventually("a line", async || !logged().is_empty()).await;
    let (kind, text) = WRONG_LOGIN;
    let login = format!("WARN {}: no rate-limit store: {text}", kind.name());
    assert_eq!(logged(), std::slice::from_ref(&login));
    // It is tried again and again, and told again when there is another reason.
    let tries = || server.info("errorstats", "errorstat_WRONGPASS");
    let before = tries();
    eventually("another attempt", async || tries() != before).await;
    assert_eq!(logged(), std::slice::from_ref(&login));
    server.kill();
    eventually("another line", async || logged().len() > 1).await;
    let logged = logged();
    let refused = "WARN refused: no rate-limit store: the store can't be reached: ";
    assert!(logged[1].starts_with(refused), "{logged:?}");
}

/// All that a user needs to be allowed, besides its keys.
const RIGHTS: [&str; 17] = [
    "evalsha",
    "eval",
    "time",
    "get",
    "set",
    "del",
    "pexpire",
    "zadd",
    "zcard",
    "zcount",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrem",
    "zremrangebyscore",
    "zscore",
    "select",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_do_what_limits_need_and_nothing_else() {
    let rights: String = RIGHTS.iter().map(|right| format!(" +{right}")).collect();
    let rules = format!("resetchannels ~tollgate:*{rights}");
    let server = Server::builder().acl("limits", "secret", &rules).start();
    let url = format!("redis://limits:secret@127.0.0.1:{}/1", server.port());
    exercise(&connect(&url)).await.unwrap();
    let error = refused_at(&url.replace("secret", "guess")).await;
    assert_eq!((error.kind(), &*error.to_string()), WRONG_LOGIN);

    // Each of them is needed: without it, something isn't permitted, and all are told, as in the documents.
    let of_all: String = (RIGHTS.iter().filter(|right| **right != "select"))
        .map(|right| format!(" +{right}"))
        .collect();
    let needs = format!(
        "; what a user of limits needs: ~tollgate:*{of_all} (of another prefix than tollgate its own keys), \
         +select for another database than 0, +role behind sentinels, +cluster|slots +asking in a cluster"
    );
    let documented = include_str!("../../../../docs/reference/store.md");
    let line = format!("ACL SETUSER tollgate on >password ~tollgate:*{of_all}\n");
    assert!(documented.contains(&line), "{line}");
    for right in RIGHTS.into_iter().filter(|right| *right != RENEWING) {
        server.command(&["SCRIPT", "FLUSH"]);
        server.command(&["ACL", "SETUSER", "limits", &format!("-{right}")]);
        let error = exercise(&connect(&url)).await;
        let error = error.expect_err(right);
        assert_eq!(error.kind(), FailureKind::NoPermission, "{right}: {error}");
        assert!(error.to_string().contains(&needs), "{error}");
        server.command(&["ACL", "SETUSER", "limits", &format!("+{right}")]);
    }
    exercise(&connect(&url)).await.unwrap();
    server.command(&["ACL", "SETUSER", "limits", &format!("-{RENEWING}")]);
    let builder = Redis::builder(&url).unwrap().timeout(PATIENT);
    let redis = builder
        .permit_ttl(Duration::from_millis(90))
        .build()
        .unwrap();
    let slots = redis.limiter_with_kind("renewed", LimitKind::Concurrency(1));
    let _held = slots.build().unwrap().try_check("k", 1).await.unwrap();
    eventually("a renewal in vain", async || {
        redis.stats().round_trip_errors > 0
    })
    .await;

    // It has no keys but its own.
    let redis = Redis::builder(&url)
        .unwrap()
        .timeout(PATIENT)
        .key_prefix("other");
    let limiter = redis
        .build()
        .unwrap()
        .limiter("a", Rate::per_hour(1))
        .build();
    let error = limiter.unwrap().try_check("k", 1).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::NoPermission, "{error}");
}

/// A command that only renewals of permits need.
const RENEWING: &str = "zscore";

/// Every verb of every kind of limit.
async fn exercise(redis: &Redis) -> Result<(), StoreError> {
    let rate = |algorithm| LimitKind::Rate {
        rate: Rate::per_hour(7),
        algorithm,
    };
    let quota = |text: &str| LimitKind::Quota(text.parse::<Quota>().expect("a quota"));
    for kind in [
        rate(Algorithm::Gcra),
        rate(Algorithm::TokenBucket),
        rate(Algorithm::LeakyBucket),
        rate(Algorithm::FixedWindow(WindowAlignment::default())),
        rate(Algorithm::SlidingLog),
        rate(Algorithm::SlidingCounter),
        quota("7/month"),
        quota("7 in any 30d"),
    ] {
        let limiter = redis
            .limiter_with_kind("all", kind)
            .build()
            .expect("a limit");
        limiter.reset("k").await?;
        assert!(limiter.try_check("k", 1).await?.allowed().is_some());
        assert!(limiter.try_check("k", 2).await?.allowed().is_some());
        assert_eq!(limiter.allow_at_most("k", 9).await?, 4);
        assert!(limiter.try_check("k", 3).await?.denied().is_some());
        limiter.refund("k", 2).await?;
        assert_eq!(limiter.peek("k").await?.remaining, 2);
    }
    let limiter = redis
        .limiter("paced", Rate::per_second(100))
        .build()
        .expect("a limit");
    limiter.reserve("k", 1, Duration::from_secs(1)).await?;
    let limiter = redis.limiter("leased", Rate::per_hour(1000)).leased();
    assert!(
        limiter
            .build()
            .expect("a limit")
            .try_check("k", 1)
            .await?
            .allowed()
            .is_some()
    );
    let slots = redis
        .limiter_with_kind("slots", LimitKind::Concurrency(1))
        .build()
        .expect("a limit");
    slots.reset("k").await?;
    let held = slots.try_check("k", 1).await?;
    assert!(held.denied().is_none() && slots.try_check("k", 1).await?.denied().is_some());
    drop(held);
    let mut failed = None;
    eventually("the slot to be free", async || {
        match slots.try_check("k", 1).await {
            Ok(answer) => answer.denied().is_none(),
            Err(error) => {
                failed = Some(error);
                true
            }
        }
    })
    .await;
    failed.map_or(Ok(()), Err)
}
