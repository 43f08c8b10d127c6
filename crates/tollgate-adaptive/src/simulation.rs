//! A queueing simulator for laws: clients with a limit each, servers with a queue, on virtual time.
//!
//! It is deterministic: a scenario, a limit and a seed always give the same. The limits are the real
//! [`ConcurrencyLimiter`](tollgate::ConcurrencyLimiter) and [`AdaptiveController`](super::AdaptiveController), on a clock that the
//! simulation moves from event to event.
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

/// What happens to whom: servers, calls, and when what changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// By what it is asked for.
    pub name: &'static str,
    /// What it is like, in a few words.
    pub about: &'static str,
    /// How long a call takes a server.
    pub service: Service,
    /// How many calls come a second, in Poisson's manner, all clients together.
    pub arrivals: f64,
    /// How many clients there are, with a limit each.
    pub clients: u32,
    /// A call that isn't answered by then is given up, and its permit ends as dropped; servers still work on it.
    pub timeout: Duration,
    /// What is so from when on.
    pub phases: Vec<Phase>,
    /// How long limits have after each change to find themselves: what happens meanwhile isn't judged.
    pub settle: Duration,
}

/// A part of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// How long it lasts.
    pub lasts: Duration,
    /// How many calls are served at once.
    pub servers: u32,
    /// How fast: 1 as the service says, 0.5 at half of the speed, 0 not at all.
    pub speed: f64,
}

/// How long a call takes a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    /// Always as long.
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
    /// One or the other: most calls are quick, some are slow.
    Bimodal {
        /// How long a quick one takes.
        quick: Duration,
        /// How long a slow one takes.
        slow: Duration,
        /// Which part of calls is slow.
        part: f64,
    },
}

impl Service {
    /// How long one takes, in nanoseconds.
    fn draw(self, chance: &mut SplitMix64) -> f64 {
        let nanos = |mean: Duration| mean.as_secs_f64() * 1e9;
        match self {
            Self::Fixed(mean) => nanos(mean),
            Self::Exponential(mean) => nanos(mean) * exponential(chance),
            Self::Lognormal { mean, deviation } => {
                let (middle, sigma) = lognormal_parameters(deviation);
                // Two even numbers make a normal one (Box and Muller).
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

    /// What 99 % of calls don't exceed if none has to wait.
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

/// The logarithm's mean and deviation of a lognormal number of mean 1.
fn lognormal_parameters(deviation: f64) -> (f64, f64) {
    let variance = (1.0 + deviation * deviation).ln();
    (-variance / 2.0, variance.sqrt())
}

/// An exponentially distributed number of mean 1.
fn exponential(chance: &mut SplitMix64) -> f64 {
    -(1.0 - chance.next_fraction()).ln()
}

/// What holds a client's calls back.
#[derive(derive_more::Debug)]
pub enum Limit {
    /// Always as many at once.
    Fixed(u32),
    /// As many as a law says.
    #[debug("Law({:?})", _0.limit())]
    Law(Box<dyn LimitAlgorithm>),
}

impl Limit {
    /// As many as this law says.
    pub fn law(law: impl LimitAlgorithm + 'static) -> Self {
        Self::Law(Box::new(law))
    }
}

impl Scenario {
    /// The one of [`all`](Self::all) that has this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::all().into_iter();
        all.find(|scenario| scenario.name == name)
    }

    /// Plays it, with a limit for each client, by chance from this seed.
    pub fn run(&self, limit: impl Fn(u64) -> Limit, seed: u64) -> SimulationResult {
        simulator::Simulator::new(self, limit, seed).run()
    }

    /// The best that any fixed limit does in each phase: answered in time a second.
    pub fn best_fixed(&self, seed: u64) -> Vec<(u32, f64)> {
        let mut best = vec![(0, 0.0); self.phases.len()];
        // Finer than the steps of what they do.
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
