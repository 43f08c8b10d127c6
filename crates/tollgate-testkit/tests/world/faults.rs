//! Faults of a store: its states, as a real one has them, and what it loses.

use tollgate_testkit::redis::Reply;
use tollgate_testkit::traffic::Random;
use tollgate_testkit::world::{Counts, Store, StoreCondition};

use super::{Both, pick};

/// Scripts that write or read, first or later.
const SCRIPTS: [&str; 7] = [
    "return redis.call('SET', 'k', 'v')",
    "return redis.pcall('SET', 'k', 'v')",
    "return redis.call('GET', 'k')",
    "redis.call('GET', 'k') return redis.call('ZADD', 'z', 1, 'm')",
    "redis.call('DEL', 'none') return redis.call('SET', 'k', 'w')",
    "redis.call('PEXPIRE', 'k', 100000) return redis.pcall('ZADD', 'z', 1, 'n')",
    "return redis.call('ZREM', 'z', 'm')",
];

fn conditions_are_alike(both: &mut Both) {
    for script in SCRIPTS {
        let _ = both.same_script(script, &[]);
    }
    for words in [
        "SET k v",
        "GET k",
        "DEL k",
        "ZADD z 1 m",
        "PEXPIRE z 100000",
    ] {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let _ = both.same(&words);
    }
}

#[test]
fn a_store_without_memory_refuses_as_redis_does() {
    let mut both = Both::new();
    conditions_are_alike(&mut both);
    both.command(&["CONFIG", "SET", "maxmemory", "1"])
        .expect("a limit");
    both.simulated.set_condition(StoreCondition::OutOfMemory);
    let refused = both.same_script(SCRIPTS[0], &[]).unwrap_err();
    assert!(refused.starts_with("OOM command not allowed"), "{refused}");
    conditions_are_alike(&mut both);
}

#[test]
fn a_replica_refuses_writes_as_redis_does() {
    let mut both = Both::new();
    conditions_are_alike(&mut both);
    // A master that isn't there.
    both.command(&["REPLICAOF", "127.0.0.1", "1"])
        .expect("a replica");
    both.simulated.set_condition(StoreCondition::ReadOnly);
    let refused = both.same_script(SCRIPTS[0], &[]).unwrap_err();
    assert!(refused.starts_with("READONLY You can't write"), "{refused}");
    conditions_are_alike(&mut both);
    both.command(&["REPLICAOF", "NO", "ONE"]).expect("a master");
    both.simulated.set_condition(StoreCondition::Well);
    conditions_are_alike(&mut both);
}

#[test]
fn scripts_are_forgotten_as_in_redis() {
    let mut both = Both::new();
    let sha = both.simulated.load("return 7").expect("a script");
    assert_eq!(
        both.command(&["SCRIPT", "LOAD", "return 7"])
            .expect("a script"),
        &*sha
    );
    let ask = |both: &mut Both, sha: &str| {
        let simulated = both
            .simulated
            .evalsha(0, sha, &[], &[])
            .map_err(|error| error.to_string());
        let real = both.command(&["EVALSHA", sha, "0"]);
        assert_eq!(simulated, real);
        real
    };
    assert_eq!(ask(&mut both, &sha), Ok(Reply::Integer(7)));
    both.command(&["SCRIPT", "FLUSH"]).expect("no scripts");
    both.simulated.flush_scripts();
    let refused = ask(&mut both, &sha).unwrap_err();
    assert_eq!(refused, "NOSCRIPT No matching script. Please use EVAL.");
    // Running it is to load it.
    both.same_script("return 7", &[]).expect("an answer");
    assert_eq!(ask(&mut both, &sha), Ok(Reply::Integer(7)));
    for forget in [Store::restart_empty, Store::fail_over] {
        both.simulated.load("return 7").expect("a script");
        forget(&mut both.simulated);
        let refused = both.simulated.evalsha(0, &sha, &[], &[]).unwrap_err();
        assert_eq!(refused.code(), "NOSCRIPT");
    }
}

#[test]
fn a_store_that_loads_or_is_busy_refuses_everything() {
    for (condition, code) in [
        (StoreCondition::Loading, "LOADING"),
        (StoreCondition::Busy, "BUSY"),
    ] {
        let mut store = Store::new();
        store.set_condition(condition);
        for refused in [
            store.command(0, &[b"GET", b"k"]),
            store.eval(0, "return 1", &[], &[]),
            store.evalsha(0, "c0ffee", &[], &[]),
        ] {
            assert_eq!(refused.unwrap_err().code(), code);
        }
        assert_eq!(
            store.counts(),
            Counts {
                calls: 3,
                ..Counts::default()
            }
        );
    }
}

#[test]
fn calls_scripts_and_commands_are_counted() {
    let mut store = Store::new();
    let script = "redis.call('SET', 'k', 'v') return redis.call('GET', 'k')";
    store.eval(0, script, &[], &[]).expect("an answer");
    store.command(0, &[b"GET", b"k"]).expect("an answer");
    store.evalsha(0, "c0ffee", &[], &[]).unwrap_err();
    let counts = Counts {
        calls: 3,
        scripts: 1,
        commands: 3,
    };
    assert_eq!(store.counts(), counts);
    // Looking at it by other means is no call.
    store.keys();
    store.evict(0);
    assert_eq!(store.counts(), counts);
}

#[test]
fn any_key_may_be_evicted() {
    let mut store = Store::new();
    assert_eq!(store.evict(7), None);
    for key in ["a", "b", "c"] {
        store
            .command(0, &[b"SET", key.as_bytes(), b"v"])
            .expect("a key");
    }
    assert_eq!(store.evict(4), Some(b"b".to_vec()));
    assert_eq!(store.keys(), [b"a", b"c"]);
    assert_eq!(store.evict(4), Some(b"a".to_vec()));
    assert_eq!(store.evict(4), Some(b"c".to_vec()));
    assert_eq!(store.evict(4), None);
}

/// Everything that is kept.
fn all(store: &mut Store) -> Vec<(Vec<u8>, Reply, Option<u64>)> {
    let keys = store.keys();
    let look = |key: Vec<u8>| {
        let value = store.command(0, &[b"GET", &key]);
        let members: [&[u8]; 5] = [b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"];
        let value = value.or_else(|_| store.command(0, &members));
        let expires = store.expires_at(&key);
        (key, value.expect("one of two types"), expires)
    };
    keys.into_iter().map(look).collect()
}

#[test]
fn a_replica_that_takes_over_has_what_it_last_heard_of() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let mut lost = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut store = Store::new();
        let mut replica = Vec::new();
        for _ in 0..60 {
            let key = pick(&mut random, &KEYS);
            let member = pick(&mut random, &["m", "n", "o"]);
            let words = match random.below(12) {
                0..=2 => vec!["SET", key, member],
                3 => vec!["SET", key, member, "PX", "100"],
                4 | 5 => vec!["ZADD", key, "1", member],
                6 => vec!["ZREM", key, member],
                7 => vec!["DEL", key],
                8 => vec!["PEXPIRE", key, "70"],
                9 => {
                    store.evict(random.next());
                    continue;
                }
                10 => {
                    store.replicate();
                    replica = all(&mut store);
                    continue;
                }
                _ => {
                    if random.below(4) == 0 {
                        store.restart_empty();
                    }
                    lost += usize::from(all(&mut store) != replica);
                    store.fail_over();
                    assert_eq!(all(&mut store), replica, "seed {seed}");
                    continue;
                }
            };
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            // Some are refused for the wrong type.
            let _ = store.command(0, &words);
        }
    }
    assert!(lost > 300, "only {lost} failovers lost anything");
}
