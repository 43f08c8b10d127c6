//! Keys of a store that no limiter wrote: each is reported, and left unchanged.

use tollgate::Rate;
use tollgate_engine::backend::LimitKind;
use tollgate_redis::{FailureKind, Redis, RedisLimiter};
use tollgate_testkit::redis::{Client, Reply, Server, wait_until};

use crate::common::{DEADLINE, LIMIT, PATIENT, connect};
use crate::recovery::kinds;

/// What no limiter wrote, by the commands that put it under a key.
fn garbage(key: &[u8], size: usize) -> Vec<Vec<Vec<u8>>> {
    let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    let mut all = vec![
        words(&[b"RPUSH", key, b"a", b"b"]),
        words(&[b"HSET", key, b"a", b"b"]),
        words(&[b"SADD", key, b"a"]),
        words(&[b"ZADD", key, b"1", b"neither a holder nor a hit"]),
        words(&[b"ZADD", key, b"9000000000000000", b"a", b"inf", b"b"]),
        words(&[b"ZADD", key, b"inf", b"1:1"]),
        words(&[b"ZADD", key, b"-inf", b"a/1/2", b"inf", b"b/1/2"]),
        words(&[b"SET", key, b"garbage"]),
        words(&[b"SET", key, b""]),
        // One number alone, which might be a time.
        words(&[b"SET", key, &[0; 8]]),
        words(&[b"SET", key, &1e15_f64.to_le_bytes()]),
    ];
    // As long as what belongs there: not a number, huge, tiny, below zero, beyond all times.
    let doubles = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -1e300,
        1e300,
        -1.0,
    ];
    for number in doubles {
        let value = number.to_le_bytes().repeat(size / 8);
        all.push(words(&[b"SET", key, &value]));
    }
    all.push(words(&[b"SET", key, &vec![b'x'; size]]));
    all
}

/// What somebody else keeps under a key: the same bytes as long as nobody touches it.
fn dump(client: &mut Client, key: &[u8]) -> Reply {
    client.command(&[b"DUMP", key]).expect("a server")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_limiter_wrote_is_told_and_left_as_it_is() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap().timeout(PATIENT);
    let redis = builder.deny_cache(0).node_count(1).build().unwrap();
    let mut client = server.client().unwrap();
    for kind in kinds() {
        let is_slots = matches!(kind, LimitKind::Concurrency(_));
        server.command(&["FLUSHALL"]);
        let limiter = redis
            .limiter_with_kind("odd", kind.clone())
            .build()
            .unwrap();
        let other = redis
            .limiter_with_kind("other", kind.clone())
            .build()
            .unwrap();
        let first = limiter.check("k").await;
        assert!(first.denied().is_none());
        let keys = server.command(&["KEYS", "*"]);
        let [Reply::Bulk(key)] = keys.items() else {
            panic!("{keys:?}");
        };
        let size = client.command(&[b"STRLEN", &key[..]]);
        let size = size.ok().and_then(|size| size.integer()).unwrap_or(24);
        drop(first);
        if is_slots {
            wait_until(DEADLINE, "the slot to be free", || {
                client.command(&[b"EXISTS", &key[..]]).unwrap() == Reply::Integer(0)
            });
        }
        for odd in garbage(key, usize::try_from(size).unwrap()) {
            client.command(&[b"DEL", &key[..]]).unwrap();
            client.command(&odd).unwrap();
            let before = dump(&mut client, key);
            let told = is_told(&limiter, &kind).await;
            // In one call with others: those are answered.
            let ((), answer) = tokio::join!(is_told_once(&limiter), other.try_check("k", 1));
            assert!(answer.is_ok(), "{kind:?} {odd:?}");
            drop(answer);
            assert_eq!(dump(&mut client, key), before, "{kind:?} {odd:?}");
            let name = format!("{:?}", String::from_utf8_lossy(key));
            assert!(told.contains(&name), "{told}");
        }
    }
    assert!(redis.stats().foreign_keys > 0);
}

async fn is_told_once(limiter: &RedisLimiter) {
    let error = limiter.try_check("k", 1).await.expect_err("not ours");
    assert_eq!(error.kind(), FailureKind::WrongType, "{error}");
}

/// Every request gets the error that the key belongs to another program.
async fn is_told(limiter: &RedisLimiter, kind: &LimitKind) -> String {
    is_told_once(limiter).await;
    let is_slots = matches!(kind, LimitKind::Concurrency(_));
    let mut errors = vec![
        limiter.try_check("k", 0).await.map(drop),
        limiter.peek("k").await.map(drop),
        limiter.reset("k").await,
    ];
    if !is_slots {
        errors.push(limiter.allow_at_most("k", 1).await.map(drop));
        errors.push(limiter.refund("k", 1).await);
    }
    let mut told = String::new();
    for error in errors {
        let error = error.expect_err("not ours");
        assert_eq!(error.kind(), FailureKind::WrongType, "{kind:?}: {error}");
        told = error.to_string();
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_no_node_wrote_is_told_and_left_as_it_is() {
    let server = Server::start();
    let redis = connect(&server.url());
    let rate = Rate::per_day(LIMIT * 100).burst(LIMIT);
    let limiter = redis.limiter("odd", rate).leased().build().unwrap();
    let mut client = server.client().unwrap();
    assert!(limiter.check("k").await.allowed().is_some());
    let keys = server.command(&["KEYS", "*"]);
    let [Reply::Bulk(key)] = keys.items() else {
        panic!("{keys:?}");
    };
    for odd in garbage(key, 64) {
        // Nobody holds anything of a node that is gone.
        let redis = connect(&server.url());
        let limiter = redis.limiter("odd", rate).leased().build().unwrap();
        client.command(&[b"DEL", &key[..]]).unwrap();
        client.command(&odd).unwrap();
        let before = dump(&mut client, key);
        is_told_once(&limiter).await;
        assert_eq!(dump(&mut client, key), before, "{odd:?}");
        assert!(redis.stats().foreign_keys > 0, "{odd:?}");
    }
}
