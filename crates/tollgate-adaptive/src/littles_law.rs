//! The default algorithm: by Little's law, it allows as many calls as the servers work on, and a short
//! queue.

use tollgate::Timestamp;

use super::law::ParameterRange;
use super::random::SplitMix64;
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// The highest growth and the deepest drop of the limit from one window to the next, as factors.
const MAX_GROWTH_AND_DROP: (f64, f64) = (2.0, 0.5);
/// A probe lowers the limit to this part. If that isn't few enough, it lowers that to the same part,
/// and so on.
const PROBE: f64 = 0.5;
/// It isn't few enough if calls are faster, by more than this part, than they were with more of them.
const DEEPEN_IF_QUICKER_BY: f64 = 0.25;
/// From the second step on, a probe needs only this part of a window's samples: with few calls in
/// flight, many samples take long.
const DEEP_PROBE_SAMPLES: f64 = 0.5;
/// A window that is faster than usual by this part, though nothing changed here: another instance may
/// be probing.
const LATENCY_DIP: f64 = 0.04;
/// Then this instance joins the probe, if at most this part of the time until its own next probe
/// remains.
const JOIN_PROBE_WITHIN: f64 = 0.8;
/// A probe whose calls are faster than usual by at most this part found no queue.
const SAME_LATENCY: f64 = 0.1;
/// A probe whose calls take less than this part of the usual latency drained a queue: their latency is
/// the quiet latency.
const DRAINED_LATENCY: f64 = 0.7;
/// The quiet latency grows by at most this factor from one probe to the next.
const QUIET_LATENCY_GROWTH: f64 = 1.1;
/// Its factor when the probe can't tell whether other instances fill the queue.
const QUIET_LATENCY_DECAY: f64 = 0.95;
/// A quiet latency that falls by more than this part was far off, and is probed again soon.
const QUIET_LATENCY_ERROR: f64 = 0.2;
/// If the limit has fallen below this part of what the last probe left, calls may just have become
/// slower.
const LIMIT_COLLAPSE: f64 = 0.5;
/// The highest growth of the quiet latency while calls are suspected to have become slower.
const QUIET_LATENCY_FAST_GROWTH: f64 = 1.25;
/// The suspicion ends after this many probes that didn't confirm it, or once calls take less than this
/// part longer than the quiet latency.
const SLOWDOWN_CHECKS: (u8, f64) = (3, 0.3);
/// A window whose calls take more than this multiple of the usual latency, and are slower by more than
/// this many deviations of its mean, isn't random variation: calls became slower suddenly, or servers
/// are gone.
const LATENCY_JUMP: (f64, f64) = (1.5, 3.0);
/// A jump leads to a probe if the limit would fall below this part.
const JUMP_LIMIT_DROP: f64 = 0.7;
/// With fewer calls in flight than this part of the limit, the limit isn't the bottleneck, and needn't
/// fall.
const BINDING_UTILIZATION: f64 = 0.75;
/// A second window of a probe is as fast as the first, within this part: no other instance is still
/// lowering its limit.
const SETTLED_LATENCY: f64 = 0.15;
/// A window with this many samples, and as many as the limit, ends after this many nanoseconds.
const WINDOW_BOUND: (f64, u64) = (10.0, 1_000_000_000);
/// The spread of calls without a queue is a mean over about this many of them.
const SPREAD_MEMORY_SAMPLES: f64 = 1_000.0;
/// A window has up to this many times the samples if latencies spread widely.
const MAX_WINDOW_STRETCH: f64 = 8.0;
/// "Soon" is after this many windows.
const SOON_WINDOWS: u32 = 2;
/// How fast the usual latency follows the windows' means.
const USUAL_SMOOTHING: f64 = 0.3;
/// A limit that should fall below this part in one step, or rise above its inverse, isn't random
/// variation: it is followed in full.
const FAR_CHANGE: f64 = 0.6;
/// Any other change moves by this part of the difference.
const DAMPING: f64 = 0.5;
/// Except a change below this part, which is random variation and is ignored.
const NOISE: f64 = 0.03;
/// The smoothing of the drop rate, and the rate below which drops indicate no overload. Three drops in
/// a row exceed it; a steady one in a hundred never does.
const DROP_RATE_SMOOTHING_AND_THRESHOLD: (f64, f64) = (0.02, 0.05);

