//! Random commands, on their own and in scripts: every reply as a script and as a client gets it.

use tollgate_testkit::traffic::Random;

use super::{Both, at_length, pick};

const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const MEMBERS: [&str; 6] = ["", "m", "n", "mm", "\u{7f}", "ü"];
const SCORES: [&str; 16] = [
    "0",
    "-0",
    "1",
    "1",
    "2",
    "2.5",
    "3",
    "-7",
    "0.1",
    "1e17",
    "1700000000000000",
    "inf",
    "-inf",
    "x",
    "nan",
    "1e400",
];
const BOUNDS: [&str; 16] = [
    "-inf",
    "-inf",
    "+inf",
    "+inf",
    "0",
    "1",
    "(1",
    "2",
    "(2",
    "(2.5",
    "3",
    "(-7",
    "1700000000000000",
    "(",
    "(x",
    "",
];
const PLACES: [&str; 9] = ["0", "1", "-1", "-2", "3", "-9", "9", "x", "01"];
const LIVES: [&str; 6] = ["100000", "250000", "0", "-5", "x", "9223372036854775807"];
const TIMES: [&str; 4] = ["99999999999000", "99999999999001", "1", "-1"];

/// Ways in which scripts ask, and hand on what they got.
const ASKING: [&str; 5] = [
    "return redis.call(unpack(ARGV))",
    "return redis.pcall(unpack(ARGV))",
    "local got = redis.pcall(unpack(ARGV))
     if type(got) == 'table' then return {#got, got.err or 'no error', got.ok or 'no status', got} end
     return {type(got), got}",
    "local passed, got = pcall(redis.call, unpack(ARGV)) return {tostring(passed), type(got), got}",
    // Numbers are handed on as numbers.
    "for i = 1, #ARGV do ARGV[i] = tonumber(ARGV[i]) or ARGV[i] end
     return redis.pcall(unpack(ARGV))",
];

/// A command with its words, most of the time a sound one.
fn command(random: &mut Random) -> Vec<&'static str> {
    let key = pick(random, &KEYS);
    let member = pick(random, &MEMBERS);
    let mut words = match random.below(22) {
        0 => vec!["GET", key],
        1 | 2 => {
            let mut words = vec!["SET", key, member];
            for _ in 0..random.below(3) {
                match random.below(6) {
                    0 => words.push("NX"),
                    1 => words.push("XX"),
                    2 => words.push("KeepTTL"),
                    3 => words.extend(["pxat", pick(random, &TIMES)]),
                    _ => words.extend(["PX", pick(random, &LIVES)]),
                }
            }
            words
        }
        3 => vec!["DEL", key, pick(random, &KEYS)],
        4 => vec!["EXISTS", key, pick(random, &KEYS), key],
        5 => vec!["TYPE", key],
        6 => {
            // Later or earlier than another is told to the millisecond, so those are times of no clock.
            let mut words = match random.below(2) {
                0 => vec!["PEXPIRE", key, pick(random, &LIVES)],
                _ => vec!["PEXPIREAT", key, pick(random, &TIMES)],
            };
            let options: &[&str] = match words[0] {
                "PEXPIRE" => &["NX", "XX", "nx", "CH", "no"],
                _ => &["NX", "XX", "gt", "LT", "GT"],
            };
            for _ in 0..random.below(3) {
                words.push(pick(random, options));
            }
            words
        }
        7 => vec!["PERSIST", key],
        8..=11 => {
            let mut words = vec!["ZADD", key];
            for _ in 0..random.below(3) {
                words.push(pick(random, &["NX", "XX", "GT", "LT", "CH", "CH"]));
            }
            for _ in 0..=random.below(3) {
                // The last three aren't scores.
                let sound = random.below(6) > 0;
                let scores = if sound { &SCORES[..13] } else { &SCORES[..] };
                words.extend([pick(random, scores), pick(random, &MEMBERS)]);
            }
            words
        }
        12 => vec!["ZREM", key, member, pick(random, &MEMBERS)],
        13 | 14 => {
            let mut words = vec!["ZRANGE", key, pick(random, &PLACES), pick(random, &PLACES)];
            if random.below(2) == 0 {
                words.push("WithScores");
            }
            words
        }
        15 | 16 => {
            let mut words = vec![
                "ZRANGEBYSCORE",
                key,
                pick(random, &BOUNDS),
                pick(random, &BOUNDS),
            ];
            if random.below(2) == 0 {
                words.push("WITHSCORES");
            }
            if random.below(2) == 0 {
                words.extend(["LIMIT", pick(random, &PLACES), pick(random, &PLACES)]);
            }
            words
        }
        17 => vec![
            pick(random, &["ZREMRANGEBYSCORE", "ZCOUNT"]),
            key,
            pick(random, &BOUNDS),
            pick(random, &BOUNDS),
        ],
        18 => vec![
            "ZREMRANGEBYRANK",
            key,
            pick(random, &PLACES),
            pick(random, &PLACES),
        ],
        19 => vec!["ZCARD", key],
        20 => vec![pick(random, &["ZRANK", "ZSCORE"]), key, member],
        _ => vec![pick(random, &["get", "Set", "ZADD", "PTTL", "nonsense"])],
    };
    // Now and then a word is missing, or there is one too many.
    match random.below(40) {
        0 => words.truncate(words.len() - 1),
        1 => words.push(pick(random, &["1", "PX", "LIMIT", "no"])),
        _ => {}
    }
    words
}

