//! `tollgate simulate` for its users: the built binary, its output and its exit codes.

use std::process::{Command, Output};

use serde_json::{Value, json};

/// The exit code of arguments that make no sense.
const USAGE: i32 = 2;

fn tollgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .output()
        .expect("the binary was built with the tests")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("all output is UTF-8")
}

/// The standard output of a run that succeeds with an empty standard error.
fn stdout(arguments: &[&str]) -> String {
    let output = tollgate(arguments);
    let complaints = text(output.stderr);
    assert_eq!(
        (output.status.code(), complaints.as_str()),
        (Some(0), ""),
        "{arguments:?}"
    );
    text(output.stdout)
}

/// Standard error of a run that fails with this code and prints nothing on standard output.
fn stderr(arguments: &[&str], code: i32) -> String {
    let output = tollgate(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    text(output.stderr)
}

fn simulate_json(arguments: &[&str]) -> Value {
    let text = stdout(&[&["simulate", "--json"], arguments].concat());
    assert_eq!(text.lines().count(), 1, "one object on one line");
    serde_json::from_str(&text).expect("it is JSON")
}

/// The line of one algorithm, without its array, as JSON.
fn line(report: &Value, name: &str) -> Value {
    let lines = report["algorithms"].as_array().expect("an array of lines");
    let line = lines.iter().find(|line| line["name"] == name);
    let mut line = line.expect("every algorithm has a line").clone();
    line.as_object_mut()
        .expect("a line is an object")
        .remove("admissions_per_100ms");
    line
}

#[test]
fn the_default_pattern_has_its_exact_answers() {
    let report = simulate_json(&[]);
    assert_eq!(report["rate"], "100/s burst 100");
    assert_eq!(report["pattern"], "mixed");
    assert_eq!(report["seed"], 1);
    assert_eq!(report["offered"], 400);
    assert_eq!(report["algorithms"].as_array().unwrap().len(), 7);
    for (name, admitted, peak_1s, last_release) in [
        ("token bucket", 399, 199, 3.99),
        ("GCRA", 399, 199, 3.99),
        ("leaky bucket (meter)", 399, 199, 3.99),
        ("fixed window", 300, 100, 3.495),
        ("sliding log", 300, 100, 3.495),
        ("sliding counter", 300, 100, 3.995),
    ] {
        assert_eq!(
            line(&report, name),
            json!({
                "name": name, "offered": 400, "admitted": admitted, "denied": 400 - admitted,
                "peak_100ms": 100, "peak_1s": peak_1s, "peak_period": peak_1s,
                "longest_wait_s": null, "last_release_s": last_release, "note": null,
            })
        );
    }
    assert_eq!(
        line(&report, "leaky bucket (queue)"),
        json!({
            "name": "leaky bucket (queue)", "offered": 400, "admitted": 400, "denied": 0,
            "peak_100ms": 10, "peak_1s": 100, "peak_period": 100,
            "longest_wait_s": 0.995, "last_release_s": 4.99,
            "note": "releases one every 10ms, and at most 100 wait",
        })
    );
}

#[test]
fn the_arrays_of_a_run_share_their_length_and_add_up() {
    let report = simulate_json(&[]);
    let sum = |array: &Value| -> u64 {
        let array = array.as_array().unwrap();
        assert_eq!(array.len(), 50);
        array.iter().map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(sum(&report["offered_per_100ms"]), 400);
    for line in report["algorithms"].as_array().unwrap() {
        assert_eq!(sum(&line["admissions_per_100ms"]), line["admitted"]);
    }
    // Arrays of days in steps of 100 ms would be zeros by the million.
    assert_eq!(
        simulate_json(&["--rate", "5/d"])["offered_per_100ms"],
        Value::Null
    );
}

#[test]
fn json_fields_keep_their_order() {
    let text = stdout(&["simulate", "--json"]);
    let start = "{\"rate\":\"100/s burst 100\",\"pattern\":\"mixed\",\"traffic\":\"100 every 10ms \
                 from 0s, 100 every 1ms from 2s, 200 every 5ms from 3s\",\"seed\":1,\
                 \"offered\":400,\"offered_per_100ms\":[10,10,";
    assert!(text.starts_with(start), "{text}");
    let line = "{\"name\":\"token bucket\",\"offered\":400,\"admitted\":399,\"denied\":1,\
                \"peak_100ms\":100,\"peak_1s\":199,\"peak_period\":199,\"longest_wait_s\":null,\
                \"last_release_s\":3.99,\"note\":null,\"admissions_per_100ms\":[";
    assert!(text.contains(line), "{text}");
}

#[test]
fn the_default_report_is_a_table_and_a_plot() {
    let expected = "\
limit    100/s burst 100
traffic  mixed: 100 every 10ms from 0s, 100 every 1ms from 2s, 200 every 5ms from 3s

                                                   peak in  peak in  longest     last
algorithm             offered  admitted  denied  any 100ms   any 1s     wait  release
token bucket              400       399       1        100      199        -   3.990s
GCRA                      400       399       1        100      199        -   3.990s
leaky bucket (meter)      400       399       1        100      199        -   3.990s
fixed window              400       300     100        100      100        -   3.495s
sliding log               400       300     100        100      100        -   3.495s
sliding counter           400       300     100        100      100        -   3.995s
leaky bucket (queue)      400       400       0         10      100   0.995s   4.990s

leaky bucket (queue)  releases one every 10ms, and at most 100 wait

admissions over time, a column is 100ms, █ is 100

offered               ▁▁▁▁▁▁▁▁▁▁          █         ▂▂▂▂▂▂▂▂▂▂
token bucket          ▁▁▁▁▁▁▁▁▁▁          █         ▂▂▂▂▂▂▂▂▂▂
GCRA                  ▁▁▁▁▁▁▁▁▁▁          █         ▂▂▂▂▂▂▂▂▂▂
leaky bucket (meter)  ▁▁▁▁▁▁▁▁▁▁          █         ▂▂▂▂▂▂▂▂▂▂
fixed window          ▁▁▁▁▁▁▁▁▁▁          █         ▂▂▂▂▂
sliding log           ▁▁▁▁▁▁▁▁▁▁          █         ▂▂▂▂▂
sliding counter       ▁▁▁▁▁▁▁▁▁▁          █         ▁▁▁▁▁▁▁▁▁▁
leaky bucket (queue)  ▁▁▁▁▁▁▁▁▁▁          ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
                      └─────────┴─────────┴─────────┴─────────┴─────────
                      0s        1s        2s        3s        4s
";
    assert_eq!(stdout(&["simulate"]), expected);
    assert_eq!(stdout(&["simulate", "--pattern", "mixed"]), expected);
}

#[test]
fn the_boundary_pattern_doubles_the_fixed_window() {
    let report = simulate_json(&["--pattern", "boundary"]);
    let fixed = line(&report, "fixed window");
    assert_eq!(
        (&fixed["admitted"], &fixed["peak_1s"]),
        (&json!(200), &json!(200))
    );
    // All of it within the 50 ms before the boundary and the 50 ms after.
    assert_eq!(fixed["peak_100ms"], 200);
    assert_eq!(
        fixed["note"],
        "200 passed within 1s across a window boundary, and its count is 100"
    );
    assert_eq!(line(&report, "sliding log")["peak_1s"], 100);

    // A longer window doubles over its own period.
    let report = simulate_json(&["--pattern", "boundary", "--rate", "30/m"]);
    assert_eq!(line(&report, "fixed window")["peak_period"], 60);
    assert_eq!(line(&report, "sliding log")["peak_period"], 30);
}

#[test]
fn every_pattern_fits_the_page() {
    for pattern in ["mixed", "steady", "burst", "poisson", "boundary"] {
        for rate in [
            "100/s",
            "100/s burst 250",
            "1 per 7d burst 300",
            "50/ms",
            "zero",
        ] {
            let text = stdout(&["simulate", "--pattern", pattern, "--rate", rate]);
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{pattern} {rate}: {line}");
                assert_eq!(line, line.trim_end(), "{pattern} {rate}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_output() {
    let poisson = |seed| stdout(&["simulate", "--pattern", "poisson", "--seed", seed]);
    assert_eq!(poisson("7"), poisson("7"));
    assert_ne!(poisson("7"), poisson("8"));
    assert!(poisson("7").contains("500 at random, on average every 10ms (seed 7)"));
}

#[test]
fn a_refused_burst_does_not_end_the_run() {
    let text = stdout(&["simulate", "--rate", "100/s burst 200"]);
    assert!(text.contains("limit    100/s burst 200\n"), "{text}");
    let note = "
fixed window          run at 100/s: a fixed window admits its count, 100, and no other burst; leave
                      the burst out, or use a token bucket or GCRA
sliding log           run at 100/s: ";
    assert!(text.contains(note), "{text}");

    let text = stdout(&["simulate", "--rate", "1/d burst 1000"]);
    assert!(
        text.contains("\nGCRA                        4         -       -  "),
        "{text}"
    );
    assert!(
        text.contains("\nGCRA                  left out: burst x interval "),
        "{text}"
    );
}

#[test]
fn a_bad_rate_is_shown_where_it_is_wrong() {
    assert_eq!(
        stderr(&["simulate", "--rate", "100/fortnight"], USAGE),
        "error: invalid value '100/fortnight' for '--rate <RATE>': invalid rate \
         \"100/fortnight\": unknown unit \"fortnight\" at column 5; \
         use ns, us, ms, s, m (minute), h, d or w\n  100/fortnight\n      ^^^^^^^^^\n\n\
         For more information, try '--help'.\n"
    );
}

#[test]
fn a_rate_too_fast_to_play_is_refused_with_the_numbers() {
    assert_eq!(
        stderr(&["simulate", "--rate", "10000000/s"], USAGE),
        "error: rate \"10000000/s\": the mixed pattern needs 40000000 arrivals and a run takes \
         at most 5000000; choose a slower rate\n"
    );
}

#[test]
fn bad_arguments_are_usage_errors() {
    let message = stderr(&["simulate", "--pattern", "wobbly"], USAGE);
    assert!(
        message.starts_with(
            "error: invalid value 'wobbly' for '--pattern <PATTERN>'\n  \
             [possible values: mixed, steady, burst, poisson, boundary]\n"
        ),
        "{message}"
    );
    let message = stderr(&["simulate", "--seed", "-1"], USAGE);
    assert!(message.starts_with("error: "), "{message}");
    let message = stderr(&["simulate", "--frobnicate"], USAGE);
    assert!(
        message.starts_with("error: unexpected argument '--frobnicate' found\n"),
        "{message}"
    );
    let message = stderr(&["imitate"], USAGE);
    assert!(
        message.starts_with("error: unrecognized subcommand 'imitate'\n"),
        "{message}"
    );
}

#[test]
fn no_command_is_help_with_the_code_of_a_usage_error() {
    let help = stderr(&[], USAGE);
    assert!(
        help.contains("Usage: tollgate [OPTIONS] <COMMAND>"),
        "{help}"
    );
    assert!(help.contains("simulate"), "{help}");
    assert_eq!(stdout(&["-h"]), help);
    assert_eq!(
        stdout(&["--version"]),
        concat!("tollgate ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn adaptive_laws_are_judged_beside_the_best_fixed_limit() {
    let text = stdout(&[
        "simulate",
        "--adaptive",
        "--scenario",
        "fixed",
        "--law",
        "little",
        "--law",
        "gradient2",
    ]);
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[2].starts_with("fixed: 8 servers, 10 ms a call; best fixed limit "),
        "{text}"
    );
    let row = |law: &str| {
        let row = lines.iter().find(|line| line.trim_start().starts_with(law));
        *row.expect("a line for each law")
    };
    assert!(!row("little").ends_with('✗'), "{text}");
    assert!(row("gradient2").ends_with('✗'), "{text}");
    let json = stdout(&["simulate", "--adaptive", "--scenario", "fixed", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(
        (&json[0]["law"], &json[0]["is_good"]),
        (&json!("little"), &json!(true))
    );
    assert_eq!(
        stdout(&[
            "simulate",
            "--adaptive",
            "--scenario",
            "fixed",
            "--law",
            "little",
            "--law",
            "gradient2"
        ]),
        text
    );
}

#[test]
fn a_run_is_drawn_into_a_file() {
    let folder = tollgate_testkit::temp_folder::TempFolder::new("simulate-svg");
    let file = folder.path("limits.svg");
    let file = file.to_str().expect("UTF-8");
    stdout(&[
        "simulate",
        "--adaptive",
        "--scenario",
        "halves",
        "--svg",
        file,
    ]);
    let drawn = std::fs::read_to_string(file).expect("a drawing");
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    // A line in each of four panels, and where servers fail.
    assert_eq!(drawn.matches("<polyline").count(), 4);
    assert_eq!(drawn.matches("stroke-dasharray").count(), 4);
}

#[test]
fn laws_and_scenarios_that_there_are_not_are_named_with_those_that_there_are() {
    let law = stderr(&["simulate", "--adaptive", "--law", "newton"], USAGE);
    assert!(
        law.contains("no algorithm is named newton; there are little, aimd, vegas"),
        "{law}"
    );
    let scenario = stderr(&["simulate", "--adaptive", "--scenario", "storm"], USAGE);
    assert!(scenario.contains("fixed, mmc, mg1"), "{scenario}");
    let alone = stderr(&["simulate", "--law", "little"], USAGE);
    assert!(alone.contains("--adaptive"), "{alone}");
}
