//! The default law: by Little's law, as many in flight as the servers work on, and a short queue.

use tollgate_core::Timestamp;

use super::chance::Chance;
use super::{Bounds, Law, LawError, Reason, Sample};

/// The most that a limit grows, and the least that it falls to, from one window to the next.
const STEP: (f64, f64) = (2.0, 0.5);
/// A probe has this part of the limit.
const PROBE: f64 = 0.25;
/// And so many times the samples of a window.
const PROBED: f64 = 2.0;
/// A probe whose calls are quicker by no more than this part found no queue.
const SAME: f64 = 0.1;
/// A probe that is quicker, but slower than the quiet latency by more than this part, found others' queue.
const NEAR: f64 = 0.3;
/// How fast the quiet latency follows what probes find.
const FOLLOWS: f64 = 0.3;
/// A limit that should fall to less than this part at once, or rise to more than its inverse, isn't chance: it is followed
/// in full.
const FAR: f64 = 0.6;
/// A limit that has fallen to less than this part of what the last probe left is looked at soon: calls may just have
/// become slower.
const FELL: f64 = 0.7;
/// Any other change goes this part of the way.
const DAMPED: f64 = 0.5;

/// Keeps as many in flight as the servers work on, three quarters as many more, and one or two: the default law.
///
/// With `n` in flight and a mean latency `m`, `n / m` calls are done a second (Little's law). If a call takes `q`
/// without a queue, then `n × q / m` of them are being worked on, and the others wait. The limit is 1.75 × that + 1.5:
/// enough that no server idles, too few for a long queue. One window suffices to find it from any
/// limit, whatever the distribution of service times is, because only means are compared.
///
/// The quiet latency `q` is what has to be known. Every so often the limit falls to a quarter for one window, a probe.
/// If calls are as quick then as before, there was no queue, and what they take is `q`. If they are quicker, there was
/// one: `q` follows the probe if that is near `q` or lower. A probe that is quicker but not near `q` isn't
/// followed, because then others fill the queue that this instance doesn't: who followed it would believe more
/// and more of the queue to be service. Instead `q` becomes a little less, so that all give way until there is no queue.
/// A limit that falls by much is looked at soon: calls may have become slower without any queue.
///
/// Drops halve the limit, once for all calls that began before.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Timestamp;
/// use tollgate::adaptive::{Bounds, Law, Little, Sample};
///
/// // 8 servers, 10 ms a call, and always as much in flight as is allowed.
/// let mut law = Little::new(Bounds::new(1.0, 200.0)?);
/// for number in 0..20_000_u64 {
///     let in_flight = law.limit().floor();
///     let rtt = Duration::from_millis(10).mul_f64((in_flight / 8.0).max(1.0));
///     law.observe(&Sample::new(rtt, in_flight as u32).at(Timestamp::from_millis(100 * number)));
/// }
/// assert!((15.0..=17.0).contains(&law.limit()), "1.75 × 8 + 1.5, or a probe: {}", law.limit());
/// # Ok::<(), tollgate::adaptive::LawError>(())
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
    window: Window,
    /// The running mean of windows' means, in nanoseconds; 0 before the first.
    usual: f64,
    until_probe: u32,
    /// The limit after the last probe.
    found: f64,
    suspects: Suspects,
    /// The window before the probe that is on, and the limit to go back to.
    probing: Option<(Window, f64)>,
    chance: Chance,
}

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspects {
    Nothing,
    /// Calls may have become slower, as the limit fell by much.
    Slower,
}

/// Sums over the calls of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window {
    count: f64,
    sum: f64,
    squares: f64,
    in_flight: f64,
}

