//! Ten million new keys, one after the other: their memory, and the slowest insert.

use serde::{Deserialize, Serialize};

use super::gates::{self, KeyedGate, KeyedLoad};
use super::keys::{Buffer, name};
use crate::runner::as_f64;
use crate::timing;

const KEYS: u64 = 10_000_000;
/// Memory is measured after each of these.
const STEP: u64 = 1_000_000;
/// Inserts between two measurements of the time that the thread waited for a core.
const CHUNK: u64 = 2_000;

/// The cost of ten million keys.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Growth {
    /// Bytes for each key when all of them are in.
    pub(crate) bytes: f64,
    /// The most bytes for each key, at any million on the way.
    pub(crate) most_bytes: f64,
    /// The slowest insert in microseconds, without the time in which its thread had no core.
    pub(crate) slowest: f64,
}

/// Runs one participant. It must be alone in its process, because the allocator reuses memory that another one
/// freed.
pub(crate) fn run(who: &str) -> Option<Growth> {
    let load = KeyedLoad::DENY;
    Some(match who {
        "ours" => grow(|| gates::tollgate_gate(load, KEYS)),
        "governor" => grow(|| gates::governor(load)),
        "governor-ahash" => grow(|| gates::governor_ahash(load)),
        _ => return None,
    })
}

/// The slowest check in a flood, in microseconds: ten times as many hostile keys as the table has room for.
pub(crate) fn flood_table() -> f64 {
    const TABLE_ROOM: u64 = 100_000;
    let gate = gates::tollgate_gate(KeyedLoad::DENY, TABLE_ROOM);
    let mut timer = CallTimer::new();
    let chunks = (0..10 * TABLE_ROOM).step_by(usize::try_from(CHUNK).unwrap_or(1));
    let ask = |key: &String| {
        std::hint::black_box(gate.allow(key.as_str()));
    };
    chunks
        .map(|first| timer.slowest(first, ask))
        .fold(0.0, f64::max)
}

/// Times calls one by one.
struct CallTimer {
    clock: quanta::Clock,
    buffer: Buffer,
}

impl CallTimer {
    fn new() -> Self {
        Self {
            clock: quanta::Clock::new(),
            buffer: Buffer::new(),
        }
    }

    /// The slowest of a chunk of calls, one for each key, in microseconds.
    fn slowest(&mut self, first: u64, call: impl Fn(&String)) -> f64 {
        let waited = timing::core_wait_time();
        let mut slowest = 0;
        for index in first..first + CHUNK {
            let key = self.buffer.set(&name(index));
            let start = self.clock.raw();
            call(key);
            slowest = slowest.max(self.clock.delta_as_nanos(start, self.clock.raw()));
        }
        // All waits of the chunk may have been in its slowest call, so this is a lower bound of that call. Time
        // that a hypervisor took can't be seen, and stays in.
        let waited = timing::core_wait_time().saturating_sub(waited);
        (as_f64(slowest) - waited.as_secs_f64() * 1e9) / 1e3
    }
}

fn grow<G: KeyedGate>(gate: impl FnOnce() -> G) -> Growth {
    let mut timer = CallTimer::new();
    let before = timing::resident_bytes();
    let gate = gate();
    let mut growth = Growth::default();
    for first in (0..KEYS).step_by(usize::try_from(CHUNK).unwrap_or(1)) {
        let slowest = timer.slowest(first, |key| {
            assert!(gate.allow(key), "a new key passes");
        });
        growth.slowest = growth.slowest.max(slowest);
        let keys = first + CHUNK;
        if keys.is_multiple_of(STEP) {
            let grown = timing::resident_bytes().saturating_sub(before);
            growth.bytes = as_f64(grown) / as_f64(keys);
            growth.most_bytes = growth.most_bytes.max(growth.bytes);
        }
    }
    growth
}
