//! `tollgate simulate --adaptive`: runs the algorithms of adaptive limits in a queueing simulator, and compares each
//! with the best fixed limit.

use std::fmt;

use serde::{Serialize, Serializer};
use tollgate_adaptive::simulation::{Limit, Scenario, Score, SimulationResult};
use tollgate_adaptive::{AdaptiveAlgorithm, AlgorithmError, Bounds};

use super::SimulateOptions;
use super::plot::SvgChart;

/// The bounds of every limit.
const LIMIT_BOUNDS: (f64, f64) = (1.0, 200.0);

/// The result of each algorithm in each scenario.
#[derive(Clone, Debug)]
pub struct AdaptiveReport {
    scenarios: Vec<ScenarioResult>,
}

/// The result of one scenario.
#[derive(Clone, Debug)]
struct ScenarioResult {
    scenario: Scenario,
    /// The best fixed limit of each phase, and its goodput.
    best: Vec<(u32, f64)>,
    runs: Vec<(AdaptiveAlgorithm, SimulationResult)>,
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdaptiveLine {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The algorithm's name.
    pub law: &'static str,
    /// The goodput as a fraction of the best fixed limit's.
    pub goodput: f64,
    /// The 99th percentile of latency, as a multiple of the unloaded one.
    pub p99_times: f64,
    /// How much the limit oscillates.
    pub swing: f64,
    /// The limit's mean in each phase.
    pub limits: Vec<f64>,
    /// The best fixed limit in each phase.
    pub best_fixed: Vec<u32>,
    /// Whether the result meets all targets.
    pub is_good: bool,
}

/// Runs the chosen algorithms in the chosen scenarios.
///
/// # Errors
/// An algorithm rejects the bounds. The bounds are constants that all algorithms accept.
///
/// ```
/// use tollgate_cli::simulate::{SimulateOptions, simulate_adaptive};
///
/// let options = SimulateOptions { scenario: Some("fixed".into()), ..SimulateOptions::default() };
/// let report = simulate_adaptive(&options)?;
/// assert!(report.lines()[0].is_good);
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
pub fn simulate_adaptive(options: &SimulateOptions) -> Result<AdaptiveReport, AlgorithmError> {
    let asked = options.scenario.as_deref();
    let is_asked = |name: &str| asked.is_none_or(|asked| asked == name);
    let laws = match &options.laws[..] {
        [] => &[AdaptiveAlgorithm::Little],
        laws => laws,
    };
    let scenarios = Scenario::all().into_iter();
    let scenarios = scenarios.filter(|scenario| is_asked(scenario.name));
    let played = scenarios.map(|scenario| ScenarioResult::new(scenario, laws, options.seed));
    Ok(AdaptiveReport {
        scenarios: played.collect::<Result<_, _>>()?,
    })
}

impl ScenarioResult {
    fn new(
        scenario: Scenario,
        laws: &[AdaptiveAlgorithm],
        seed: u64,
    ) -> Result<Self, AlgorithmError> {
        let bounds = Bounds::new(LIMIT_BOUNDS.0, LIMIT_BOUNDS.1)?;
        let run = |law: &AdaptiveAlgorithm| {
            // Instances of an algorithm differ only in their seed, so one of them shows whether it can be made.
            law.make(bounds, 0)?;
            let limit = |client: u64| match law.make(bounds, 1_000 * seed + client) {
                Ok(law) => Limit::Law(law),
                Err(_) => Limit::Fixed(1),
            };
            Ok((*law, scenario.run(limit, seed)))
        };
        let runs = laws
            .iter()
            .map(run)
            .collect::<Result<_, AlgorithmError>>()?;
        Ok(Self {
            best: scenario.best_fixed(seed),
            runs,
            scenario,
        })
    }
}

impl AdaptiveReport {
    /// A line for each law in each scenario.
    pub fn lines(&self) -> Vec<AdaptiveLine> {
        let lines = self.scenarios.iter().flat_map(|played| {
            played.runs.iter().map(|(law, run)| {
                let judged = run.judge(&played.best);
                AdaptiveLine {
                    scenario: played.scenario.name,
                    law: law.name(),
                    goodput: judged.goodput,
                    p99_times: judged.p99_times,
                    swing: judged.swing,
                    limits: run.phases.iter().map(|phase| phase.limit).collect(),
                    best_fixed: played.best.iter().map(|(limit, _)| *limit).collect(),
                    is_good: judged.is_good(),
                }
            })
        });
        lines.collect()
    }

    /// A drawing of the first scenario: limit, calls in flight, latency and goodput over time.
    pub fn svg(&self) -> String {
        let Some(played) = self.scenarios.first() else {
            return String::new();
        };
        let Scenario { name, about, .. } = &played.scenario;
        let mut drawing = SvgChart::new(&format!("{name}: {about}"));
        let mut from = 0.0;
        for phase in &played.scenario.phases {
            from += phase.lasts.as_secs_f64();
            drawing.add_marker(from);
        }
        for (law, run) in &played.runs {
            drawing.add_line(law.name(), &run.points);
        }
        drawing.to_svg()
    }
}

impl Serialize for AdaptiveReport {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.lines().serialize(to)
    }
}

impl fmt::Display for AdaptiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "asked of a law: goodput {} of the best fixed limit's, p99 {} × unloaded, swing {}; each in its worst phase",
            Score::GOODPUT,
            Score::P99_TIMES,
            Score::SWING
        )?;
        let limits = |numbers: Vec<String>| numbers.join(" → ");
        for played in &self.scenarios {
            let Scenario { name, about, .. } = &played.scenario;
            let best = played.best.iter().map(|(limit, _)| limit.to_string());
            let best = limits(best.collect());
            writeln!(f, "\n{name}: {about}; best fixed limit {best}")?;
            writeln!(f, "  law          goodput    p99 ×  swing  limit")?;
            for line in self.lines().iter().filter(|line| line.scenario == *name) {
                let (law, goodput, p99_times) = (line.law, line.goodput, line.p99_times);
                let own = line.limits.iter().map(|limit| format!("{limit:.1}"));
                let (swing, own) = (line.swing, limits(own.collect()));
                let verdict = if line.is_good { "" } else { "  ✗" };
                writeln!(
                    f,
                    "  {law:12} {goodput:7.3}  {p99_times:7.2}  {swing:5.2}  {own}{verdict}"
                )?;
            }
        }
        Ok(())
    }
}
