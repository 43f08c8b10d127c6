//! Counts what was compared and what was excused, and insists on 95 % compared. A sequence in which
//! the model of a peer, or ours, is wrong ends there; the set goes on, and the test fails at its end.

mod disagreement;
mod tests;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::thread;

pub(crate) use disagreement::{Disagreement, Side};
use serde::de::DeserializeOwned;
use tollgate_testkit::test_vectors;

/// How many disagreements of a side are printed; the rest are counted.
const TOLD: usize = 10;

/// The sequences of a set; a set that can't be read fails the test with its path.
pub(crate) fn sequences<T: DeserializeOwned>(set: &str) -> Vec<T> {
    test_vectors::load_vectors(set).unwrap_or_else(|error| panic!("{error}"))
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

/// What one operation comes to: a disagreement ends its sequence.
pub(crate) type Judged = Result<Verdict, Disagreement>;

/// The account of one set.
#[derive(Debug)]
pub(crate) struct Tally {
    set: &'static str,
    sequences: u64,
    compared: u64,
    set_after: BTreeMap<&'static str, u64>,
    left_out: BTreeMap<&'static str, u64>,
    excused: BTreeMap<&'static str, u64>,
    stopped: BTreeMap<Side, Stopped>,
    place: String,
}

/// The sequences that ended early by the fault of one side.
#[derive(Debug, Default)]
struct Stopped {
    sequences: u64,
    /// The operations at which they ended and those after them.
    operations: usize,
    told: Vec<String>,
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
            stopped: BTreeMap::new(),
            place: String::new(),
        }
    }

    /// Replays a sequence up to its end or the first disagreement: after that nothing that either
    /// side says of this sequence is worth comparing.
    pub(crate) fn replay<Op: Debug>(
        &mut self,
        id: u64,
        ops: &[Op],
        mut step: impl FnMut(&Op) -> Judged,
    ) {
        self.sequences += 1;
        for (index, op) in ops.iter().enumerate() {
            self.place = format!("sequence {id}, operation {index}: {op:?}");
            match step(op) {
                Ok(verdict) => self.count(verdict),
                Err(disagreement) => {
                    self.stop(&disagreement, ops.len() - index);
                    break;
                }
            }
        }
        self.place.clear();
    }

    fn count(&mut self, verdict: Verdict) {
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

    fn stop(&mut self, disagreement: &Disagreement, operations: usize) {
        let stopped = self.stopped.entry(disagreement.side()).or_default();
        stopped.sequences += 1;
        stopped.operations += operations;
        if stopped.told.len() < TOLD {
            stopped.told.push(format!("{}: {disagreement}", self.place));
        }
    }

    /// Prints the account, and fails if there is anything wrong with it.
    #[expect(clippy::print_stdout, reason = "the account is for people to read")]
    pub(crate) fn finish(self) {
        println!("{self}");
        if let Err(wrong) = self.judged() {
            panic!("{wrong}");
        }
    }

    /// What is wrong with the set as a whole, if anything: sequences that ended in a disagreement,
    /// or more than 5 % of the operations excused.
    pub(crate) fn judged(&self) -> Result<(), String> {
        let mut wrong = self.disagreements();
        let (set, compared, operations) = (self.set, self.compared, self.operations());
        if operations == 0 {
            wrong += &format!("{set}: nothing was compared\n");
        }
        if compared * 100 < operations * 95 {
            wrong += &format!("{set}: only {compared} of {operations} operations compared\n");
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// The sequences that ended in a disagreement, the first of each side in full.
    pub(crate) fn disagreements(&self) -> String {
        let mut text = String::new();
        for (side, stopped) in &self.stopped {
            let Stopped {
                sequences,
                operations,
                told,
            } = stopped;
            let (set, all) = (self.set, self.sequences);
            text += &format!(
                "{set}: {side} in {sequences} of {all} sequences, {operations} operations left out\n"
            );
            for place in told {
                text += &format!("  {place}\n");
            }
            let untold = sequences - told.len() as u64;
            if untold > 0 {
                text += &format!("  and {untold} more\n");
            }
        }
        text
    }

    fn operations(&self) -> u64 {
        self.compared + self.excused.values().sum::<u64>()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = self.operations();
        let (set, sequences, compared) = (self.set, self.sequences, self.compared);
        let excused = operations - compared;
        write!(
            f,
            "{set}: {sequences} sequences, {operations} operations, {compared} compared, {excused} excused"
        )?;
        for (reason, count) in &self.excused {
            write!(f, "\n  excused {count}: {reason}")?;
        }
        for (reason, count) in &self.set_after {
            write!(f, "\n  compared, then our state set {count}: {reason}")?;
        }
        for (reason, count) in &self.left_out {
            write!(f, "\n  compared but for one answer {count}: {reason}")?;
        }
        Ok(())
    }
}

/// Prints the place of a panic in a replay.
impl Drop for Tally {
    #[expect(clippy::print_stdout, reason = "the test harness shows it on failure")]
    fn drop(&mut self) {
        if thread::panicking() && !self.place.is_empty() {
            println!("{}: failed at {}", self.set, self.place);
        }
    }
}
