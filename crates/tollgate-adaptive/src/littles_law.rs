//! The default law: by Little's law, as many in flight as the servers work on, and a short queue.

use tollgate::Timestamp;

use super::law::ParameterRange;
use super::random::SplitMix64;
use super::{AlgorithmError, Bounds, ChangeReason, LimitAlgorithm, Sample};

/// The most that a limit grows, and the least that it falls to, from one window to the next.
const MAX_GROWTH_AND_DROP: (f64, f64) = (2.0, 0.5);
/// A probe has this part of the limit, and if that isn't few enough, this part of that, and so on.
const PROBE: f64 = 0.5;
/// It isn't few enough if calls are quicker by more than this part than they were with more of them.
const DEEPEN_IF_QUICKER_BY: f64 = 0.25;
/// From the second time on it has this part of a window's samples: few at once need long for many.
const DEEP_PROBE_SAMPLES: f64 = 0.5;
/// A window that is quicker than usual by this part, though nothing changed here: others may probe.
const LATENCY_DIP: f64 = 0.04;
/// Then this instance joins them, if no more than this part of its time until the next probe is left.
const JOIN_PROBE_WITHIN: f64 = 0.8;
/// A probe whose calls are quicker than usual by no more than this part found no queue.
const SAME_LATENCY: f64 = 0.1;
/// One whose calls take less than this part of what is usual drained a queue: what they take is the quiet latency.
const DRAINED_LATENCY: f64 = 0.7;
/// The quiet latency grows by no more than this factor from one probe to the next.
const QUIET_LATENCY_GROWTH: f64 = 1.1;
/// And becomes so many times what it was if it can't be told who fills the queue.
const QUIET_LATENCY_DECAY: f64 = 0.95;
/// A quiet latency that falls by more than this part was far off, and is looked at again soon.
const QUIET_LATENCY_ERROR: f64 = 0.2;
/// A limit that has fallen to less than this part of what the last probe left: calls may just have become slower.
const LIMIT_COLLAPSE: f64 = 0.5;
/// Or by this one while calls are suspected to have become slower.
const QUIET_LATENCY_FAST_GROWTH: f64 = 1.25;
/// That is looked at until so many probes didn't confirm it, as long as calls take longer than the quiet latency by this part.
const SLOWDOWN_CHECKS: (u8, f64) = (3, 0.3);
/// A window whose calls take more than so many times the usual, and are slower by more than so many deviations of its mean, is
/// no chance: calls became slower at once, or servers are gone.
const LATENCY_JUMP: (f64, f64) = (1.5, 3.0);
/// That is looked into if the limit would fall to less than this part.
const JUMP_LIMIT_DROP: f64 = 0.7;
/// With fewer in flight than this part of the limit, the limit isn't what holds calls back, and needn't fall.
const BINDING_UTILIZATION: f64 = 0.75;
/// A second window of few is as quick as the first, up to this part: nobody gives way any more.
const SETTLED_LATENCY: f64 = 0.15;
/// A window that has so many samples, and as many as the limit, is over after so many nanoseconds.
const WINDOW_BOUND: (f64, u64) = (10.0, 1_000_000_000);
/// How much calls differ without a queue is a mean over about so many of them.
const SPREAD_MEMORY_SAMPLES: f64 = 1_000.0;
/// A window has up to so many times the samples where calls differ much.
const MAX_WINDOW_STRETCH: f64 = 8.0;
/// Soon is after so many windows.
const SOON_WINDOWS: u32 = 2;
/// How fast the usual latency follows the windows' means.
const USUAL_SMOOTHING: f64 = 0.3;
/// A limit that should fall to less than this part at once, or rise to more than its inverse, isn't chance: it is followed
/// in full.
const FAR_CHANGE: f64 = 0.6;
/// Any other change goes this part of the way.
const DAMPING: f64 = 0.5;
/// But for one by less than this part, which is chance.
const NOISE: f64 = 0.03;
/// The part of calls that are dropped follows each by this part, and below the second one drops say nothing about load: three
/// in a row do, and one of a hundred never does by itself.
const DROP_RATE_SMOOTHING_AND_THRESHOLD: (f64, f64) = (0.02, 0.05);

