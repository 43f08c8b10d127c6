//! lodash's debounce and throttle against our debouncer, in one thread and on a clock that is moved by hand.
//!
//! Ours returns no result of its action, so `ret` isn't compared; when it fires, with which value, and whether a wait is
//! under way is. A sequence is replayed up to where somebody sets the system's clock: our clocks don't go with it.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use tollgate::Timestamp;
use tollgate::clock::{Clock, Manual};
use tollgate_shape::{Debounce, Debouncer, Edge, Throttle, WeakDebouncer};

use crate::tally::Side::Ours;
use crate::tally::Verdict::{Compared, ComparedBut, Excused};
use crate::tally::{Tally, sequences};

const ORPHAN: &str = "lodash's flush leaves its timer running, which fires what is called later too early; ours stops it";
const ORPHAN_PENDING: &str =
    "the timer that lodash's flush leaves running counts as pending when it rings; ours is stopped";

const MILLI: Duration = Duration::from_millis(1);
/// The recorded clock stood at a large time.
const BASE: Timestamp = Timestamp::from_secs(1_000_000);

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    cfg: Config,
    ops: Vec<Op>,
}

#[derive(Clone, Deserialize)]
struct Config {
    kind: Kind,
    wait: u64,
    leading: Option<bool>,
    trailing: Option<bool>,
    #[serde(rename = "maxWait")]
    max_wait: Option<u64>,
    #[serde(default)]
    reentry: Vec<Reentry>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Debounce,
    Throttle,
}

#[derive(Clone, Debug, Deserialize)]
struct Reentry {
    at: u64,
    act: String,
    v: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct Op {
    op: String,
    ms: Option<i64>,
    v: Option<i64>,
    #[serde(default)]
    inv: Vec<Invocation>,
    pending: bool,
}

/// Which firing, when, and of which value.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
struct Invocation {
    i: u64,
    t: i64,
    v: i64,
}

type Weak = WeakDebouncer<i64, Manual>;

/// What the action has done, and what it does to its own debouncer.
#[derive(Default)]
struct Record {
    debouncer: OnceLock<Weak>,
    fired: Mutex<Vec<Invocation>>,
    count: Mutex<u64>,
    orphan: Mutex<Orphan>,
}

/// The timer that lodash's flush leaves running, and that goes on as long as calls come: until then lodash may fire, or
/// say that it is pending, where ours has stopped its timer.
#[derive(Default)]
struct Orphan {
    wait: i64,
    until: Option<i64>,
}

impl Orphan {
    /// A flush while a wait was under way.
    fn is_left(&mut self, now: i64) {
        self.until = Some(now + self.wait);
    }

    /// A call: a timer that fires before its wait has passed is set again.
    fn is_called(&mut self, now: i64) {
        self.until = self
            .until
            .filter(|until| now <= *until)
            .map(|_| now + self.wait);
    }

    fn may_ring(&self, since: i64) -> bool {
        self.until.is_some_and(|until| since <= until)
    }
}

impl Record {
    fn fire(&self, clock: &Manual, reentry: &[Reentry], v: i64) {
        let mut count = self.count.lock().unwrap();
        let (i, t) = (*count, millis(clock));
        *count += 1;
        drop(count);
        self.fired.lock().unwrap().push(Invocation { i, t, v });
        let own = self.debouncer.get().and_then(Weak::upgrade).unwrap();
        for entry in reentry.iter().filter(|entry| entry.at == i) {
            match entry.act.as_str() {
                "call" => {
                    self.orphan.lock().unwrap().is_called(t);
                    own.call(entry.v.unwrap());
                }
                "cancel" => drop(own.cancel()),
                "flush" => self.flush(&own, t),
                other => panic!("unknown action {other:?}"),
            }
        }
    }

    fn flush(&self, own: &Debouncer<i64, Manual>, now: i64) {
        if own.pending() {
            self.orphan.lock().unwrap().is_left(now);
        }
        own.flush();
    }

