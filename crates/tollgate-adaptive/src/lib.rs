//! Adaptive limits, a circuit breaker, protected calls and load shedding, on the limits of `tollgate`.
//!
//! An algorithm (a *control law*: a rule that sets a limit from samples) decides what a limit should
//! be, and an [`AdaptiveController`] applies it:
//!
//! ```
//! use tollgate_adaptive::{Bounds, AdaptiveController, Little};
//!
//! // Finds out how many concurrent requests calls a backend can take, between 5 and 200.
//! let controller = AdaptiveController::new(Little::new(Bounds::new(5.0, 200.0)?));
//! let limiter = controller.concurrency().build();
//! if let Ok(permit) = limiter.try_acquire() {
//!     // … call the backend; the algorithm learns from its latency and its outcome.
//!     permit.success();
//! }
//! # Ok::<(), tollgate_adaptive::AlgorithmError>(())
//! ```
//!
//! | algorithm | learns from | choose it when |
//! |---|---|---|
//! | [`Little`] | mean latency, in flight | by default: few assumptions, and measured in every scenario of `docs/explanation/adaptive.md` |
//! | [`Aimd`] | drops | there is a clear sign of overload, and nothing else |
//! | [`LatencyThreshold`] | latency against a threshold | users were promised a latency |
//! | [`Vegas`], [`Gradient`], [`Gradient2`] | latency | results have to match those of Netflix's |
//! | [`Bbr`] | delivered rate, least latency | all calls take about the same time |
//! | [`SelfTuning`] | the share of successes | a rate against a server that rejects |
//! | [`GaugeTarget`] | a gauge, such as CPU usage | the machine itself is the bottleneck |
//!
//! Each of them can be [`Windowed`] and [`Damped`].
//!
//! | module | contents |
//! |---|---|
//! | [`breaker`] | a circuit breaker: no calls to a backend that fails |
//! | `protect` | breaker, rate and bulkhead around a call; retries with backoff and a budget, client-side throttling |
//! | [`shed`] | load shedding by criticality; guaranteed shares of one limit |
//! | `simulation` | a queueing simulator on virtual time (feature `simulation`) |

#![forbid(unsafe_code)]

mod aimd;
mod bbr;
pub mod breaker;
mod controller;
mod gauge;
mod gradient;
mod gradient2;
mod latency_threshold;
mod law;
mod littles_law;
mod named;
#[cfg(not(any(loom, shuttle)))]
pub mod protect;
mod random;
mod self_tuning;
pub mod shed;
#[cfg(all(feature = "simulation", not(any(loom, shuttle))))]
pub mod simulation;
mod steady;
mod sync;
mod target;
mod undo_guard;
mod vegas;
mod windowed;

pub use aimd::Aimd;
pub use bbr::Bbr;
pub use controller::{AdaptiveController, LimitChange};
pub use gauge::{CgroupCpu, CpuPressure, CpuUsage, Gauge, GaugeError};
pub use gradient::Gradient;
pub use gradient2::Gradient2;
pub use latency_threshold::LatencyThreshold;
pub use law::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Observation, Sample};
pub use littles_law::Little;
pub use named::{AdaptiveAlgorithm, UnknownAlgorithm};
pub use self_tuning::SelfTuning;
pub use steady::Damped;
pub use target::GaugeTarget;
pub use vegas::Vegas;
pub use windowed::Windowed;

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
