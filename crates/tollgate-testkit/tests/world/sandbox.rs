//! The sandbox of scripts: no access to each other, to another store, to a clock or to randomness.

use tollgate_testkit::redis::Reply;
use tollgate_testkit::threads::run_together;
use tollgate_testkit::traffic::Random;
use tollgate_testkit::world::{ServerError, Store, StoreCondition};

use super::pick;

#[test]
fn nothing_of_one_call_is_left_for_the_next() {
    for _ in 0..10 {
        // Each takes up where another store has left.
        let mut store = Store::new();
        assert!(store.keys().is_empty());
        let leak = "if KEYS[1] then KEYS[2] = 'mine' ARGV[9] = 'mine' end return {#KEYS, #ARGV}";
        let said = store.eval(0, leak, &[b"k"], &[]).expect("an answer");
        assert_eq!(said.items(), [Reply::Integer(2), Reply::Integer(0)]);
        let said = store.eval(0, leak, &[], &[b"a"]).expect("an answer");
        assert_eq!(said.items(), [Reply::Integer(0), Reply::Integer(1)]);
        for script in [
            "leaked = 1",
            "math.floor = nil",
            "string.format = nil",
            "redis.call = nil",
            "struct.pack = nil",
            "_G.leaked = 1",
            "rawset(math, 'floor', nil)",
            "getmetatable('').__index = nil",
            "setmetatable(redis, {})",
        ] {
            assert!(store.eval(0, script, &[], &[]).is_err(), "{script}");
        }
        let sound = "return math.floor(1.5) .. string.format('%d', 2) .. ('x'):rep(3)";
        assert_eq!(store.eval(0, sound, &[], &[]).expect("an answer"), "12xxx");
    }
}

#[test]
fn a_script_that_one_store_was_told_is_unknown_to_another() {
    let script = "return redis.call('SET', 'k', 'v')";
    let sha = Store::new().load(script).expect("a script");
    for _ in 0..3 {
        let mut store = Store::new();
        let refused = store.evalsha(0, &sha, &[], &[]).unwrap_err();
        assert_eq!(refused.code(), "NOSCRIPT");
        store.eval(0, script, &[], &[]).expect("an answer");
        assert_eq!(store.keys(), [b"k"]);
        store.set_condition(StoreCondition::ReadOnly);
    }
}

#[test]
fn there_is_no_clock_no_file_and_no_chance() {
    let mut store = Store::new();
    for name in [
        "os",
        "io",
        "debug",
        "package",
        "require",
        "load",
        "loadstring",
        "dofile",
        "print",
    ] {
        let refused = store
            .eval(0, &format!("return {name}"), &[], &[])
            .unwrap_err();
        let what = format!("nonexistent global variable '{name}'");
        assert!(refused.to_string().contains(&what), "{refused}");
    }
    let said = store.eval(
        0,
        "return {type(math.random), type(math.randomseed)}",
        &[],
        &[],
    );
    assert_eq!(said.expect("an answer").items(), ["nil", "nil"]);
}

const SCRIPTS: [&str; 6] = [
    "return redis.call('SET', KEYS[1], ARGV[1], 'PX', 1 + #ARGV[1] * 40)",
    "return {redis.pcall('GET', KEYS[1]), redis.call('TIME')}",
    "return redis.call('ZADD', KEYS[1], #ARGV[1], ARGV[1])",
    "return redis.pcall('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')",
    "local t = {} for name, byte in pairs({one = 1, two = 2, ten = 10, six = 6}) do t[#t + 1] = name end
     return table.concat(t, ' ')",
    "return {redis.call('PTTL', KEYS[1]), redis.call('EXISTS', 'a', 'b', 'c')}",
];

/// Everything that comes of a history of calls, faults and a clock that steps.
fn history(seed: u64) -> (Vec<Result<Reply, ServerError>>, String) {
    let mut random = Random::new(seed);
    let (mut store, mut now, mut answers) = (Store::new(), 1_000_000, Vec::new());
    for _ in 0..300 {
        now = match random.below(10) {
            0 => now - random.below(now / 10),
            _ => now + random.below(30_000),
        };
        let (key, arg) = (
            pick(&mut random, &["a", "b", "c"]),
            pick(&mut random, &["", "x", "yy", "zzz"]),
        );
        match random.below(40) {
            0 => store.fail_over(),
            1..=3 => store.replicate(),
            4 => drop(store.evict(random.next())),
            5 | 6 => store.expire_some(now, random.next()),
            7 => store.restart_empty(),
            8 => store.flush_scripts(),
            9 => store.set_condition(*pick(
                &mut random,
                &[
                    &StoreCondition::OutOfMemory,
                    &StoreCondition::ReadOnly,
                    &StoreCondition::Loading,
                ],
            )),
            10..=14 => store.set_condition(StoreCondition::Well),
            _ => {
                let script = pick(&mut random, &SCRIPTS);
                answers.push(store.eval(now, script, &[key.as_bytes()], &[arg.as_bytes()]));
            }
        }
    }
    (answers, format!("{store:?}"))
}

#[test]
fn the_same_seed_gives_the_same_answers_whatever_else_goes_on() {
    const SEEDS: u32 = 30;
    let expected: Vec<_> = (0..SEEDS).map(|seed| history(seed.into())).collect();
    assert!(expected.windows(2).all(|two| two[0] != two[1]));
    run_together(3, |thread| {
        for seed in (0..SEEDS).map(|seed| (seed + 10 * thread) % SEEDS) {
            let place = usize::try_from(seed).expect("a few");
            assert!(history(seed.into()) == expected[place], "seed {seed}");
        }
        0
    });
}

#[test]
fn a_store_may_go_from_thread_to_thread() {
    let mut store = Store::new();
    store.command(0, &[b"SET", b"k", b"v"]).expect("a key");
    let store = std::thread::spawn(move || {
        let said = store.eval(0, "return redis.call('GET', 'k')", &[], &[]);
        assert_eq!(said.expect("an answer"), "v");
        store
    });
    assert_eq!(store.join().expect("no panic").keys(), [b"k"]);
}