    fn taken(&self) -> Vec<Invocation> {
        std::mem::take(&mut self.fired.lock().unwrap())
    }
}

fn millis(clock: &Manual) -> i64 {
    i64::try_from((clock.now() - BASE).as_millis()).unwrap()
}

const fn edge(on: Option<bool>, otherwise: Edge) -> Edge {
    match on {
        Some(true) => Edge::On,
        Some(false) => Edge::Off,
        None => otherwise,
    }
}

fn builder(config: &Config) -> Debounce {
    let wait = Duration::from_millis(config.wait);
    let builder = match config.kind {
        Kind::Debounce => Debounce::new(wait).leading(edge(config.leading, Edge::Off)),
        Kind::Throttle => Throttle::every(wait).leading(edge(config.leading, Edge::On)),
    };
    let builder = builder.trailing(edge(config.trailing, Edge::On));
    match config.max_wait {
        Some(most) => builder.max_wait(Duration::from_millis(most)),
        None => builder,
    }
}

/// Time goes on as it does for JavaScript: what is due at an instant fires before the next millisecond begins, and a
/// timer without a delay fires at the next look.
fn advance(clock: &Manual, ms: u64) {
    clock.advance(Duration::from_nanos(1));
    for _ in 0..ms {
        clock.advance(MILLI);
    }
}

fn replay(tally: &mut Tally, sequence: &Sequence) {
    let clock = Manual::starting_at(BASE);
    let record = Arc::new(Record::default());
    let debouncer = {
        let (clock, record) = (clock.clone(), Arc::clone(&record));
        let reentry = sequence.cfg.reentry.clone();
        builder(&sequence.cfg)
            .clock(clock.clone())
            .build(move |v| record.fire(&clock, &reentry, v))
    };
    record.debouncer.get_or_init(|| debouncer.downgrade());
    record.orphan.lock().unwrap().wait = i64::try_from(sequence.cfg.wait).unwrap();
    let until = sequence.ops.iter().position(|op| op.op == "set_clock");
    let ops = &sequence.ops[..until.unwrap_or(sequence.ops.len())];
    let mut is_lost = false;
    tally.replay(sequence.id, ops, |op| {
        let ms = op.ms.map_or(0, |ms| u64::try_from(ms).unwrap());
        let since = millis(&clock);
        match op.op.as_str() {
            "advance" => advance(&clock, ms),
            "jump" => clock.advance(Duration::from_millis(ms)),
            "call" => {
                record.orphan.lock().unwrap().is_called(since);
                debouncer.call(op.v.unwrap());
            }
            "cancel" => drop(debouncer.cancel()),
            "flush" => record.flush(&debouncer, since),
            other => panic!("unknown operation {other:?}"),
        }
        let (fired, pending) = (record.taken(), debouncer.pending());
        if fired == op.inv && pending == op.pending && !is_lost {
            return Ok(Compared);
        }
        if is_lost {
            return Ok(Excused(ORPHAN));
        }
        if record.orphan.lock().unwrap().may_ring(since) {
            if fired == op.inv {
                return Ok(ComparedBut(ORPHAN_PENDING));
            }
            // From here on both are right about different things.
            is_lost = true;
            return Ok(Excused(ORPHAN));
        }
        Ours.says("inv", &fired, &op.inv)?;
        Ours.says("pending", pending, op.pending)?;
        Ok(Compared)
    });
    assert_eq!(debouncer.stats().panicked, 0, "sequence {}", sequence.id);
}

fn all(set: &'static str) {
    let mut tally = Tally::new(set);
    for sequence in sequences::<Sequence>(set) {
        replay(&mut tally, &sequence);
    }
    tally.finish();
}

#[test]
fn lodash() {
    all("lodash");
}

#[test]
fn lodash_edge() {
    all("lodash_edge");
}