/// Keeps as many calls in flight as the servers work on, three quarters more, and one: the default
/// algorithm.
///
/// With `n` in flight and a mean latency `m`, `n / m` calls complete per second (Little's law). If a
/// call takes `q` without a queue, then `n × q / m` of them are being worked on, and the others wait.
/// The limit is 1.75 × that + 1.3: enough that no server idles, too few for a long queue. One window
/// suffices to find it from any limit, whatever the distribution of service times, because only means
/// are compared.
///
/// The algorithm has to know the quiet latency `q`. Every so often it probes: it halves the limit for
/// one window, and halves it again as long as calls become much faster. If they end up much faster than
/// before, there was a queue and it is drained now: their latency is `q`. If they are as fast as
/// before, either there was no queue, or other instances fill it with calls that this one doesn't send.
/// From here the two look the same, so `q` rises only a little.
///
/// Several instances therefore probe together: one that sees calls become faster without a cause of its
/// own joins the probe. Once all have lowered their limits, each of them measures `q`, whatever its
/// estimate before.
///
/// A sudden jump in latency is no reason to lower the limit: either servers are gone, or each call
/// takes longer. The algorithm probes immediately, and so does every other instance, because all see
/// the jump. If calls stay slow with few of them, there is no queue: `q` is their latency now, and the
/// limit is what it was before, or more.
///
/// The spread of calls without a queue shows how far random variation may mislead. If they spread
/// widely, windows have up to eight times the samples. A window ends after a second if it has ten
/// samples and as many as the limit.
///
/// Drops halve the limit once they are more than one call in twenty lately, as three in a row are; one
/// halving counts for all calls that began before. A lower drop rate changes nothing: a backend that
/// fails one call in a hundred at any load would otherwise keep the minimum limit for ever.
///
/// With fewer servers than instances there is a queue even if each instance sends one call at a time,
/// so none can know the latency without one. Such a limit belongs in front of the servers.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Timestamp;
/// use tollgate_adaptive::{Bounds, LimitAlgorithm, Little, Sample};
///
/// // 8 servers, 10 ms a call, and always as many in flight as the limit.
/// let mut algorithm = Little::new(Bounds::new(1.0, 200.0)?);
/// for number in 0..20_000_u64 {
///     let in_flight = algorithm.limit().floor();
///     let rtt = Duration::from_millis(10).mul_f64((in_flight / 8.0).max(1.0));
///     algorithm.observe(&Sample::new(rtt, in_flight as u32).at(Timestamp::from_millis(100 * number)));
/// }
/// assert!((14.0..=17.0).contains(&algorithm.limit()), "1.75 × 8 + 1.3: {}", algorithm.limit());
/// # Ok::<(), tollgate_adaptive::AlgorithmError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Little {
    bounds: Bounds,
    limit: f64,
    gain: f64,
    headroom: f64,
    samples: f64,
    probe_every: u32,
    /// The mean latency without a queue, in nanoseconds; 0 before the first window.
    quiet_latency_nanos: f64,
    /// Calls that began earlier are skipped: they ran under another limit.
    samples_since: Timestamp,
    window: LatencyWindow,
    /// The running mean of windows' means, in nanoseconds; 0 before the first.
    usual_latency_nanos: f64,
    until_probe: u32,
    /// The limit after the last probe.
    probed_limit: f64,
    /// Remaining probes for a suspected slowdown; 0 without a suspicion.
    slowdown_checks: u8,
    /// The squared ratio of deviation to mean of calls without a queue.
    latency_variance_ratio: f64,
    /// When the window began.
    window_start: Timestamp,
    active_probe: Option<ActiveProbe>,
    /// The recent share of calls that were dropped.
    drop_rate: f64,
    chance: SplitMix64,
}

/// The cause of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeCause {
    /// It was scheduled.
    Schedule,
    /// Calls became much slower suddenly, which all instances that share the servers see.
    Jump,
}

/// A probe in progress.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ActiveProbe {
    cause: ProbeCause,
    /// The window before it.
    before: LatencyWindow,
    /// The limit before it.
    limit: f64,
    /// The mean latency with twice as many calls in flight, in nanoseconds.
    above: f64,
    /// How often the limit was halved.
    depth: u32,
    /// The mean latency of the previous window at the same limit; 0 if there was none.
    first: f64,
}

impl ActiveProbe {
    fn new(cause: ProbeCause, before: LatencyWindow, limit: f64, above: f64) -> Self {
        Self {
            cause,
            before,
            limit,
            above,
            depth: 0,
            first: 0.0,
        }
    }
}

