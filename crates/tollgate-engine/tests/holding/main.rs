//! Requests that take time: they wait in queues, hold estimates until they are settled, are peeked without a charge,
//! and feed adaptive limits.

mod adaptive;
mod adaptive_reload;
mod conditions;
mod estimates;
mod late;
mod lines;
mod peek;
mod queue_full;
mod shed;
mod shed_lines;
mod tasks;
mod waits;

use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy};

pub(crate) type TestEngine = Engine<Memory<Manual, Manual>>;

pub(crate) fn policy(text: &str) -> Policy {
    let checked = Policy::from_text(text, Format::Yaml);
    checked.unwrap_or_else(|error| panic!("{error}")).policy
}

pub(crate) fn engine(text: &str, clock: &Manual) -> TestEngine {
    let memory = Memory::builder().capacity(10_000);
    let memory = memory.clock(clock.clone()).wall(clock.clone()).build();
    Engine::new(policy(text), memory).expect("a policy")
}