/// Keeps as many in flight as the servers work on, three quarters as many more, and one: the default law.
///
/// With `n` in flight and a mean latency `m`, `n / m` calls are done a second (Little's law). If a call takes `q`
/// without a queue, then `n × q / m` of them are being worked on, and the others wait. The limit is 1.75 × that + 1.3:
/// enough that no server idles, too few for a long queue. One window suffices to find it from any
/// limit, whatever the distribution of service times is, because only means are compared.
///
/// The quiet latency `q` is what has to be known. Every so often the limit falls to a half for one window, a probe, and to
/// a half of that as long as calls become much quicker by it. If they are much quicker in the end than before, there was a
/// queue, and there is none now: what they take is `q`. If they are as quick as before there was none, or others fill it:
/// what one instance doesn't send, others do. From here that looks the same, so `q` rises by a little only.
///
/// Several instances therefore probe together: one that sees calls become quicker, and doesn't know why, joins whoever
/// probes. Once all have given way, each of them measures `q`, whatever it believed before.
///
/// Calls that become much slower all at once are no reason to fall: either servers are gone, or each call takes longer. The
/// law probes at once, and so does every other instance, as all see it. If calls stay slow with few of them, they are slower
/// and there is no queue: `q` is what they take now, and the limit is what it was before, or more.
/// How far chance may mislead is taken from how much calls differ without a queue; where they differ much,
/// windows have up to eight times the samples. A window is over after a second if it has ten samples and as many as the limit.
///
/// Drops halve the limit, once for all calls that began before, if they are more than one call of twenty of late, as three in a row
/// are. Fewer change nothing: a backend that fails one call of a hundred, whatever its load, would be left with the least limit for ever.
///
/// With fewer servers than instances there is a queue even if each of them sends one call at a time, so none can know
/// what a call takes without one. Such a limit belongs in front of the servers.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Timestamp;
/// use tollgate_adaptive::{Bounds, LimitAlgorithm, Little, Sample};
///
/// // 8 servers, 10 ms a call, and always as much in flight as is allowed.
/// let mut law = Little::new(Bounds::new(1.0, 200.0)?);
/// for number in 0..20_000_u64 {
///     let in_flight = law.limit().floor();
///     let rtt = Duration::from_millis(10).mul_f64((in_flight / 8.0).max(1.0));
///     law.observe(&Sample::new(rtt, in_flight as u32).at(Timestamp::from_millis(100 * number)));
/// }
/// assert!((14.0..=17.0).contains(&law.limit()), "1.75 × 8 + 1.3: {}", law.limit());
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
    /// Calls that began before aren't looked at: they ran under another limit.
    samples_since: Timestamp,
    window: LatencyWindow,
    /// The running mean of windows' means, in nanoseconds; 0 before the first.
    usual_latency_nanos: f64,
    until_probe: u32,
    /// The limit after the last probe.
    probed_limit: f64,
    /// So many more probes because calls may have become slower; 0 if nothing says so.
    slowdown_checks: u8,
    /// The squared ratio of deviation to mean of calls without a queue.
    latency_variance_ratio: f64,
    /// When the window began.
    window_start: Timestamp,
    active_probe: Option<ActiveProbe>,
    /// The part of calls that were dropped of late.
    drop_rate: f64,
    chance: SplitMix64,
}

/// Why a probe is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeCause {
    /// It is time for one.
    Schedule,
    /// Calls became much slower at once, which all who share the servers see.
    Jump,
}

