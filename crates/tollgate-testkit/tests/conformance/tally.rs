//! Counts what was compared and what was excused, and insists on 95 % compared.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::thread;

use serde::de::DeserializeOwned;
use tollgate_testkit::vectors;

/// The sequences of a set; a set that can't be read fails the test with its path.
pub(crate) fn sequences<T: DeserializeOwned>(set: &str) -> Vec<T> {
    vectors::load(set).unwrap_or_else(|error| panic!("{error}"))
}

/// What became of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every answer agreed.
    Compared,
    /// Every answer agreed, but the peer keeps something else on purpose: our state was set to it.
    ComparedThenSet(&'static str),
    /// Every answer agreed but one, which the peer gives by a convention of its own.
    ComparedBut(&'static str),
    /// The answers differ on purpose: our state was set to the peer's.
    Excused(&'static str),
}

/// The account of one set.
#[derive(Debug)]
pub(crate) struct Tally {
    set: &'static str,
    sequences: u64,
    compared: u64,
    set_after: BTreeMap<&'static str, u64>,
    left_out: BTreeMap<&'static str, u64>,
    excused: BTreeMap<&'static str, u64>,
    place: String,
}

impl Tally {
    pub(crate) fn new(set: &'static str) -> Self {
        Self {
            set,
            sequences: 0,
            compared: 0,
            set_after: BTreeMap::new(),
            left_out: BTreeMap::new(),
            excused: BTreeMap::new(),
            place: String::new(),
        }
    }

    pub(crate) fn sequence(&mut self) {
        self.sequences += 1;
    }

    /// Says which operation comes next, for the message if it fails.
    pub(crate) fn at(&mut self, id: u64, index: usize, op: &dyn Debug) {
        self.place = format!("{}: sequence {id}, operation {index}: {op:?}", self.set);
    }

    pub(crate) fn operation(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Compared => self.compared += 1,
            Verdict::ComparedThenSet(reason) => {
                self.compared += 1;
                *self.set_after.entry(reason).or_default() += 1;
            }
            Verdict::ComparedBut(reason) => {
                self.compared += 1;
                *self.left_out.entry(reason).or_default() += 1;
            }
            Verdict::Excused(reason) => *self.excused.entry(reason).or_default() += 1,
        }
    }

    /// Prints the account and fails if more than 5 % of the operations were excused.
    #[expect(clippy::print_stdout, reason = "the account is for people to read")]
    pub(crate) fn finish(self) {
        let excused: u64 = self.excused.values().sum();
        let operations = self.compared + excused;
        println!(
            "{}: {} sequences, {operations} operations, {} compared, {excused} excused",
            self.set, self.sequences, self.compared
        );
        for (reason, count) in &self.excused {
            println!("  excused {count}: {reason}");
        }
        for (reason, count) in &self.set_after {
            println!("  compared, then our state set {count}: {reason}");
        }
        for (reason, count) in &self.left_out {
            println!("  compared but for one answer {count}: {reason}");
        }
        assert!(operations > 0, "{}: nothing was recorded", self.set);
        assert!(
            self.compared * 100 >= operations * 95,
            "{}: only {} of {operations} operations compared",
            self.set,
            self.compared
        );
    }
}

/// A comparison that panicked says where it was.
impl Drop for Tally {
    #[expect(clippy::print_stdout, reason = "the test harness shows it on failure")]
    fn drop(&mut self) {
        if thread::panicking() {
            println!("failed at {}", self.place);
        }
    }
}