impl Window {
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

impl Little {
    /// From 20 on, or what of it is within the bounds; windows of 100 samples, probes every 100 windows or so.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            limit: bounds.clamp(20.0),
            gain: 1.75,
            room: 1.5,
            samples: 100.0,
            probe_every: 100,
            quiet: 0.0,
            since: Timestamp::ZERO,
            window: Window::default(),
            usual: 0.0,
            until_probe: 1,
            found: 0.0,
            suspects: Suspects::Nothing,
            probing: None,
            chance: Chance::new(0),
        }
    }

    /// Begins at this limit.
    #[must_use]
    pub fn initial(mut self, limit: f64) -> Self {
        self.limit = self.bounds.clamp(limit);
        self
    }

    /// So many times what is worked on, and so many more: 1.75 and 1.5 unless said otherwise.
    ///
    /// # Errors
    /// Unless the first is a number above 1 and the second one from 0 on.
    pub fn headroom(mut self, times: f64, more: f64) -> Result<Self, LawError> {
        let is_fine = times.is_finite() && times > 1.0;
        LawError::unless(is_fine, "a gain", times, "above 1")?;
        let is_fine = more.is_finite() && more >= 0.0;
        LawError::unless(is_fine, "room for more", more, "0 or more")?;
        (self.gain, self.room) = (times, more);
        Ok(self)
    }

    /// A window has so many samples, and twice the limit at least: 100 unless said otherwise.
    #[must_use]
    pub fn samples(mut self, least: u32) -> Self {
        self.samples = f64::from(least.max(2));
        self
    }

    /// Probes after about so many windows: 100 unless said otherwise.
    #[must_use]
    pub fn probe_every(mut self, windows: u32) -> Self {
        self.probe_every = windows.max(2);
        self
    }

    /// Probes by other chance than other instances do.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.chance = Chance::new(seed);
        self
    }

    /// The mean latency without a queue as it is believed to be, in nanoseconds; 0 before the first window.
    pub fn quiet_nanos(&self) -> f64 {
        self.quiet
    }

    fn set(&mut self, limit: f64, now: Timestamp) {
        self.limit = self.bounds.clamp(limit);
        self.since = now;
        self.window = Window::default();
    }

    /// A window is over.
    #[cold]
    fn turn(&mut self, now: Timestamp) -> Option<Reason> {
        let window = std::mem::take(&mut self.window);
        let mean = window.mean();
        if self.quiet == 0.0 {
            self.quiet = mean;
        }
        if let Some((before, limit)) = self.probing.take() {
            self.learn(&window);
            let worked_on = before.mean_in_flight() * (self.quiet / before.mean()).min(1.0);
            self.set(self.stepped(limit, worked_on), now);
            self.found = self.limit;
            return Some(Reason::Room);
        }
        self.usual += (mean - self.usual) * if self.usual == 0.0 { 1.0 } else { FOLLOWS };
        self.quiet = self.quiet.min(mean + 2.0 * window.doubt().sqrt());
        let in_flight = window.mean_in_flight();
        if in_flight * 2.0 < self.limit {
            // The limit isn't what holds calls back: there is nothing to learn about it, and no queue.
            return None;
        }
        self.until_probe = self.until_probe.saturating_sub(1);
        if self.until_probe == 0 {
            self.schedule();
            self.probing = Some((window, self.limit));
            self.set((self.limit * PROBE).floor(), now);
            return Some(Reason::Probing);
        }
        let before = self.limit;
        let wanted = self.stepped(before, in_flight * (self.quiet / mean).min(1.0));
        let is_far = wanted < before * FAR || wanted > before / FAR;
        let wanted = before + (wanted - before) * if is_far { 1.0 } else { DAMPED };
        if (wanted - before).abs() < 0.03 * before {
            return None;
        }
        if wanted < self.found * FELL {
            self.until_probe = self.until_probe.min(4);
            (self.usual, self.found, self.suspects) = (0.0, wanted, Suspects::Slower);
        }
        self.set(wanted, now);
        Some(if wanted > before {
            Reason::Room
        } else {
            Reason::Queueing
        })
    }

    /// The limit for so many that are worked on, no further away than a step.
    fn stepped(&self, from: f64, worked_on: f64) -> f64 {
        let wanted = self.gain * worked_on + self.room;
        wanted.clamp(from * STEP.1, from * STEP.0)
    }

    /// What a probe says about the quiet latency.
    fn learn(&mut self, probe: &Window) {
        let (was, is) = (self.usual, probe.mean());
        let (quiet, noise) = (self.quiet, probe.doubt().sqrt());
        let suspects = std::mem::replace(&mut self.suspects, Suspects::Nothing);
        if is >= was * (1.0 - SAME) {
            // No queue: this is what calls take.
            let is_slower = suspects == Suspects::Slower || is > quiet * (1.0 + NEAR) + 2.0 * noise;
            self.quiet += (is - quiet) * if is_slower { 1.0 } else { FOLLOWS };
        } else if is < quiet - 2.0 * noise {
            // There was a queue when it was found, and there may be one still: look again soon.
            if is < quiet * (1.0 - SAME) {
                self.until_probe = 2;
            }
            self.quiet += (is - quiet) * (1.0 - FOLLOWS);
        } else if is < quiet * (1.0 + NEAR) + 2.0 * noise {
            self.quiet += (is - quiet) * FOLLOWS;
        } else if suspects == Suspects::Slower {
            // By chance, or because others fill the queue: one more look tells.
            self.suspects = suspects;
            self.until_probe = self.until_probe.min(4);
        } else {
            // Others fill the queue. A little less from here, and at last there is none, and it is known again.
            self.quiet *= 0.9;
        }
    }

    fn schedule(&mut self) {
        let every = u64::from(self.probe_every);
        let windows = every / 2 + self.chance.next() % every;
        self.until_probe = u32::try_from(windows).unwrap_or(u32::MAX).max(2);
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
            return None;
        }
        if sample.is_dropped() {
            let before = self.limit;
            self.probing = None;
            self.set(before * STEP.1, sample.ended());
            return (self.limit < before).then_some(Reason::Dropped);
        }
        self.window.add(sample);
        // A probe is rare, and what it finds lasts: it has more samples.
        let least = if self.probing.is_some() { PROBED } else { 1.0 } * self.samples;
        if self.window.count < least.max(2.0 * self.limit) {
            return None;
        }
        self.turn(sample.ended())
    }
}