/// A probe that is on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ActiveProbe {
    cause: ProbeCause,
    /// The window before it.
    before: LatencyWindow,
    /// The limit before it.
    limit: f64,
    /// The mean latency with twice as many, in nanoseconds.
    above: f64,
    /// How often the limit was halved.
    depth: u32,
    /// What the window before took at the same limit; 0 if there was none.
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
    /// From 20 on, or what of it is within the bounds; windows of 100 samples, probes every 100 windows or so.
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

    /// So many times what is worked on, and so many more: 1.75 and 1.3 unless said otherwise.
    ///
    /// # Errors
    /// Unless the first is a number above 1 and the second one from 0 on.
    pub fn headroom(mut self, times: f64, more: f64) -> Result<Self, AlgorithmError> {
        self.gain = ParameterRange::ABOVE_ONE.check("a gain", times)?;
        self.headroom = ParameterRange::NOT_NEGATIVE.check("room for more", more)?;
        Ok(self)
    }

    /// A window has so many samples, and twice the limit at least: 100 unless said otherwise. Where calls differ much it has up to
    /// eight times as many; after a second it is over with fewer.
    #[must_use]
    pub fn samples(mut self, least: u32) -> Self {
        self.samples = f64::from(least.max(2));
        self
    }

    /// Probes after about so many windows, or sooner with others: 100 unless said otherwise.
    #[must_use]
    pub fn probe_every(mut self, windows: u32) -> Self {
        self.probe_every = windows.max(2);
        self
    }

    /// Probes by other chance than other instances do.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.chance = SplitMix64::new(seed);
        self
    }

    /// The mean latency without a queue as it is believed to be, in nanoseconds; 0 before the first window.
    pub fn quiet_nanos(&self) -> f64 {
        self.quiet_latency_nanos
    }

    fn set_limit_at(&mut self, limit: f64, now: Timestamp) {
        self.limit = self.bounds.clamp(limit);
        self.samples_since = now;
        self.window_start = now;
        self.window = LatencyWindow::default();
    }

    /// A window is over.
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
            // The limit isn't what holds calls back: there is nothing to learn about it, and no queue.
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

    /// Goes towards this limit.
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

    /// How many of those in flight are worked on.
    fn in_service(&self, window: &LatencyWindow) -> f64 {
        window.mean_in_flight() * (self.quiet_latency_nanos / window.mean()).min(1.0)
    }

    /// By how much the mean of a window may be off, in nanoseconds. A window may have had none of the rare slow calls, so it is
    /// no less than what is known of calls without a queue.
    fn deviation(&self, window: &LatencyWindow) -> f64 {
        let known =
            self.latency_variance_ratio * self.quiet_latency_nanos * self.quiet_latency_nanos
                / window.count;
        window.mean_variance().max(known).sqrt()
    }

    fn wanted_limit(&self, in_service: f64) -> f64 {
        self.gain * in_service + self.headroom
    }

    /// Goes on with half as many.
    fn begin_probe(&mut self, probe: ActiveProbe, now: Timestamp) -> ChangeReason {
        self.active_probe = Some(ActiveProbe {
            depth: probe.depth + 1,
            ..probe
        });
        self.set_limit_at((self.limit * PROBE).floor(), now);
        ChangeReason::Probing
    }

    /// A window of a probe is over.
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
            // Others have seen the jump too, and may give way only now.
            self.active_probe = Some(ActiveProbe {
                first: mean,
                ..*probe
            });
            return None;
        }
        if probe.limit < self.bounds.min() + 1.0 {
            // There is nothing to lose where it can't fall: the quiet latency may rise until it is what calls take.
            self.slowdown_checks = self.slowdown_checks.max(2);
        }
        let spread = window.mean_variance() * window.count / (mean * mean);
        self.latency_variance_ratio += (spread - self.latency_variance_ratio) * window.count
            / (window.count + SPREAD_MEMORY_SAMPLES);
        self.learn_quiet_latency(mean, probe.cause);
        let ActiveProbe { before, limit, .. } = probe;
        let in_service = self.in_service(before);
        // Down at once, as a probe is sure of what it found.
        self.set_limit_at(
            self.wanted_limit(in_service)
                .min(limit * MAX_GROWTH_AND_DROP.0),
            now,
        );
        self.probed_limit = self.limit;
        Some(ChangeReason::Room)
    }

    /// What the mean latency of a probe says about the quiet one.
    fn learn_quiet_latency(&mut self, is: f64, cause: ProbeCause) {
        let (quiet, part) = (self.quiet_latency_nanos, is / self.usual_latency_nanos);
        let looks = std::mem::take(&mut self.slowdown_checks);
        if is <= quiet {
            // It never takes less than the quiet latency.
            let is_far = is < quiet * (1.0 - QUIET_LATENCY_ERROR);
            if is_far {
                self.until_probe = SOON_WINDOWS;
            }
            self.quiet_latency_nanos += (is - quiet) * if is_far { 1.0 } else { DAMPING };
            return;
        }
        if cause == ProbeCause::Jump {
            // All who share the servers have seen it and given way, so there is no queue: calls are slower.
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
            // Before the first one is over nothing is known: a second look soon.
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
            // One that is over before the limit was set says that the clock was set back: it counts from there.
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
