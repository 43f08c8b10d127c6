//! Netflix's concurrency-limits against our adaptive algorithms: every limit, and every number behind it, to the bit. A
//! window passes one sample to its algorithm, so the same replay covers the algorithms alone and in windows.

use std::time::Duration;

use serde::Deserialize;
use tollgate::Timestamp;
use tollgate_adaptive::{
    Aimd, Bounds, Gradient, Gradient2, LimitAlgorithm, Sample, Vegas, Windowed,
};

use crate::tally::Side::Ours;
use crate::tally::Verdict::Compared;
use crate::tally::{Judged, Tally, sequences};

#[derive(Deserialize)]
struct Sequence {
    id: u64,
    kind: String,
    cfg: Config,
    samples: Vec<Vec<f64>>,
}

/// The numbers of every kind of law: those that a kind doesn't have aren't there.
#[derive(Deserialize)]
struct Config {
    kind: Option<String>,
    initial: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    backoff_ratio: Option<f64>,
    timeout_ns: Option<u64>,
    smoothing: Option<f64>,
    probe_multiplier: Option<u32>,
    probe_jitter: Option<f64>,
    alpha: Option<u32>,
    beta: Option<u32>,
    rtt_tolerance: Option<f64>,
    queue_size: Option<u32>,
    long_window: Option<u32>,
    min_window_ms: Option<u64>,
    max_window_ms: Option<u64>,
    window_size: Option<usize>,
    min_rtt_threshold_us: Option<u64>,
    tracked: Option<Tracked>,
    delegate: Option<Box<Config>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Tracked {
    Named(String),
    Percentile { percentile: f64, capacity: usize },
}

/// A law whose inner numbers were recorded, too.
trait Recorded: LimitAlgorithm {
    /// Compares the recorded values behind the limit, and takes over the random ones.
    fn compare(&mut self, after: &[f64]) -> Judged;
}

impl Recorded for Aimd {
    fn compare(&mut self, _: &[f64]) -> Judged {
        Ok(Compared)
    }
}

impl Recorded for Vegas {
    fn compare(&mut self, after: &[f64]) -> Judged {
        exactly("estimate", self.limit(), after[0])?;
        exactly("quickest", self.quickest_nanos(), after[1])?;
        if let Some(jitter) = after.get(2) {
            self.set_probe_jitter(*jitter);
        }
        Ok(Compared)
    }
}

impl Recorded for Gradient {
    fn compare(&mut self, after: &[f64]) -> Judged {
        exactly("estimate", self.limit(), after[0])?;
        Ok(Compared)
    }
}

impl Recorded for Gradient2 {
    fn compare(&mut self, after: &[f64]) -> Judged {
        exactly("estimate", self.limit(), after[0])?;
        exactly("long rtt", self.long_nanos(), after[1])?;
        Ok(Compared)
    }
}

impl<L: Recorded> Recorded for Windowed<L> {
    fn compare(&mut self, after: &[f64]) -> Judged {
        self.law_mut().compare(after)
    }
}

/// The same double, to the last bit.
fn exactly(what: &'static str, ours: f64, theirs: f64) -> Judged {
    Ours.says(what, ours.to_bits(), theirs.to_bits())?;
    Ok(Compared)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "recorded as whole numbers"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

fn replay(tally: &mut Tally, sequence: &Sequence, mut law: impl Recorded) {
    let is_windowed = sequence.kind == "windowed";
    tally.replay(sequence.id, &sequence.samples, |row| {
        let (start, row) = row.split_at(usize::from(is_windowed));
        let started = start.first().map_or(0, |start| whole(*start));
        let [rtt, in_flight, dropped, limit] = row[..4] else {
            panic!("a row of {} numbers", row.len());
        };
        let in_flight = u32::try_from(whole(in_flight)).unwrap();
        let mut sample = Sample::new(Duration::from_nanos(whole(rtt)), in_flight)
            .at(Timestamp::from_nanos(started));
        if dropped != 0.0 {
            sample = sample.dropped();
        }
        law.observe(&sample);
        exactly("limit", law.limit().trunc(), limit)?;
        law.compare(&row[4..])
    });
}

fn aimd(config: &Config) -> Aimd {
    let bounds = Bounds::new(config.min.unwrap(), config.max.unwrap()).unwrap();
    Aimd::netflix(bounds)
        .initial(config.initial.unwrap())
        .backoff(config.backoff_ratio.unwrap())
        .unwrap()
        .timeout(Duration::from_nanos(config.timeout_ns.unwrap()))
}

fn vegas(config: &Config) -> Vegas {
    let mut law = Vegas::new(Bounds::new(1.0, config.max.unwrap()).unwrap())
        .initial(config.initial.unwrap())
        .smoothing(config.smoothing.unwrap())
        .unwrap()
        .probe_multiplier(config.probe_multiplier.unwrap());
    if let (Some(alpha), Some(beta)) = (config.alpha, config.beta) {
        law = law.queue(alpha, beta);
    }
    law.set_probe_jitter(config.probe_jitter.unwrap());
    law
}

fn gradient(config: &Config) -> Gradient {
    let bounds = Bounds::new(config.min.unwrap(), config.max.unwrap()).unwrap();
    Gradient::new(bounds)
        .initial(config.initial.unwrap())
        .smoothing(config.smoothing.unwrap())
        .and_then(|law| law.tolerance(config.rtt_tolerance.unwrap()))
        .and_then(|law| law.backoff(config.backoff_ratio.unwrap()))
        .unwrap()
        .probe_every(None)
}

fn gradient2(config: &Config) -> Gradient2 {
    let bounds = Bounds::new(config.min.unwrap(), config.max.unwrap()).unwrap();
    Gradient2::new(bounds)
        .initial(config.initial.unwrap())
        .smoothing(config.smoothing.unwrap())
        .and_then(|law| law.tolerance(config.rtt_tolerance.unwrap()))
        .unwrap()
        .queue(config.queue_size.unwrap())
        .window(config.long_window.unwrap())
}

fn windowed<L>(config: &Config, law: L) -> Windowed<L> {
    let millis = |millis: Option<u64>| Duration::from_millis(millis.unwrap());
    let law = Windowed::new(law)
        .lasting(millis(config.min_window_ms), millis(config.max_window_ms))
        .samples(config.window_size.unwrap())
        .ignore_below(Duration::from_micros(config.min_rtt_threshold_us.unwrap()));
    match config.tracked.as_ref().unwrap() {
        Tracked::Named(named) => {
            assert_eq!(named, "average");
            law
        }
        Tracked::Percentile {
            percentile,
            capacity,
        } => law.percentile(*percentile, *capacity).unwrap(),
    }
}

fn replay_set(set: &'static str) {
    let mut tally = Tally::new(set);
    for sequence in sequences::<Sequence>(set) {
        let config = &sequence.cfg;
        let inner = config.delegate.as_deref();
        let kind = inner.map_or(&sequence.kind, |inner| inner.kind.as_ref().unwrap());
        match (kind.as_str(), inner) {
            ("aimd", None) => replay(&mut tally, &sequence, aimd(config)),
            ("vegas", None) => replay(&mut tally, &sequence, vegas(config)),
            ("gradient", None) => replay(&mut tally, &sequence, gradient(config)),
            ("gradient2", None) => replay(&mut tally, &sequence, gradient2(config)),
            ("aimd", Some(inner)) => replay(&mut tally, &sequence, windowed(config, aimd(inner))),
            ("vegas", Some(inner)) => replay(&mut tally, &sequence, windowed(config, vegas(inner))),
            ("gradient", Some(inner)) => {
                replay(&mut tally, &sequence, windowed(config, gradient(inner)));
            }
            ("gradient2", Some(inner)) => {
                replay(&mut tally, &sequence, windowed(config, gradient2(inner)));
            }
            (other, _) => panic!("a law of kind {other}"),
        }
    }
    tally.finish();
}

#[test]
fn netflix_aimd() {
    replay_set("netflix_aimd");
}

#[test]
fn netflix_vegas() {
    replay_set("netflix_vegas");
}

#[test]
fn netflix_gradient() {
    replay_set("netflix_gradient");
}

#[test]
fn netflix_gradient2() {
    replay_set("netflix_gradient2");
}

#[test]
fn netflix_windowed() {
    replay_set("netflix_windowed");
}
