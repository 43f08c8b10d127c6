//! A world in a seed: a whole fleet and its store, simulated on one thread with a simulated clock.
//!
//! The nodes run the real engine and the real client; the store runs the real scripts. Everything else follows
//! from one number: the requests, their times, and the faults. Checks know what may pass.
//!
//! ```
//! use tollgate_testkit::world::{Scenario, judge, run_scenario};
//!
//! let scenario = Scenario::new(42);
//! let record = run_scenario(&scenario);
//! assert_eq!(judge(&scenario, &record), Ok(()));
//! ```
//!
//! In reading order: [`Scenario`] is the list of events, `node`, `http_guard` and `network` are what they act
//! on, and [`Store`] is a small Redis. [`run_scenario`] runs the events, [`judge`] checks the record, and
//! [`shrink`] finds the shortest history that still fails. [`replay`] runs recorded calls on the store and on a
//! real server, and returns where they differ.

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