impl Little {
    /// Begins at 20, within the bounds; windows of 100 samples, and a probe every 100 windows or so.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            limit: bounds.clamp(20.0),
            gain: 1.75,
            headroom: 1.3,
            samples: 100.0,
            probe_every: 100,
            quiet_latency_nanos: 0.0,
            samples_since: Timestamp::ZERO,
            window: LatencyWindow::default(),
            usual_latency_nanos: 0.0,
            until_probe: SOON_WINDOWS,
            probed_limit: 0.0,
            slowdown_checks: 0,
            latency_variance_ratio: 1.0,
            window_start: Timestamp::ZERO,
            active_probe: None,
            drop_rate: 0.0,
            chance: SplitMix64::new(0),
        }
    }

    /// The factor for calls that are worked on, and the constant that is added: 1.75 and 1.3 by
    /// default.
    ///
    /// # Errors
    /// Unless the first is above 1 and the second at least 0.
    pub fn headroom(mut self, times: f64, more: f64) -> Result<Self, AlgorithmError> {
        self.gain = ParameterRange::ABOVE_ONE.check("a gain", times)?;
        self.headroom = ParameterRange::NOT_NEGATIVE.check("room for more", more)?;
        Ok(self)
    }

    /// The samples of a window, and at least twice the limit: 100 by default. If latencies spread
    /// widely, it has up to eight times as many; after a second it ends with fewer.
    #[must_use]
    pub fn samples(mut self, least: u32) -> Self {
        self.samples = f64::from(least.max(2));
        self
    }

    /// Probes after about this many windows, or sooner together with other instances: 100 by default.
    #[must_use]
    pub fn probe_every(mut self, windows: u32) -> Self {
        self.probe_every = windows.max(2);
        self
    }

    /// The seed of the probes' schedule; use a different one for each instance.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.chance = SplitMix64::new(seed);
        self
    }

    /// The estimated mean latency without a queue, in nanoseconds; 0 before the first window.
    pub fn quiet_nanos(&self) -> f64 {
        self.quiet_latency_nanos
    }

    fn set_limit_at(&mut self, limit: f64, now: Timestamp) {
        self.limit = self.bounds.clamp(limit);
        self.samples_since = now;
        self.window_start = now;
        self.window = LatencyWindow::default();
    }

    /// Ends a window.
    #[cold]
    fn end_window(&mut self, now: Timestamp) -> Option<ChangeReason> {
        let window = std::mem::take(&mut self.window);
        let mean = window.mean();
        self.window_start = now;
        if self.quiet_latency_nanos == 0.0 {
            self.quiet_latency_nanos = mean;
        }
        if let Some(probe) = self.active_probe.take() {
            return self.end_probe(&probe, &window, now);
        }
        let deviation = self.deviation(&window);
        let slower = mean - self.usual_latency_nanos;
        let jumps = self.usual_latency_nanos > 0.0
            && slower
                > (self.usual_latency_nanos * (LATENCY_JUMP.0 - 1.0))
                    .max(LATENCY_JUMP.1 * deviation);
        let dips = mean < self.usual_latency_nanos * (1.0 - LATENCY_DIP);
        if dips && f64::from(self.until_probe) < JOIN_PROBE_WITHIN * f64::from(self.probe_every) {
            self.until_probe = 1;
        } else if self.usual_latency_nanos == 0.0 {
            self.usual_latency_nanos = mean;
        } else {
            self.usual_latency_nanos += (mean - self.usual_latency_nanos) * USUAL_SMOOTHING;
        }
        self.quiet_latency_nanos = self.quiet_latency_nanos.min(mean + 2.0 * deviation);
        let in_flight = window.mean_in_flight();
        if in_flight * 2.0 < self.limit {
            // The limit isn't the bottleneck: the window shows nothing about it, and there is no queue.
            return None;
        }
        let wanted = self.wanted_limit(self.in_service(&window));
        if in_flight < BINDING_UTILIZATION * self.limit.floor() && wanted < self.limit {
            return None;
        }
        if jumps && wanted < self.limit * JUMP_LIMIT_DROP {
            let above = mean;
            self.usual_latency_nanos = mean;
            return Some(self.begin_probe(
                ActiveProbe::new(ProbeCause::Jump, window, self.limit, above),
                now,
            ));
        }
        self.until_probe = self.until_probe.saturating_sub(1);
        if self.until_probe == 0 {
            self.schedule_probe();
            let probe = ActiveProbe::new(
                ProbeCause::Schedule,
                window,
                self.limit,
                self.usual_latency_nanos,
            );
            return Some(self.begin_probe(probe, now));
        }
        self.adjust_limit(wanted, now)
    }

    /// Moves towards this limit.
    fn adjust_limit(&mut self, wanted: f64, now: Timestamp) -> Option<ChangeReason> {
        let before = self.limit;
        let wanted = wanted.clamp(
            before * MAX_GROWTH_AND_DROP.1,
            before * MAX_GROWTH_AND_DROP.0,
        );
        if (wanted - before).abs() < NOISE * before {
            return None;
        }
        let is_far = wanted < before * FAR_CHANGE || wanted > before / FAR_CHANGE;
        let wanted = before + (wanted - before) * if is_far { 1.0 } else { DAMPING };
        if wanted < self.probed_limit * LIMIT_COLLAPSE {
            self.until_probe = self.until_probe.min(SOON_WINDOWS);
            (
                self.usual_latency_nanos,
                self.probed_limit,
                self.slowdown_checks,
            ) = (0.0, wanted, SLOWDOWN_CHECKS.0);
        }
        self.set_limit_at(wanted, now);
        Some(if wanted > before {
            ChangeReason::Room
        } else {
            ChangeReason::Queueing
        })
    }

    /// How many of the calls in flight are being worked on.
    fn in_service(&self, window: &LatencyWindow) -> f64 {
        window.mean_in_flight() * (self.quiet_latency_nanos / window.mean()).min(1.0)
    }

    /// The possible error of a window's mean, in nanoseconds. A window may have missed the rare slow
    /// calls, so the error is at least that of the known spread of calls without a queue.
    fn deviation(&self, window: &LatencyWindow) -> f64 {
        let known =
            self.latency_variance_ratio * self.quiet_latency_nanos * self.quiet_latency_nanos
                / window.count;
        window.mean_variance().max(known).sqrt()
    }

    fn wanted_limit(&self, in_service: f64) -> f64 {
        self.gain * in_service + self.headroom
    }

    /// Halves the limit for a probe.
    fn begin_probe(&mut self, probe: ActiveProbe, now: Timestamp) -> ChangeReason {
        self.active_probe = Some(ActiveProbe {
            depth: probe.depth + 1,
            ..probe
        });
        self.set_limit_at((self.limit * PROBE).floor(), now);
        ChangeReason::Probing
    }

    /// Ends a window of a probe.
    fn end_probe(
        &mut self,
        probe: &ActiveProbe,
        window: &LatencyWindow,
        now: Timestamp,
    ) -> Option<ChangeReason> {
        let mean = window.mean();
        if mean < probe.above * (1.0 - DEEPEN_IF_QUICKER_BY) && self.limit > self.bounds.min() {
            return Some(self.begin_probe(
                ActiveProbe {
                    above: mean,
                    first: 0.0,
                    ..*probe
                },
                now,
            ));
        }
        let is_jump = probe.cause == ProbeCause::Jump;
        if is_jump && (probe.first == 0.0 || mean < probe.first * (1.0 - SETTLED_LATENCY)) {
            // Other instances have seen the jump too, and may be lowering their limits only now.
            self.active_probe = Some(ActiveProbe {
                first: mean,
                ..*probe
            });
            return None;
        }
        if probe.limit < self.bounds.min() + 1.0 {
            // At the minimum there is nothing to lose: the quiet latency may rise to the calls'
            // latency.
            self.slowdown_checks = self.slowdown_checks.max(2);
        }
        let spread = window.mean_variance() * window.count / (mean * mean);
        self.latency_variance_ratio += (spread - self.latency_variance_ratio) * window.count
            / (window.count + SPREAD_MEMORY_SAMPLES);
        self.learn_quiet_latency(mean, probe.cause);
        let ActiveProbe { before, limit, .. } = probe;
        let in_service = self.in_service(before);
        // Falls in one step, because a probe's result is certain.
        self.set_limit_at(
            self.wanted_limit(in_service)
                .min(limit * MAX_GROWTH_AND_DROP.0),
            now,
        );
        self.probed_limit = self.limit;
        Some(ChangeReason::Room)
    }

    /// Updates the quiet latency by the mean latency of a probe.
    fn learn_quiet_latency(&mut self, is: f64, cause: ProbeCause) {
        let (quiet, part) = (self.quiet_latency_nanos, is / self.usual_latency_nanos);
        let looks = std::mem::take(&mut self.slowdown_checks);
        if is <= quiet {
            // A call never takes less than the quiet latency.
            let is_far = is < quiet * (1.0 - QUIET_LATENCY_ERROR);
            if is_far {
                self.until_probe = SOON_WINDOWS;
            }
            self.quiet_latency_nanos += (is - quiet) * if is_far { 1.0 } else { DAMPING };
            return;
        }
        if cause == ProbeCause::Jump {
            // All instances that share the servers have seen the jump and lowered their limits, so
            // there is no queue: calls are slower.
            self.quiet_latency_nanos = is;
            self.until_probe = SOON_WINDOWS;
            self.usual_latency_nanos = 0.0;
            return;
        }
        if part < DRAINED_LATENCY {
            self.quiet_latency_nanos = is.min(quiet * QUIET_LATENCY_GROWTH);
            return;
        }
        let is_same = part >= 1.0 - SAME_LATENCY;
        if is_same {
            self.quiet_latency_nanos = is.min(
                quiet
                    * if looks > 0 {
                        QUIET_LATENCY_FAST_GROWTH
                    } else {
                        QUIET_LATENCY_GROWTH
                    },
            );
        } else {
            self.quiet_latency_nanos *= QUIET_LATENCY_DECAY;
        }
        if looks > 0 && is > self.quiet_latency_nanos * (1.0 + SLOWDOWN_CHECKS.1) {
            self.slowdown_checks = looks - u8::from(!is_same);
            self.until_probe = self.until_probe.min(SOON_WINDOWS);
        }
    }

    fn schedule_probe(&mut self) {
        if self.probed_limit == 0.0 {
            // Before the first probe ends, the quiet latency is only a guess: probe again soon.
            self.until_probe = SOON_WINDOWS;
            return;
        }
        let every = u64::from(self.probe_every);
        let windows = every + self.chance.next() % (every / 2);
        self.until_probe = u32::try_from(windows).unwrap_or(u32::MAX);
    }

    /// Whether the window has as many samples as it needs.
    fn is_window_complete(&self, now: Timestamp) -> bool {
        let least = match &self.active_probe {
            None | Some(ActiveProbe { depth: 1, .. }) => self.samples,
            Some(_) => self.samples * DEEP_PROBE_SAMPLES,
        };
        let needs = (least * self.latency_variance_ratio.clamp(1.0, MAX_WINDOW_STRETCH))
            .max(2.0 * self.limit);
        let count = self.window.count;
        let is_late = now.nanos_since(self.window_start) >= WINDOW_BOUND.1;
        count >= needs || (is_late && count >= WINDOW_BOUND.0.max(self.limit))
    }
}