#[test]
fn random_commands_are_answered_as_by_redis() {
    let mut both = Both::new();
    for seed in 0..at_length(400) {
        both.clear();
        let mut random = Random::new(seed);
        for _ in 0..40 {
            let words = command(&mut random);
            if words.is_empty() {
                continue;
            }
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let _ = match random.below(4) {
                0 => both.same(&words),
                _ => both.same_script(pick(&mut random, &ASKING), &words),
            };
        }
        // What is left of it all.
        for key in KEYS {
            let life =
                "return {redis.call('PTTL', ARGV[1]) > 0 and 1 or redis.call('PTTL', ARGV[1])}";
            let _ = both.same_script(life, &[key.as_bytes()]);
            let _ = both.same(&[b"GET", key.as_bytes()]);
            let _ = both.same(&[b"ZRANGE", key.as_bytes(), b"0", b"-1", b"WITHSCORES"]);
        }
    }
}

#[test]
fn what_scripts_return_is_sent_as_redis_sends_it() {
    let mut both = Both::new();
    for script in [
        "return nil",
        "return true",
        "return false",
        "return {}",
        "return {1, 2, nil, 4}",
        "return {1.9, -1.9, 0.1, true, false, 'x', math.floor, {'deep', {7}}}",
        "return 1e300",
        "return -1e300",
        "return 0/0",
        "return 2^53 + 1",
        "return 'a\\0b\\255'",
        "return {ok = 'fine'}",
        "return {ok = 'two\\r\\nlines'}",
        "return {ok = 7}",
        "return {err = 'four'}",
        "return {err = 'FOUR five'}",
        "return {err = 'two\\nlines'}",
        "return {1, {err = 'four'}, {ok = 'fine'}, 2}",
        "return {err = 'one', ok = 'two', 3}",
        "return {named = 1, 'first'}",
        "return redis.status_reply('fine')",
        "return redis.error_reply('four')",
        "return redis.error_reply('FOUR five')",
        "return redis.error_reply('-FOUR five')",
        "return {type(redis.call('GET', 'none')), type(redis.call('ZRANGE', 'none', 0, -1))}",
        "return redis.call('SET', 'a', 'b').ok",
        "return {KEYS, ARGV}",
        "return #KEYS + #ARGV",
    ] {
        let _ = both.same_script(script, &[b"one", b"", b"\0"]);
    }
}

#[test]
fn errors_of_scripts_are_worded_as_by_redis() {
    let mut both = Both::new();
    both.same(&[b"ZADD", b"z", b"1", b"m"])
        .expect("a sorted set");
    for script in [
        "return redis.call('GET', 'z')",
        "\n\nlocal x = 1\nreturn redis.call('GET', 'z')",
        "local function deep() redis.call('GET', 'z') end\n\ndeep() return 1",
        "return redis.pcall('GET', 'z')",
        "return redis.call()",
        "return redis.pcall()",
        "return redis.call('GET', {})",
        "return redis.call('GET', true)",
        "return redis.call('GET')",
        "return redis.call('NONSENSE')",
        "error('boom')",
        "error('boom', 0)",
        "error({err = 'BOOM went it'})",
        "error()",
        "return nil + 1",
        "return ('x')()",
        "local t = {3, 'x'} table.sort(t) return t",
        "return string.rep()",
        "x = 1",
        "return x",
        "KEYS = 1",
        "math.floor = 1",
        "redis.call = nil",
        "this is not Lua",
        "return 'unfinished",
        "return {",
    ] {
        assert!(both.same_script(script, &[]).is_err(), "{script}");
    }
    let caught = "local passed, why = pcall(redis.call, 'GET', 'z') return {tostring(passed), why}";
    let _ = both.same_script(caught, &[]);
    let caught =
        "local passed, why = pcall(function() error('x') end) return {tostring(passed), why}";
    let _ = both.same_script(caught, &[]);
}

#[test]
fn numbers_of_scripts_are_written_as_by_redis() {
    let mut both = Both::new();
    for number in [
        "0",
        "-0.0",
        "0.1",
        "-2.5",
        "1e17",
        "-1e17",
        "1e17 - 16",
        "2^53",
        "2^53 + 2",
        "2^63",
        "1e300",
        "1e-5",
        "1/3",
        "1/0",
        "-1/0",
        "1700000000000000.25",
    ] {
        let script = format!("redis.call('SET', 'k', {number}) return redis.call('GET', 'k')");
        both.same_script(&script, &[]).expect("an answer");
        let script = format!("return redis.pcall('ZADD', 'z', {number}, {number})");
        both.same_script(&script, &[]).expect("an answer");
    }
    let _ = both.same(&[b"ZRANGE", b"z", b"0", b"-1", b"WITHSCORES"]);
}
