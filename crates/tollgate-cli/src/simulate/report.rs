//! The report of a simulation: as text through `Display`, as one JSON object through serde.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tollgate_core::{Rate, Timestamp};

use super::format::{format_hanging, format_nanos, format_seconds};
use super::pattern::Traffic;
use super::plot::TextPlot;
use super::runner::{AlgorithmForm, RunResult};
use super::{AlgorithmRun, SimulateOptions, tally};
use crate::output::{ColumnAlign, format_columns};

/// The result of every algorithm for a pattern. Its JSON has the fields in this order.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AlgorithmReport {
    /// The limit, with its burst spelled out.
    pub rate: String,
    /// The name of the pattern.
    pub pattern: &'static str,
    /// The arrivals in words.
    pub traffic: String,
    /// The seed, which only the poisson pattern uses.
    pub seed: u64,
    /// The number of requests.
    pub offered: usize,
    /// Arrivals in each 100 ms from 0 s on; null if the run is longer than 1000 s.
    pub offered_per_100ms: Option<Vec<usize>>,
    /// The results, one for each algorithm.
    pub algorithms: Vec<AlgorithmResult>,
    #[serde(skip)]
    period: Option<Duration>,
    #[serde(skip)]
    plot: TextPlot,
}

/// The result of one algorithm for a pattern. A field without a meaning is `None`, in JSON null: all counts if the
/// algorithm can't represent the rate, and the wait if requests don't wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AlgorithmResult {
    /// The algorithm's name.
    pub name: &'static str,
    /// The number of requests.
    pub offered: usize,
    /// The number of admitted requests, including those that waited.
    pub admitted: Option<usize>,
    /// The number of denied requests.
    pub denied: Option<usize>,
    /// The most requests that were admitted in any 100 ms.
    pub peak_100ms: Option<usize>,
    /// The most requests that were admitted in any second.
    pub peak_1s: Option<usize>,
    /// The most requests that were admitted in any span as long as the rate's period.
    pub peak_period: Option<usize>,
    /// The longest wait in seconds; only for a queue.
    pub longest_wait_s: Option<f64>,
    /// The time of the last admission, in seconds from the start.
    pub last_release_s: Option<f64>,
    /// A remark: why the algorithm was left out, or the rate that it was run with.
    pub note: Option<String>,
    /// Admissions in each 100 ms from 0 s on; null if the run is longer than 1000 s.
    pub admissions_per_100ms: Option<Vec<usize>>,
}

const BIN_WIDTH: Duration = Duration::from_millis(100);
/// The most 100 ms bins. A larger array would be mostly zeros.
const MAX_BINS: usize = 10_000;
const LINE_WIDTH: usize = 100;

impl AlgorithmReport {
    pub(super) fn new(
        options: &SimulateOptions,
        traffic: &Traffic,
        trials: &[AlgorithmRun],
    ) -> Self {
        let arrivals = &traffic.arrivals;
        let runs = || trials.iter().filter_map(|trial| trial.run.as_ref());
        let last_release = runs().filter_map(|run| run.releases.last()).max();
        let end = last_release.max(arrivals.last()).copied();
        let end = end.unwrap_or(Timestamp::ZERO);

        let mut plot = TextPlot::new(end);
        plot.add_row("offered", arrivals);
        for trial in trials {
            if let Some(run) = &trial.run {
                plot.add_row(trial.form.name(), &run.releases);
            }
        }
        let period = options.rate.period();
        let line = |trial| AlgorithmResult::new(trial, arrivals.len(), period, end);
        Self {
            rate: rate_with_burst(options.rate),
            pattern: options.pattern.name(),
            traffic: traffic.description.clone(),
            seed: options.seed,
            offered: arrivals.len(),
            offered_per_100ms: count_bins(arrivals, end),
            algorithms: trials.iter().map(line).collect(),
            period,
            plot,
        }
    }

    /// The period, if a peak over it adds to those over 100 ms and 1 s.
    fn unusual_period(&self) -> Option<Duration> {
        self.period
            .filter(|period| ![BIN_WIDTH, Duration::from_secs(1)].contains(period))
    }

