//! A queueing simulator for algorithms: clients with a limit each, and servers with a queue, on virtual
//! time.
//!
//! It is deterministic: a scenario, a limit and a seed always give the same result. The limits are the
//! real [`ConcurrencyLimiter`](tollgate::ConcurrencyLimiter) and
//! [`AdaptiveController`](super::AdaptiveController), on a clock that the simulation moves from event
//! to event.
//!
//! ```
//! use tollgate_adaptive::{Bounds, Little};
//! use tollgate_adaptive::simulation::{Limit, Scenario};
//!
//! // 8 servers that take 10 ms for each call, and three times as many calls as they can serve.
//! let scenario = Scenario::named("fixed").expect("a scenario");
//! let bounds = Bounds::new(1.0, 200.0)?;
//! let run = scenario.run(|client| Limit::law(Little::new(bounds).seed(client)), 1);
//! let settled = &run.phases[0];
//! assert!(settled.goodput > 700.0, "{} of 800 a second", settled.goodput);
//! assert!(settled.p99_times() < 3.0, "{} times the unloaded p99", settled.p99_times());
//! # Ok::<(), tollgate_adaptive::AlgorithmError>(())
//! ```

use std::time::Duration;

use super::LimitAlgorithm;
use super::random::SplitMix64;

mod result;
mod scenarios;
mod simulator;

pub use result::{PhaseResult, Score, SimulationResult, TimePoint};

/// A scenario: servers, calls, and how they change over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The name by which it is selected.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// How long a server works on a call.
    pub service: Service,
    /// Calls a second of all clients together, as a Poisson process.
    pub arrivals: f64,
    /// The number of clients, each with its own limit.
    pub clients: u32,
    /// The timeout of a call. Its permit then ends as dropped, while servers still work on it.
    pub timeout: Duration,
    /// The phases, one after another.
    pub phases: Vec<Phase>,
    /// How long limits may adapt after each change: this time isn't scored.
    pub settle: Duration,
}

/// A phase of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// The duration.
    pub lasts: Duration,
    /// The number of servers: each works on one call at a time.
    pub servers: u32,
    /// The servers' speed: 1 as the service time, 0.5 half as fast, 0 stopped.
    pub speed: f64,
}

/// The distribution of service times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    /// Constant.
    Fixed(Duration),
    /// Exponentially distributed around this mean: M/M/c.
    Exponential(Duration),
    /// Lognormally distributed around this mean, with this ratio of standard deviation to mean: M/G/c.
    Lognormal {
        /// The mean.
        mean: Duration,
        /// The standard deviation, as a multiple of it.
        deviation: f64,
    },
    /// One of two: most calls are fast, some are slow.
    Bimodal {
        /// The duration of a fast call.
        quick: Duration,
        /// The duration of a slow call.
        slow: Duration,
        /// The share of slow calls.
        part: f64,
    },
}

impl Service {
    /// Draws a service time, in nanoseconds.
    fn draw(self, chance: &mut SplitMix64) -> f64 {
        let nanos = |mean: Duration| mean.as_secs_f64() * 1e9;
        match self {
            Self::Fixed(mean) => nanos(mean),
            Self::Exponential(mean) => nanos(mean) * exponential(chance),
            Self::Lognormal { mean, deviation } => {
                let (middle, sigma) = lognormal_parameters(deviation);
                // Two uniform numbers give a normal one (Box and Muller).
                let normal = (2.0 * exponential(chance)).sqrt()
                    * (std::f64::consts::TAU * chance.next_fraction()).cos();
                nanos(mean) * (middle + sigma * normal).exp()
            }
            Self::Bimodal { quick, slow, part } => nanos(if chance.next_fraction() < part {
                slow
            } else {
                quick
            }),
        }
    }

    /// The 99th percentile of latency without any queue.
    pub fn p99(self) -> Duration {
        match self {
            Self::Fixed(mean) => mean,
            Self::Exponential(mean) => mean.mul_f64(100_f64.ln()),
            Self::Lognormal { mean, deviation } => {
                let (middle, sigma) = lognormal_parameters(deviation);
                mean.mul_f64((middle + 2.326_347_874 * sigma).exp())
            }
            Self::Bimodal { quick, slow, part } => {
                if part > 0.01 {
                    slow
                } else {
                    quick
                }
            }
        }
    }
}

/// The parameters of the underlying normal distribution, for a lognormal number of mean 1.
fn lognormal_parameters(deviation: f64) -> (f64, f64) {
    let variance = (1.0 + deviation * deviation).ln();
    (-variance / 2.0, variance.sqrt())
}

/// An exponentially distributed number of mean 1.
fn exponential(chance: &mut SplitMix64) -> f64 {
    -(1.0 - chance.next_fraction()).ln()
}

/// The limit of a client's calls.
#[derive(derive_more::Debug)]
pub enum Limit {
    /// A fixed concurrency limit.
    Fixed(u32),
    /// A limit by an algorithm.
    #[debug("Law({:?})", _0.limit())]
    Law(Box<dyn LimitAlgorithm>),
}

impl Limit {
    /// A limit by this algorithm.
    pub fn law(law: impl LimitAlgorithm + 'static) -> Self {
        Self::Law(Box::new(law))
    }
}

impl Scenario {
    /// The one of [`all`](Self::all) with this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::all().into_iter();
        all.find(|scenario| scenario.name == name)
    }

    /// Runs it with a limit for each client, at random from this seed.
    pub fn run(&self, limit: impl Fn(u64) -> Limit, seed: u64) -> SimulationResult {
        simulator::Simulator::new(self, limit, seed).run()
    }

    /// The best fixed limit of each phase, with its calls a second that are answered in time.
    pub fn best_fixed(&self, seed: u64) -> Vec<(u32, f64)> {
        let mut best = vec![(0, 0.0); self.phases.len()];
        // Closer together than differences between their results.
        for limit in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 200] {
            if limit > 1 && limit > 4 * self.most_servers() {
                break;
            }
            let run = self.run(|_| Limit::Fixed(limit.div_ceil(self.clients)), seed);
            for (best, phase) in best.iter_mut().zip(&run.phases) {
                if phase.goodput > best.1 {
                    *best = (limit, phase.goodput);
                }
            }
        }
        best
    }

    fn most_servers(&self) -> u32 {
        self.phases
            .iter()
            .map(|phase| phase.servers)
            .max()
            .unwrap_or(1)
    }
}
