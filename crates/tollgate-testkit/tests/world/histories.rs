//! Whole histories of a fleet, each from a seed: no invariant is violated.
//!
//! `TOLLGATE_SEEDS=7..8` plays these and no others; a failing seed says so and prints its shortest history.

use std::collections::BTreeMap;
use std::ops::Range;

use tollgate_testkit::redis::Server;
use tollgate_testkit::world::{Call, Event, FinalCost, Scenario, replay, run_scenario, run_seed};

use super::is_soak;

/// Played by two tests, so that two cores share them.
const HISTORIES: u64 = 2_000;
/// Behind the soak flag.
const MANY: u64 = 1_000_000;
/// Failing seeds that are printed.
const SHOWN: usize = 3;

fn seeds() -> Range<u64> {
    if let Ok(range) = std::env::var("TOLLGATE_SEEDS") {
        let (from, to) = range.split_once("..").expect("a range such as 7..8");
        let number = |text: &str| text.parse().expect("a number");
        return number(from)..number(to);
    }
    0..if is_soak() { MANY } else { HISTORIES }
}

fn all_hold(part: u64) {
    let mut failed = 0;
    let mut shown = Vec::new();
    for seed in seeds().filter(|seed| seed % 2 == part) {
        if let Err(why) = run_seed(seed) {
            failed += 1;
            if shown.len() < SHOWN {
                shown.push(why);
            }
        }
    }
    assert!(
        shown.is_empty(),
        "{failed} failed, such as\n{}",
        shown.join("\n\n")
    );
}

#[test]
fn nothing_happens_that_must_not_be_in_even_histories() {
    all_hold(0);
}

#[test]
fn nothing_happens_that_must_not_be_in_odd_histories() {
    all_hold(1);
}

#[test]
fn a_seed_plays_the_same_each_time() {
    for seed in 0..40 {
        let story = Scenario::new(seed);
        let (one, other) = (run_scenario(&story), run_scenario(&story));
        let mut answers = one.answers.iter().zip(&other.answers);
        let first = answers.position(|(one, other)| one != other);
        assert_eq!(first, None, "seed {seed}: another answer");
        let mut calls = one.calls.iter().zip(&other.calls);
        if let Some((one, other)) = calls.find(|(one, other)| one != other) {
            let same = one.script == other.script;
            let told = |call: &Call| format!("{:?} {:?}", call.keys.concat(), call.args);
            panic!(
                "seed {seed}: same script {same}: {} and {}",
                told(one),
                told(other)
            );
        }
        assert!(one == other, "seed {seed}: something else");
    }
}

/// Through the middleware and without it: the same requests, the same luck, the same answers.
#[test]
fn the_middleware_passes_on_what_the_engine_says() {
    let (mut passed, mut statuses) = (0, BTreeMap::<u16, usize>::new());
    for seed in 0..150 {
        let mut story = Scenario::new(seed);
        if story.setting.has_trees() {
            // The middleware asks by facts alone.
            continue;
        }
        for (_, event) in &mut story.events {
            // Nobody can tell the middleware that a request never ran.
            if let Event::Ask(request) = event
                && request.ends == FinalCost::Cancelled
            {
                request.ends = FinalCost::Unsaid;
            }
        }
        let mut answers = [false, true].map(|is_guarded| {
            story.setting.is_guarded = is_guarded;
            run_scenario(&story).answers
        });
        for told in answers.iter_mut().flatten() {
            // Nobody is told so by the middleware.
            told.settled = None;
        }
        for told in &mut answers[1] {
            match told.status.take() {
                Some(status) => *statuses.entry(status).or_default() += 1,
                None => passed += 1,
            }
        }
        let [one, other] = &answers;
        let differs = one.iter().zip(other).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.len(), other.len(), "seed {seed}");
    }
    // All kinds of them.
    let seen: Vec<_> = statuses.keys().copied().collect();
    assert_eq!(seen, [429, 503], "{statuses:?}");
    assert!(passed > 1_000, "{passed}");
}

#[test]
fn what_the_simulated_store_answered_is_what_a_real_one_answers() {
    let server = Server::start();
    let mut calls = 0;
    for seed in 0..60 {
        let record = run_scenario(&Scenario::new(seed));
        calls += record.calls.len();
        if let Err(difference) = replay(&server, &record.calls) {
            panic!("seed {seed}: {difference}");
        }
    }
    assert!(calls > 2_000, "{calls}");
}
