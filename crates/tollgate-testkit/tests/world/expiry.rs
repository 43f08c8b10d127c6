//! The expiry of keys: in whole milliseconds, and on access.

use tollgate_testkit::redis::Reply;
use tollgate_testkit::world::{Store, StoreCondition};

use super::Both;

/// A command's answer for a number.
fn number(reply: Result<Reply, String>) -> i64 {
    reply
        .ok()
        .and_then(|reply| reply.integer())
        .expect("a number")
}

#[test]
fn lives_are_added_to_the_time_as_in_redis() {
    let mut both = Both::new();
    let set = "return redis.call('SET', 'k', 'v', 'PX', ARGV[1])";
    let expire = "redis.call('SET', 'k', 'v') return redis.call('PEXPIRE', 'k', ARGV[1])";
    for script in [set, expire] {
        for life in [50_000_i64, 1_234_567, 86_400_001] {
            let text = life.to_string();
            let before = both.time() / 1000;
            both.command(&["EVAL", script, "0", &text]).expect("a key");
            let after = both.time() / 1000;
            let expires = number(both.command(&["PEXPIRETIME", "k"]));
            let expires = u64::try_from(expires - life).expect("a time");
            assert!(
                (before..=after).contains(&expires),
                "{before} {expires} {after}"
            );
            // The simulated one is of one millisecond.
            for micros in [0, 1, 999] {
                let mut store = Store::new();
                let now = before * 1000 + micros;
                store
                    .eval(now, script, &[], &[text.as_bytes()])
                    .expect("a key");
                let expires = i64::try_from(before).expect("a time") + life;
                assert_eq!(
                    store.command(now, &[b"PEXPIRETIME", b"k"]),
                    Ok(Reply::Integer(expires))
                );
                assert_eq!(store.expires_at(b"k"), u64::try_from(expires).ok());
                assert_eq!(
                    store.command(now, &[b"PTTL", b"k"]),
                    Ok(Reply::Integer(life))
                );
            }
        }
    }
}

#[test]
fn a_key_lives_through_the_millisecond_at_which_it_expires() {
    // A real one is looked at until it was seen in that millisecond, and after it.
    let mut both = Both::new();
    let (mut seen_at, mut seen_after) = (false, false);
    for _ in 0..2_000 {
        let expires = both.time() / 1000 + 3;
        both.command(&["SET", "k", "v", "PXAT", &expires.to_string()])
            .expect("a key");
        loop {
            let before = both.time() / 1000;
            let is_there = number(both.command(&["EXISTS", "k"])) == 1;
            let after = both.time() / 1000;
            if before == after {
                assert_eq!(is_there, before <= expires, "at {before}, of {expires}");
                seen_at |= before == expires;
                seen_after |= before == expires + 1;
            }
            if before > expires {
                break;
            }
        }
        if seen_at && seen_after {
            break;
        }
    }
    assert!(
        seen_at && seen_after,
        "the machine is too busy to see a millisecond"
    );

    let mut store = Store::new();
    let get = |store: &mut Store, now| store.command(now, &[b"EXISTS", b"k"]).expect("an answer");
    store
        .command(10_000_046, &[b"SET", b"k", b"v", b"PX", b"2000"])
        .expect("a key");
    assert_eq!(get(&mut store, 12_000_999), "1");
    assert_eq!(get(&mut store, 12_001_000), "0");
}

#[test]
fn a_time_that_is_not_ahead_deletes_at_once() {
    let mut both = Both::new();
    for words in [
        ["PEXPIRE", "k", "0"],
        ["PEXPIRE", "k", "-7"],
        ["PEXPIREAT", "k", "1"],
    ] {
        let words = words.map(str::as_bytes);
        both.same(&[b"SET", b"k", b"v"]).expect("a key");
        assert_eq!(both.same(&words), Ok(Reply::Integer(1)));
        assert_eq!(both.same(&[b"EXISTS", b"k"]), Ok(Reply::Integer(0)));
        assert!(both.simulated.keys().is_empty());
    }
}

/// A key that is past its time at 100 ms, and was set at 10.
fn one_key() -> Store {
    let mut store = Store::new();
    let set: [&[u8]; 5] = [b"SET", b"k", b"v", b"PX", b"89"];
    store.command(10_000, &set).expect("a key");
    store
}

#[test]
fn after_a_step_back_a_key_is_there_again_unless_it_was_deleted() {
    let get: [&[u8]; 2] = [b"GET", b"k"];
    // Nobody has looked.
    let mut store = one_key();
    assert_eq!(store.keys(), [b"k"]);
    assert_eq!(store.command(99_999, &get).expect("an answer"), "v");
    // Somebody has.
    assert_eq!(store.command(100_000, &get), Ok(Reply::Nil));
    assert_eq!(store.command(50_000, &get), Ok(Reply::Nil));
    // The store has, or not, as the number says.
    let mut found = [0, 0];
    for choice in 0..100 {
        let mut store = one_key();
        store.expire_some(99_999, choice);
        assert_eq!(store.keys().len(), 1);
        store.expire_some(100_000, choice);
        let is_there = store.command(50_000, &get).expect("an answer") == "v";
        found[usize::from(is_there)] += 1;
    }
    assert!(found[0] > 20 && found[1] > 20, "{found:?}");
}

#[test]
fn a_replica_hides_what_is_past_its_time_and_leaves_it_there() {
    let get: [&[u8]; 2] = [b"GET", b"k"];
    let mut store = one_key();
    store.set_condition(StoreCondition::ReadOnly);
    assert_eq!(store.command(100_000, &get), Ok(Reply::Nil));
    (0..100).for_each(|choice| store.expire_some(100_000, choice));
    assert_eq!(store.command(50_000, &get).expect("an answer"), "v");
    store.set_condition(StoreCondition::Well);
    assert_eq!(store.command(100_000, &get), Ok(Reply::Nil));
    assert!(store.keys().is_empty());
}

#[test]
fn within_a_script_time_stands_still() {
    let mut store = one_key();
    let script = "
        local before = redis.call('TIME')
        for i = 1, 1000 do redis.call('GET', 'k') end
        local after = redis.call('TIME')
        return {before[1], before[2], before[1] == after[1], before[2] == after[2]}";
    let said = store
        .eval(1_700_000_000_000_007, script, &[], &[])
        .expect("an answer");
    let said: Vec<Option<i64>> = said.items().iter().map(Reply::integer).collect();
    assert_eq!(said, [1_700_000_000, 7, 1, 1].map(Some));
}
