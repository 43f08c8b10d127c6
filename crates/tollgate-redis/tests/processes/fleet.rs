//! Starts nodes as processes, lets them begin together, and reads their records.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::{Clock, Wall};
use tollgate_testkit::temp_folder::TempFolder;

use crate::node::{Does, Failure, READY, ROLE, Role};
use crate::windows::{Admission, excess};

/// From when all are ready until they begin.
const AHEAD: Duration = Duration::from_millis(50);

/// One fleet after the other: each is made to want more than a limit gives, not more than a machine does.
static ALONE: Mutex<()> = Mutex::new(());

/// A node that runs.
pub(crate) struct Node {
    child: Child,
    says: BufReader<ChildStderr>,
}

impl Node {
    pub(crate) fn start(role: &Role) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a test that runs"))
            .args(["--exact", "node::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        let says = BufReader::new(child.stderr.take().expect("a pipe"));
        Self { child, says }
    }

    /// Waits for a report; returns the rest of its line.
    pub(crate) fn says(&mut self, word: &str) -> String {
        let mut all = String::new();
        for line in self.says.by_ref().lines() {
            let line = line.expect("text");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
            all.push_str(&line);
            all.push('\n');
        }
        panic!("a node ended without a {word:?}:\n{all}");
    }

    fn tell(&mut self, line: &str) {
        let pipe = self.child.stdin.as_mut().expect("a pipe");
        writeln!(pipe, "{line}").expect("a node that runs");
    }

    /// Ends it as nothing else does: it can't return what it holds.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a node that runs");
        self.child.wait().expect("a node that was killed");
    }

    fn wait(mut self) {
        let mut said = String::new();
        let _ = self.says.read_to_string(&mut said);
        let status = self.child.wait().expect("a node that ran");
        assert!(status.success(), "a node failed:\n{said}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Of a test that failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A limit, and the nodes that share it.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    /// Its own.
    pub(crate) name: &'a str,
    pub(crate) url: &'a str,
    pub(crate) rate: &'a str,
    pub(crate) is_leased: bool,
    pub(crate) failure: Failure,
    /// What each node does.
    pub(crate) nodes: Vec<Does>,
    pub(crate) length: Duration,
}

/// What all nodes of a fleet were admitted.
#[derive(Debug)]
pub(crate) struct Told {
    /// The admissions of each node, as reported before the end.
    pub(crate) admitted: Vec<usize>,
    /// Of all, by the nodes themselves.
    pub(crate) local: usize,
    rate: Rate,
    length: Duration,
}

impl Fleet<'_> {
    /// Runs it, and looks at every window.
    pub(crate) fn run(&self) -> Told {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = TempFolder::new(self.name);
        let rate: Rate = self.rate.parse().expect("a rate");
        let file = |number: usize| scratch.path(number.to_string());
        let role = |(number, does): (usize, &Does)| Role {
            url: self.url.to_owned(),
            rate,
            is_leased: self.is_leased,
            tasks: 4,
            failure: self.failure,
            does: *does,
            file: file(number).display().to_string(),
        };
        let roles = self.nodes.iter().enumerate().map(role);
        let mut nodes: Vec<Node> = roles.map(|role| Node::start(&role)).collect();
        for node in &mut nodes {
            node.says(READY);
        }
        let start = Wall.now() + AHEAD;
        let end = start + self.length;
        for node in &mut nodes {
            node.tell(&format!("{} {}", start.as_nanos(), end.as_nanos()));
        }
        nodes.into_iter().for_each(Node::wait);
        let each = (0..self.nodes.len()).map(|number| {
            let bytes = std::fs::read(file(number)).expect("what a node wrote");
            read(&bytes)
        });
        let each: Vec<Vec<Admission>> = each.collect();
        let all = each.concat();
        assert!(all.iter().all(|one| one.asked >= start.as_nanos()));
        let (own, stores): (Vec<Admission>, Vec<Admission>) =
            all.into_iter().partition(|one| one.is_local);
        assert_eq!(excess(&stores, rate), None, "{self:?}");
        let in_time = |node: &Vec<Admission>| {
            let in_time = node.iter().filter(|one| one.told <= end.as_nanos());
            in_time.count()
        };
        Told {
            admitted: each.iter().map(in_time).collect(),
            local: own.len(),
            rate,
            length: self.length,
        }
    }
}

fn read(bytes: &[u8]) -> Vec<Admission> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let one = |bytes: &[u8]| Admission {
        asked: number(&bytes[..8]),
        told: number(&bytes[8..16]),
        is_local: number(&bytes[16..]) == 1,
    };
    bytes.chunks_exact(24).map(one).collect()
}

impl Told {
    pub(crate) fn all(&self) -> usize {
        self.admitted.iter().sum()
    }

    /// What was admitted of what the limit allows from a full bucket on, in hundredths of a percent.
    pub(crate) fn share(&self) -> u128 {
        let period = self.rate.period().expect("a limit").as_nanos();
        let refill = u128::from(self.rate.count()) * self.length.as_nanos() / period;
        let allowed = u128::from(self.rate.burst_size()) + refill;
        u128::try_from(self.all()).expect("few") * 10_000 / allowed
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, share, each) = (self.rate, self.share(), &self.admitted);
        write!(
            f,
            "{rate}: {share} of 10,000 were used, by each node {each:?}, {} without the store",
            self.local
        )
    }
}

/// Two seconds, or ten if there is time.
pub(crate) fn length() -> Duration {
    let is_soak = std::env::var_os("TOLLGATE_SOAK").is_some();
    Duration::from_secs(if is_soak { 10 } else { 2 })
}
