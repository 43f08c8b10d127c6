//! A world in a seed: a whole fleet and its store, simulated on one thread and on a clock of its own.
//!
//! The nodes run the real engine and the real client; the store runs the real scripts; everything else follows
//! from one number: who asks what when, and what goes wrong. A judge knows what may pass.
//!
//! ```
//! use tollgate_testkit::world::{Scenario, judge, run_scenario};
//!
//! let story = Scenario::new(42);
//! let record = run_scenario(&story);
//! assert_eq!(judge(&story, &record), Ok(()));
//! ```
//!
//! In reading order: [`Scenario`] says what happens, `node`, `guard` and `network` are what it happens to, [`Store`] is a
//! small Redis, [`play`] lets it happen, [`judge`] says what must not have, [`shrink`] finds the shortest history
//! that still fails. [`replay`] runs recorded calls on the store and on a real server, and says where they differ.

mod checks;
mod http_guard;
mod network;
mod node;
mod replay;
mod resp;
mod scenario;
mod shrink;
mod simulation;
mod store;

pub use checks::{Violation, judge};
pub use network::{Exchange, Weather};
pub use replay::{Call, Difference, replay};
pub use scenario::{
    Amount, CountingChoice, EstimateSetting, Event, Failure, FaultType, FinalCost, KeptData,
    LimitSort, RefundEvent, Request, Rule, Scenario, ScenarioSettings, TreeLeaf,
};
pub use shrink::{run_and_check, run_seed, shrink};
pub use simulation::{
    Fault, Record, RecordedRefund, RecordedTally, ReportedDecision, UnansweredRequest, run_scenario,
};
pub use store::{Counts, ServerError, Store, StoreCondition};
