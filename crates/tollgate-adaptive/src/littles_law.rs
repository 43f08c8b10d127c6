//! The default law: by Little's law, as many in flight as the servers work on, and a short queue.

use tollgate::Timestamp;

use super::law::ParameterRange;
use super::random::SplitMix64;
use super::{Bounds, Law, LawError, Reason, Sample};

/// The most that a limit grows, and the least that it falls to, from one window to the next.
const STEP: (f64, f64) = (2.0, 0.5);
/// A probe has this part of the limit, and if that isn't few enough, this part of that, and so on.
const PROBE: f64 = 0.5;
/// It isn't few enough if calls are quicker by more than this part than they were with more of them.
const DEEPER: f64 = 0.25;
/// From the second time on it has this part of a window's samples: few at once need long for many.
const DEEP: f64 = 0.5;
/// A window that is quicker than usual by this part, though nothing changed here: others may probe.
const DIP: f64 = 0.04;
/// Then this instance joins them, if no more than this part of its time until the next probe is left.
const JOINS: f64 = 0.8;
/// A probe whose calls are quicker than usual by no more than this part found no queue.
const SAME: f64 = 0.1;
/// One whose calls take less than this part of what is usual drained a queue: what they take is the quiet latency.
const DRAINED: f64 = 0.7;
/// The quiet latency grows by no more than this factor from one probe to the next.
const RISES: f64 = 1.1;
/// And becomes so many times what it was if it can't be told who fills the queue.
const LESS: f64 = 0.95;
/// A quiet latency that falls by more than this part was far off, and is looked at again soon.
const QUIET_LATENCY_ERROR: f64 = 0.2;
/// A limit that has fallen to less than this part of what the last probe left: calls may just have become slower.
const FELL: f64 = 0.5;
/// Or by this one while calls are suspected to have become slower.
const QUIET_LATENCY_FAST_GROWTH: f64 = 1.25;
/// That is looked at until so many probes didn't confirm it, as long as calls take longer than the quiet latency by this part.
const LOOKS: (u8, f64) = (3, 0.3);
/// A window whose calls take more than so many times the usual, and are slower by more than so many deviations of its mean, is
/// no chance: calls became slower at once, or servers are gone.
const JUMP: (f64, f64) = (1.5, 3.0);
/// That is looked into if the limit would fall to less than this part.
const FALLS: f64 = 0.7;
/// With fewer in flight than this part of the limit, the limit isn't what holds calls back, and needn't fall.
const BINDS: f64 = 0.75;
/// A second window of few is as quick as the first, up to this part: nobody gives way any more.
const SETTLED: f64 = 0.15;
/// A window that has so many samples, and as many as the limit, is over after so many nanoseconds.
const BOUND: (f64, u64) = (10.0, 1_000_000_000);
/// How much calls differ without a queue is a mean over about so many of them.
const MEMORY: f64 = 1_000.0;
/// A window has up to so many times the samples where calls differ much.
const VARIED: f64 = 8.0;
/// Soon is after so many windows.
const SOON: u32 = 2;
/// How fast the usual latency follows the windows' means.
const FOLLOWS: f64 = 0.3;
/// A limit that should fall to less than this part at once, or rise to more than its inverse, isn't chance: it is followed
/// in full.
const FAR: f64 = 0.6;
/// Any other change goes this part of the way.
const DAMPED: f64 = 0.5;
/// But for one by less than this part, which is chance.
const CHANCE: f64 = 0.03;
/// The part of calls that are dropped follows each by this part, and below the second one drops say nothing about load: three
/// in a row do, and one of a hundred never does by itself.
const LOST: (f64, f64) = (0.02, 0.05);

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
/// use tollgate_adaptive::{Bounds, Law, Little, Sample};
///
/// // 8 servers, 10 ms a call, and always as much in flight as is allowed.
/// let mut law = Little::new(Bounds::new(1.0, 200.0)?);
/// for number in 0..20_000_u64 {
///     let in_flight = law.limit().floor();
///     let rtt = Duration::from_millis(10).mul_f64((in_flight / 8.0).max(1.0));
///     law.observe(&Sample::new(rtt, in_flight as u32).at(Timestamp::from_millis(100 * number)));
/// }
/// assert!((14.0..=17.0).contains(&law.limit()), "1.75 × 8 + 1.3: {}", law.limit());
/// # Ok::<(), tollgate_adaptive::LawError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Little {
    bounds: Bounds,
    limit: f64,
    gain: f64,
    room: f64,
    samples: f64,
    probe_every: u32,
    /// The mean latency without a queue, in nanoseconds; 0 before the first window.
    quiet: f64,
    /// Calls that began before aren't looked at: they ran under another limit.
    since: Timestamp,
    window: LatencyWindow,
    /// The running mean of windows' means, in nanoseconds; 0 before the first.
    usual: f64,
    until_probe: u32,
    /// The limit after the last probe.
    found: f64,
    /// So many more probes because calls may have become slower; 0 if nothing says so.
    looks: u8,
    /// The squared ratio of deviation to mean of calls without a queue.
    spread: f64,
    /// When the window began.
    began: Timestamp,
    probing: Option<ActiveProbe>,
    /// The part of calls that were dropped of late.
    lost: f64,
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
            room: 1.3,
            samples: 100.0,
            probe_every: 100,
            quiet: 0.0,
            since: Timestamp::ZERO,
            window: LatencyWindow::default(),
            usual: 0.0,
            until_probe: SOON,
            found: 0.0,
            looks: 0,
            spread: 1.0,
            began: Timestamp::ZERO,
            probing: None,
            lost: 0.0,
            chance: SplitMix64::new(0),
        }
    }

    /// So many times what is worked on, and so many more: 1.75 and 1.3 unless said otherwise.
    ///
    /// # Errors
    /// Unless the first is a number above 1 and the second one from 0 on.
    pub fn headroom(mut self, times: f64, more: f64) -> Result<Self, LawError> {
        self.gain = ParameterRange::MORE.check("a gain", times)?;
        self.room = ParameterRange::NOT_NEGATIVE.check("room for more", more)?;
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
        self.quiet
    }

    fn set(&mut self, limit: f64, now: Timestamp) {
        self.limit = self.bounds.clamp(limit);
        self.since = now;
        self.began = now;
        self.window = LatencyWindow::default();
    }

    /// A window is over.
    #[cold]
    fn turn(&mut self, now: Timestamp) -> Option<Reason> {
        let window = std::mem::take(&mut self.window);
        let mean = window.mean();
        self.began = now;
        if self.quiet == 0.0 {
            self.quiet = mean;
        }
        if let Some(probe) = self.probing.take() {
            return self.probed(&probe, &window, now);
        }
        let deviation = self.deviation(&window);
        let slower = mean - self.usual;
        let jumps =
            self.usual > 0.0 && slower > (self.usual * (JUMP.0 - 1.0)).max(JUMP.1 * deviation);
        let dips = mean < self.usual * (1.0 - DIP);
        if dips && f64::from(self.until_probe) < JOINS * f64::from(self.probe_every) {
            self.until_probe = 1;
        } else if self.usual == 0.0 {
            self.usual = mean;
        } else {
            self.usual += (mean - self.usual) * FOLLOWS;
        }
        self.quiet = self.quiet.min(mean + 2.0 * deviation);
        let in_flight = window.mean_in_flight();
        if in_flight * 2.0 < self.limit {
            // The limit isn't what holds calls back: there is nothing to learn about it, and no queue.
            return None;
        }
        let wanted = self.wanted(self.in_service(&window));
        if in_flight < BINDS * self.limit.floor() && wanted < self.limit {
            return None;
        }
        if jumps && wanted < self.limit * FALLS {
            let above = mean;
            self.usual = mean;
            return Some(self.probe(
                ActiveProbe::new(ProbeCause::Jump, window, self.limit, above),
                now,
            ));
        }
        self.until_probe = self.until_probe.saturating_sub(1);
        if self.until_probe == 0 {
            self.schedule();
            let probe = ActiveProbe::new(ProbeCause::Schedule, window, self.limit, self.usual);
            return Some(self.probe(probe, now));
        }
        self.adjust(wanted, now)
    }

    /// Goes towards this limit.
    fn adjust(&mut self, wanted: f64, now: Timestamp) -> Option<Reason> {
        let before = self.limit;
        let wanted = wanted.clamp(before * STEP.1, before * STEP.0);
        if (wanted - before).abs() < CHANCE * before {
            return None;
        }
        let is_far = wanted < before * FAR || wanted > before / FAR;
        let wanted = before + (wanted - before) * if is_far { 1.0 } else { DAMPED };
        if wanted < self.found * FELL {
            self.until_probe = self.until_probe.min(SOON);
            (self.usual, self.found, self.looks) = (0.0, wanted, LOOKS.0);
        }
        self.set(wanted, now);
        Some(if wanted > before {
            Reason::Room
        } else {
            Reason::Queueing
        })
    }

    /// How many of those in flight are worked on.
    fn in_service(&self, window: &LatencyWindow) -> f64 {
        window.mean_in_flight() * (self.quiet / window.mean()).min(1.0)
    }

    /// By how much the mean of a window may be off, in nanoseconds. A window may have had none of the rare slow calls, so it is
    /// no less than what is known of calls without a queue.
    fn deviation(&self, window: &LatencyWindow) -> f64 {
        let known = self.spread * self.quiet * self.quiet / window.count;
        window.doubt().max(known).sqrt()
    }

    fn wanted(&self, in_service: f64) -> f64 {
        self.gain * in_service + self.room
    }

    /// Goes on with half as many.
    fn probe(&mut self, probe: ActiveProbe, now: Timestamp) -> Reason {
        self.probing = Some(ActiveProbe {
            depth: probe.depth + 1,
            ..probe
        });
        self.set((self.limit * PROBE).floor(), now);
        Reason::Probing
    }

    /// A window of a probe is over.
    fn probed(
        &mut self,
        probe: &ActiveProbe,
        window: &LatencyWindow,
        now: Timestamp,
    ) -> Option<Reason> {
        let mean = window.mean();
        if mean < probe.above * (1.0 - DEEPER) && self.limit > self.bounds.min() {
            return Some(self.probe(
                ActiveProbe {
                    above: mean,
                    first: 0.0,
                    ..*probe
                },
                now,
            ));
        }
        let is_jump = probe.cause == ProbeCause::Jump;
        if is_jump && (probe.first == 0.0 || mean < probe.first * (1.0 - SETTLED)) {
            // Others have seen the jump too, and may give way only now.
            self.probing = Some(ActiveProbe {
                first: mean,
                ..*probe
            });
            return None;
        }
        if probe.limit < self.bounds.min() + 1.0 {
            // There is nothing to lose where it can't fall: the quiet latency may rise until it is what calls take.
            self.looks = self.looks.max(2);
        }
        let spread = window.doubt() * window.count / (mean * mean);
        self.spread += (spread - self.spread) * window.count / (window.count + MEMORY);
        self.learn(mean, probe.cause);
        let ActiveProbe { before, limit, .. } = probe;
        let in_service = self.in_service(before);
        // Down at once, as a probe is sure of what it found.
        self.set(self.wanted(in_service).min(limit * STEP.0), now);
        self.found = self.limit;
        Some(Reason::Room)
    }

    /// What the mean latency of a probe says about the quiet one.
    fn learn(&mut self, is: f64, cause: ProbeCause) {
        let (quiet, part) = (self.quiet, is / self.usual);
        let looks = std::mem::take(&mut self.looks);
        if is <= quiet {
            // It never takes less than the quiet latency.
            let is_far = is < quiet * (1.0 - QUIET_LATENCY_ERROR);
            if is_far {
                self.until_probe = SOON;
            }
            self.quiet += (is - quiet) * if is_far { 1.0 } else { DAMPED };
            return;
        }
        if cause == ProbeCause::Jump {
            // All who share the servers have seen it and given way, so there is no queue: calls are slower.
            self.quiet = is;
            self.until_probe = SOON;
            self.usual = 0.0;
            return;
        }
        if part < DRAINED {
            self.quiet = is.min(quiet * RISES);
            return;
        }
        let is_same = part >= 1.0 - SAME;
        if is_same {
            self.quiet = is.min(
                quiet
                    * if looks > 0 {
                        QUIET_LATENCY_FAST_GROWTH
                    } else {
                        RISES
                    },
            );
        } else {
            self.quiet *= LESS;
        }
        if looks > 0 && is > self.quiet * (1.0 + LOOKS.1) {
            self.looks = looks - u8::from(!is_same);
            self.until_probe = self.until_probe.min(SOON);
        }
    }

    fn schedule(&mut self) {
        if self.found == 0.0 {
            // Before the first one is over nothing is known: a second look soon.
            self.until_probe = SOON;
            return;
        }
        let every = u64::from(self.probe_every);
        let windows = every + self.chance.next() % (every / 2);
        self.until_probe = u32::try_from(windows).unwrap_or(u32::MAX);
    }

    /// Whether the window has as many samples as it needs.
    fn is_over(&self, now: Timestamp) -> bool {
        let least = match &self.probing {
            None | Some(ActiveProbe { depth: 1, .. }) => self.samples,
            Some(_) => self.samples * DEEP,
        };
        let needs = (least * self.spread.clamp(1.0, VARIED)).max(2.0 * self.limit);
        let count = self.window.count;
        let is_late = now.nanos_since(self.began) >= BOUND.1;
        count >= needs || (is_late && count >= BOUND.0.max(self.limit))
    }
}

impl Law for Little {
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
    fn step(&mut self, sample: &Sample) -> Option<Reason> {
        if sample.started < self.since {
            // One that is over before the limit was set says that the clock was set back: it counts from there.
            self.since = self.since.min(sample.ended());
            return None;
        }
        let is_dropped = sample.is_dropped();
        self.lost += (f64::from(u8::from(is_dropped)) - self.lost) * LOST.0;
        if is_dropped {
            if self.lost < LOST.1 {
                return None;
            }
            let before = self.limit;
            self.probing = None;
            self.set(before * STEP.1, sample.ended());
            return (self.limit < before).then_some(Reason::Dropped);
        }
        self.window.add(sample);
        if self.is_over(sample.ended()) {
            self.turn(sample.ended())
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
    fn doubt(&self) -> f64 {
        let mean = self.mean();
        (self.squares / self.count - mean * mean).max(0.0) / self.count
    }
}