    fn table(&self) -> String {
        let mut above = vec!["", "", "", "", "peak in", "peak in"];
        let mut below = vec!["algorithm", "offered", "admitted", "denied"];
        below.extend(["any 100ms", "any 1s"]);
        let odd = self
            .unusual_period()
            .map(|period| format_nanos(period.as_nanos()));
        let odd = odd.map(|period| format!("any {period}"));
        if let Some(period) = &odd {
            above.push("peak in");
            below.push(period);
        }
        above.extend(["longest", "last"]);
        below.extend(["wait", "release"]);

        let mut rows: Vec<Vec<String>> = [above, below]
            .map(|row| row.into_iter().map(str::to_owned).collect())
            .to_vec();
        rows.extend(self.algorithms.iter().map(|line| line.cells(odd.is_some())));
        format_columns(&rows, |column| match column {
            0 => ColumnAlign::Left,
            _ => ColumnAlign::Right,
        })
    }
}

impl fmt::Display for AlgorithmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let traffic = format!("{}: {}", self.pattern, self.traffic);
        f.write_str(&format_hanging("limit", 9, &self.rate, LINE_WIDTH))?;
        f.write_str(&format_hanging("traffic", 9, &traffic, LINE_WIDTH))?;
        write!(f, "\n{}\n", self.table())?;

        let names = AlgorithmForm::ALL.map(|form| form.name().len());
        let indent = names.into_iter().max().unwrap_or(0) + 2;
        for line in &self.algorithms {
            if let Some(note) = &line.note {
                f.write_str(&format_hanging(line.name, indent, note, LINE_WIDTH))?;
            }
        }
        write!(f, "\n{}", self.plot.draw(indent))
    }
}

impl AlgorithmResult {
    fn new(trial: &AlgorithmRun, offered: usize, period: Option<Duration>, end: Timestamp) -> Self {
        let run = trial.run.as_ref();
        let peak = |window| run.map(|run| run.peak(window));
        let longest_wait = run.and_then(|run| run.longest_wait);
        let last_release = run.and_then(|run| run.releases.last());
        Self {
            name: trial.form.name(),
            offered,
            admitted: run.map(RunResult::admitted),
            denied: run.map(RunResult::denied),
            peak_100ms: peak(BIN_WIDTH),
            peak_1s: peak(Duration::from_secs(1)),
            peak_period: period.and_then(peak),
            longest_wait_s: longest_wait.map(|wait| wait.as_secs_f64()),
            last_release_s: last_release.map(|last| last.as_secs_f64()),
            note: trial.note.clone(),
            admissions_per_100ms: run.and_then(|run| count_bins(&run.releases, end)),
        }
    }

    fn cells(&self, with_period: bool) -> Vec<String> {
        let number = |count: Option<usize>| count.map_or("-".to_owned(), |count| count.to_string());
        let time = |time: Option<f64>| time.map_or("-".to_owned(), format_seconds);
        let mut cells = vec![
            self.name.to_owned(),
            self.offered.to_string(),
            number(self.admitted),
            number(self.denied),
            number(self.peak_100ms),
            number(self.peak_1s),
        ];
        if with_period {
            cells.push(number(self.peak_period));
        }
        cells.extend([time(self.longest_wait_s), time(self.last_release_s)]);
        cells
    }
}

/// Counts in each 100 ms up to `end`, unless there would be too many bins.
fn count_bins(times: &[Timestamp], end: Timestamp) -> Option<Vec<usize>> {
    let last = (end - Timestamp::ZERO).as_nanos() / BIN_WIDTH.as_nanos();
    let columns = usize::try_from(last).ok()?.checked_add(1)?;
    (columns <= MAX_BINS).then(|| tally::per_column(times, BIN_WIDTH.as_nanos(), columns))
}

/// The rate with its burst, which the short form omits if it equals the count.
pub(crate) fn rate_with_burst(rate: Rate) -> String {
    if rate.period().is_some() && rate.burst_size() == rate.count() {
        format!("{rate} burst {}", rate.burst_size())
    } else {
        rate.to_string()
    }
}