impl LimitAlgorithm for Little {
    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn limit(&self) -> f64 {
        self.limit
    }

    fn set_limit(&mut self, limit: f64) {
        self.limit = self.bounds.clamp(limit);
    }

    #[inline]
    fn step(&mut self, sample: &Sample) -> Option<ChangeReason> {
        if sample.started < self.samples_since {
            // A call that ended before the limit was set shows that the clock was set back: count from
            // there.
            self.samples_since = self.samples_since.min(sample.ended());
            return None;
        }
        let is_dropped = sample.is_dropped();
        self.drop_rate += (f64::from(u8::from(is_dropped)) - self.drop_rate)
            * DROP_RATE_SMOOTHING_AND_THRESHOLD.0;
        if is_dropped {
            if self.drop_rate < DROP_RATE_SMOOTHING_AND_THRESHOLD.1 {
                return None;
            }
            let before = self.limit;
            self.active_probe = None;
            self.set_limit_at(before * MAX_GROWTH_AND_DROP.1, sample.ended());
            return (self.limit < before).then_some(ChangeReason::Dropped);
        }
        self.window.add(sample);
        if self.is_window_complete(sample.ended()) {
            self.end_window(sample.ended())
        } else {
            None
        }
    }
}

/// Sums over the calls of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LatencyWindow {
    count: f64,
    sum: f64,
    squares: f64,
    in_flight: f64,
}

impl LatencyWindow {
    #[inline]
    fn add(&mut self, sample: &Sample) {
        let rtt = sample.nanos();
        self.count += 1.0;
        self.sum += rtt;
        self.squares += rtt * rtt;
        self.in_flight += f64::from(sample.in_flight);
    }

    fn mean(&self) -> f64 {
        self.sum / self.count
    }

    fn mean_in_flight(&self) -> f64 {
        self.in_flight / self.count
    }

    /// The variance of the mean.
    fn mean_variance(&self) -> f64 {
        let mean = self.mean();
        (self.squares / self.count - mean * mean).max(0.0) / self.count
    }
}
