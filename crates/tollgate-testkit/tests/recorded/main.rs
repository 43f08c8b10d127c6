//! Recorded answers of the engine: 1,000 random policies with 100 requests each, replayed and compared one by one.
//!
//! The inputs follow from a seed, so the file holds answers alone. They are the answers of the engine before its decision
//! path was rebuilt. A difference is a change of behaviour: the commit that records the answers again, by
//! `TOLLGATE_RECORD=1 cargo test -p tollgate-testkit --test recorded`, gives the reason.

mod inputs;
mod replay;

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use inputs::{REQUESTS, Story};
use serde::{Deserialize, Serialize};
use tollgate_testkit::test_vectors;

/// The name of the recorded set.
const SET: &str = "answers";
/// How many policies there are.
const STORIES: u64 = 1_000;

/// The answers to the requests of one story.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Recorded {
    seed: u64,
    answers: Vec<String>,
}

impl Recorded {
    fn now(seed: u64) -> Self {
        let answers = replay::answers(&Story::new(seed));
        Self { seed, answers }
    }

    /// The first answer that differs, with what led to it.
    fn difference(&self, now: &Self) -> Option<String> {
        let mut pairs = self.answers.iter().zip(&now.answers);
        let number = pairs.position(|(before, now)| before != now)?;
        let story = Story::new(self.seed);
        Some(format!(
            "seed {}, step {number}: {:?}\n  before: {}\n  now:    {}\n{}",
            self.seed,
            story.steps[number],
            self.answers[number],
            now.answers[number],
            story.policies.join("\n---\n")
        ))
    }
}

/// Where the set lies, beside this file: it is ours, unlike the traces of other limiters.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

fn recorded() -> Vec<Recorded> {
    test_vectors::load_from(&folder(), SET).expect("the recorded answers")
}

fn record() {
    // Beside it first: another test reads the set meanwhile.
    let path = folder().join(format!("{SET}.new"));
    let file = File::create(&path).expect("a new file");
    let mut file = GzEncoder::new(file, Compression::best());
    for seed in 0..STORIES {
        let line = serde_json::to_string(&Recorded::now(seed)).expect("JSON");
        writeln!(file, "{line}").expect("room on the disk");
    }
    file.finish().expect("room on the disk");
    fs::rename(path, folder().join(format!("{SET}.jsonl.gz"))).expect("the new file");
}

#[test]
fn the_engine_answers_as_recorded() {
    if env::var_os("TOLLGATE_RECORD").is_some() {
        record();
    }
    let recorded = recorded();
    let seeds: Vec<u64> = recorded.iter().map(|one| one.seed).collect();
    assert!(seeds.into_iter().eq(0..STORIES), "stories are missing");
    let is_whole = |one: &Recorded| one.answers.len() == REQUESTS;
    assert!(recorded.iter().all(is_whole), "answers are missing");
    let compared = recorded.iter();
    let differences: Vec<_> = compared
        .filter_map(|before| before.difference(&Recorded::now(before.seed)))
        .collect();
    assert!(
        differences.is_empty(),
        "{} of {STORIES} stories are answered otherwise. The first of them:\n{}",
        differences.len(),
        differences[0]
    );
}

/// A comparison of requests that all pass, or of policies that are all rejected, would show nothing.
#[test]
fn the_recorded_answers_are_of_every_kind() {
    let recorded = recorded();
    let answers: Vec<&String> = recorded.iter().flat_map(|one| &one.answers).collect();
    let share = |words: &str| {
        let such = answers.iter().filter(|answer| answer.contains(words));
        such.count() * 1_000 / answers.len()
    };
    for (words, least) in [
        ("passed", 300),
        ("denied", 200),
        ("shadow", 20),
        ("rate", 50),
        ("quota", 10),
        ("concurrency", 5),
        ("blocked", 5),
        ("missing_key", 5),
        ("exempt", 5),
        ("tier", 20),
        ("peek", 20),
        ("refund", 10),
        ("left", 5),
        ("reload", 5),
        ("descriptors", 100),
    ] {
        let share = share(words);
        assert!(
            share >= least,
            "{share} of 1,000 answers say {words:?}, fewer than {least}"
        );
    }
}
