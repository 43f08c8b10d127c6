//! Arguments that make no sense, and those that do although they look odd.

use crate::{USAGE, count, json, run, stderr, stdout, text};

#[test]
fn arguments_that_make_no_sense_are_told() {
    for (arguments, expected) in [
        (
            &["--backend", "memcached://x"][..],
            "error: --backend: \"memcached://x\": \"memcached\" is none of redis://, rediss://, \
             redis+unix://, redis+sentinel:// or redis+cluster://; or write memory\n",
        ),
        (
            &["--rate", "0/s"],
            "error: the rate \"zero\" lets nothing pass; choose another --rate\n",
        ),
        (
            &["--cost", "2000"],
            "error: a decision that costs 2000 never passes \"1000/s\", whose burst is 1000; lower \
             --cost, or write \"1000/s burst 2000\"\n",
        ),
        (
            &[
                "--backend",
                "redis://127.0.0.1:1",
                "--mode",
                "leased",
                "--algorithm",
                "sliding-log",
            ],
            "error: sliding-log has no tokens to lease; use gcra, token-bucket or leaky, or --mode \
             exact\n",
        ),
    ] {
        assert_eq!(stderr(arguments, USAGE), expected);
    }
    for (arguments, expected) in [
        (
            &["--duration", "5"][..],
            "invalid value '5' for '--duration <TIME>': \"5\" is no length of time; write it as 10ms, \
             2.5s, 1h30m or 7d",
        ),
        (
            &["--duration", "0s"],
            "it has to take some time, such as 300ms, 5s or 1m",
        ),
        (&["--keys", "0"], "0 is not in 1..=1000000"),
        (&["--tasks", "5000"], "5000 is not in 1..=4096"),
        (&["--mode", "guess"], "[possible values: exact, leased]"),
        (&["--rate", "fast"], "invalid rate \"fast\""),
    ] {
        let error = stderr(arguments, USAGE);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_stock_that_is_had_once_can_be_driven() {
    let stock = ["--rate", "zero burst 5", "--algorithm", "token-bucket"];
    let report = json(&[&stock[..], &["--duration", "10ms"]].concat());
    assert_eq!(count(&report, "admitted"), 5, "{report}");
    let error = stderr(&stock[..2], USAGE);
    assert!(error.contains("lets nothing pass"), "{error}");
}

#[test]
fn what_is_suggested_for_a_cost_above_the_burst_can_be_written() {
    for (rate, cost, algorithm, instead) in [
        ("1/s burst 0", "1", "gcra", "1/s"),
        ("10/s burst 5", "7", "token-bucket", "10/s burst 7"),
        ("10/s", "20", "fixed-window", "20/s"),
        ("10/s", "20", "sliding-log", "20/s"),
    ] {
        let words = |rate: &'static str| ["--rate", rate, "--cost", cost, "--algorithm", algorithm];
        let output = run(&words(rate));
        let complaint = text(output.stderr);
        assert_eq!(output.status.code(), Some(USAGE), "{complaint}");
        assert!(
            complaint.ends_with(&format!("write \"{instead}\"\n")),
            "{complaint}"
        );
        let again = [&words(instead)[..], &["--duration", "1ms", "--json"]].concat();
        stdout(&again);
    }
}
