//! Limits that find themselves: laws that say what a limit should be, and a controller that puts it in force.
//!
//! ```
//! use tollgate::adaptive::{Bounds, Controller, Little};
//!
//! // How many calls at once a backend can take is found out, between 5 and 200.
//! let controller = Controller::new(Little::new(Bounds::new(5.0, 200.0)?));
//! let limiter = controller.concurrency().build();
//! if let Ok(permit) = limiter.try_acquire() {
//!     // … call the backend; its latency and how it ended are what the law learns from.
//!     permit.success();
//! }
//! # Ok::<(), tollgate::adaptive::LawError>(())
//! ```
//!
//! | law | learns from | choose it when |
//! |---|---|---|
//! | [`Little`] | mean latency, in flight | by default: few assumptions, and measured in every scenario of `docs/adaptive.md` |
//! | [`Aimd`] | drops | there is a clear sign of overload, and nothing else |
//! | [`LatencyThreshold`] | latency against a promise | users were promised a latency |
//! | [`Vegas`], [`Gradient`], [`Gradient2`] | latency | Netflix's are in use, and the same answers are wanted |
//! | [`Bbr`] | delivered rate, least latency | calls take an even time |
//! | [`SelfTuning`] | how many succeed | a rate against a server that rejects |
//! | [`Target`] | a gauge, as CPU | the machine itself is what is scarce |
//!
//! Any of them may be [`Windowed`] and [`Steady`].

mod aimd;
mod bbr;
pub(crate) mod chance;
mod controller;
mod gauge;
mod gradient;
mod gradient2;
mod little;
mod named;
mod sample;
mod self_tuning;
#[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
pub mod simulation;
mod steady;
mod target;
mod threshold;
mod vegas;
mod windowed;

pub use aimd::Aimd;
pub use bbr::Bbr;
pub use controller::{Change, Controller};
pub use gauge::{CpuPressure, CpuUse, Gauge, GaugeError, GroupCpu};
pub use gradient::Gradient;
pub use gradient2::Gradient2;
pub use little::Little;
pub use named::{NamedLaw, NoSuchLaw};
pub use sample::{Bounds, Law, LawError, Reason, Sample, Told};
pub use self_tuning::SelfTuning;
pub use steady::Steady;
pub use target::Target;
pub use threshold::LatencyThreshold;
pub use vegas::Vegas;
pub use windowed::Windowed;
