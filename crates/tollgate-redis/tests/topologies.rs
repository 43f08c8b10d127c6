//! Every way to a store that a URL can say.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{PATIENT, connect, eventually};
use tollgate::quota::Quota;
use tollgate::{Algorithm, Align, Rate};
use tollgate_engine::backend::LimitKind;
use tollgate_redis::{Redis, StoreError};
use tollgate_testkit::redis::{Reply, Server};

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
            allowed += u32::from(answer.allowed);
        }
    }
    assert_eq!(allowed, 3, "{url}");
}

/// Why nothing is kept at a URL.
async fn refused_at(url: &str) -> String {
    let redis = connect(url);
    let limiter = redis.limiter("logins", Rate::per_hour(3)).build();
    let limiter = limiter.expect("a limit");
    assert!(limiter.check("ada").await.fallback.is_some());
    let error = limiter.try_check("ada", 1).await.expect_err("no store");
    error.to_string()
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
    assert!(error.contains("DB index is out of range"), "{error}");
}

#[tokio::test]
async fn a_password() {
    let server = Server::builder()
        .password("op%n sesame".replace(' ', "").as_str())
        .start();
    let url = format!("redis://:op%25nsesame@127.0.0.1:{}", server.port());
    holds_at(&url).await;
    let error = refused_at(&url.replace("sesame", "barley")).await;
    assert!(error.contains("authentication failed"), "{error}");
    assert!(!error.contains("barley"), "{error}");
    let error = refused_at(&format!("redis://127.0.0.1:{}", server.port())).await;
    assert!(error.contains("NOAUTH"), "{error}");
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
    assert!(error.to_lowercase().contains("certificate"), "{error}");

    let server = Server::builder()
        .tls()
        .arg("tls-auth-clients", "yes")
        .start();
    let paths = server.certificates();
    let trusting = format!("{}?{}", server.tls_url(), query("ca", &paths.authority));
    refused_at(&trusting).await;
    let known = [
        query("cert", &paths.client),
        query("key", &paths.client_key),
    ]
    .join("&");
    holds_at(&format!("{trusting}&{known}")).await;

    let missing = Redis::connect(&format!("{}?ca=/no/such/file", server.tls_url()));
    let error = missing.unwrap_err().to_string();
    assert!(error.contains("/no/such/file"), "{error}");
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
    assert!(error.contains("authentication failed"), "{error}");

    // Each of them is needed: without it, something isn't permitted.
    for right in RIGHTS.into_iter().filter(|right| *right != RENEWING) {
        server.command(&["SCRIPT", "FLUSH"]);
        server.command(&["ACL", "SETUSER", "limits", &format!("-{right}")]);
        let error = exercise(&connect(&url)).await;
        let error = error.expect_err(right).to_string();
        assert!(is_forbidden(&error), "{right}: {error}");
        server.command(&["ACL", "SETUSER", "limits", &format!("+{right}")]);
    }
    exercise(&connect(&url)).await.unwrap();
    server.command(&["ACL", "SETUSER", "limits", &format!("-{RENEWING}")]);
    let builder = Redis::builder(&url).unwrap().timeout(PATIENT);
    let redis = builder
        .slot_life(Duration::from_millis(90))
        .build()
        .unwrap();
    let slots = redis.limiter_of("renewed", LimitKind::Concurrency(1));
    let _held = slots.build().unwrap().try_check("k", 1).await.unwrap();
    eventually("a renewal in vain", async || {
        redis.stats().failed_round_trips > 0
    })
    .await;

    // It has no keys but its own.
    let redis = Redis::builder(&url)
        .unwrap()
        .timeout(PATIENT)
        .prefix("other");
    let limiter = redis
        .build()
        .unwrap()
        .limiter("a", Rate::per_hour(1))
        .build();
    let error = limiter.unwrap().try_check("k", 1).await.unwrap_err();
    assert!(is_forbidden(&error.to_string()), "{error}");
}

/// What only renewals of slots need.
const RENEWING: &str = "zscore";

/// Whether an error says that something isn't permitted.
fn is_forbidden(error: &str) -> bool {
    ["NOPERM", "permissions", "can't run this command"]
        .iter()
        .any(|text| error.contains(text))
}

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
        rate(Algorithm::FixedWindow(Align::default())),
        rate(Algorithm::SlidingLog),
        rate(Algorithm::SlidingCounter),
        quota("7/month"),
        quota("7 in any 30d"),
    ] {
        let limiter = redis.limiter_of("all", kind).build().expect("a limit");
        limiter.reset("k").await?;
        assert!(limiter.try_check("k", 1).await?.allowed);
        assert!(limiter.try_check("k", 2).await?.allowed);
        assert_eq!(limiter.allow_at_most("k", 9).await?, 4);
        assert!(!limiter.try_check("k", 3).await?.allowed);
        assert_eq!(limiter.refund("k", 2).await?.remaining, 2);
    }
    let limiter = redis
        .limiter("paced", Rate::per_second(100))
        .build()
        .expect("a limit");
    limiter.pace("k", 1, Duration::from_secs(1)).await?;
    let limiter = redis.limiter("leased", Rate::per_hour(1000)).leased();
    assert!(
        limiter
            .build()
            .expect("a limit")
            .try_check("k", 1)
            .await?
            .allowed
    );
    let slots = redis
        .limiter_of("slots", LimitKind::Concurrency(1))
        .build()
        .expect("a limit");
    slots.reset("k").await?;
    let held = slots.try_check("k", 1).await?;
    assert!(held.allowed && !slots.try_check("k", 1).await?.allowed);
    drop(held);
    let mut failed = None;
    eventually("the slot to be free", async || {
        match slots.try_check("k", 1).await {
            Ok(answer) => answer.allowed,
            Err(error) => {
                failed = Some(error);
                true
            }
        }
    })
    .await;
    failed.map_or(Ok(()), Err)
}
