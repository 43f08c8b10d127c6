//! When calls become firings: the rules of lodash's debounce and throttle, as a pure function of
//! `(state, times, now)`. It stores no value, reads no clock and sets no timer.

use std::time::Duration;

use tollgate::Timestamp;

/// The settings of a debounce: how long to wait, and at which edges to fire.
#[derive(Clone, Copy, Debug)]
pub struct DebounceTiming {
    pub(crate) wait: Duration,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) leading: Edge,
    pub(crate) trailing: Edge,
    /// The least interval between firings.
    pub(crate) spacing: Duration,
}

/// Whether a firing happens at an edge of a wait.
///
/// ```
/// use std::time::Duration;
/// use tollgate_shape::{Debounce, Edge};
///
/// // Fires immediately, and then not again until there was no call for 100 ms.
/// let once = Debounce::new(Duration::from_millis(100)).leading(Edge::On).trailing(Edge::Off);
/// # let _ = once;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// It fires.
    On,
    /// It doesn't fire.
    Off,
}

/// The effect of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEffect {
    /// A timer is set already; when it fires, it checks for later calls.
    Waiting,
    /// A timer was set.
    TimerSet,
    /// It fires now; a timer is set, too.
    Fire,
}

/// The effect of a timer that fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerEffect {
    /// The wait isn't over: the timer was set again.
    Rearmed,
    /// The wait is over, and what is pending fires if the trailing edge is on.
    Expired,
}

/// The times of the calls and of the firing, and the timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTimeline {
    /// The end of time if there was no call, or it was cancelled. Not an `Option`, because each of a
    /// million keys has one.
    last_called: Timestamp,
    /// The time of the last firing. The max wait counts from here, and from the first call if nothing
    /// has fired.
    last_fired: Timestamp,
    /// The end of time if no timer is set.
    timer: Timestamp,
}

impl DebounceTiming {
    /// Raises a max wait below the wait to the wait.
    pub(crate) fn normalized(mut self) -> Self {
        self.max_wait = self.max_wait.map(|most| most.max(self.wait));
        self
    }

    /// When a timer that is set now fires. Without a delay it fires a nanosecond later, so that calls
    /// at one instant merge.
    fn timer(&self, now: Timestamp) -> Timestamp {
        now + self.wait.max(Duration::from_nanos(1))
    }
}

impl CallTimeline {
    pub(crate) const fn new() -> Self {
        Self {
            last_called: Timestamp::MAX,
            last_fired: Timestamp::ZERO,
            timer: Timestamp::MAX,
        }
    }

    /// When the timer fires, if one is set.
    #[inline]
    pub(crate) fn timer(&self) -> Option<Timestamp> {
        Some(self.timer).filter(|timer| *timer != Timestamp::MAX)
    }

    /// The time of the latest call.
    pub(crate) fn called(&self) -> Option<Timestamp> {
        Some(self.last_called).filter(|called| *called != Timestamp::MAX)
    }

    /// A call at `now`.
    #[inline]
    pub(crate) fn call(&mut self, times: &DebounceTiming, now: Timestamp) -> CallEffect {
        let is_due = self.is_due(times, now);
        self.last_called = now;
        if self.timer().is_none() {
            self.timer = times.timer(now);
            if is_due {
                // A wait begins, and its max wait with it.
                self.last_fired = now;
            }
            return match times.leading {
                Edge::On if is_due => CallEffect::Fire,
                Edge::On | Edge::Off => CallEffect::TimerSet,
            };
        }
        if is_due && times.max_wait.is_some() {
            // The timer is late, or calls come in a loop that lets none fire.
            self.timer = times.timer(now);
            self.last_fired = now;
            return CallEffect::Fire;
        }
        CallEffect::Waiting
    }

    /// The timer fires at `now`.
    pub(crate) fn on_timer(&mut self, times: &DebounceTiming, now: Timestamp) -> TimerEffect {
        if self.is_due(times, now) {
            self.timer = Timestamp::MAX;
            return TimerEffect::Expired;
        }
        self.timer = self.wait_end(times);
        TimerEffect::Rearmed
    }

    /// What was pending fires at `now`.
    pub(crate) fn fire(&mut self, now: Timestamp) {
        self.last_fired = now;
    }

    /// Ends the wait early. Returns whether there was one.
    pub(crate) fn flush(&mut self) -> bool {
        let was_held = self.timer().is_some();
        self.timer = Timestamp::MAX;
        was_held
    }

    /// Follows a clock that was set back: the time `from` is `to` now.
    pub(crate) fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        let earlier = |time: Timestamp| match time {
            Timestamp::MAX => Timestamp::MAX,
            time => time.shifted(from, to),
        };
        self.last_called = earlier(self.last_called);
        self.last_fired = earlier(self.last_fired);
        self.timer = earlier(self.timer);
    }

    /// From this time on it is as if there had been no call, unless another one comes.
    pub(crate) fn wait_end(&self, times: &DebounceTiming) -> Timestamp {
        let quiet = self
            .called()
            .map_or(Timestamp::ZERO, |called| called + times.wait);
        times
            .max_wait
            .map_or(quiet, |most| quiet.min(self.last_fired + most))
    }

    /// Whether a call at `now` begins a new wait, or a timer at `now` ends one.
    #[inline]
    fn is_due(&self, times: &DebounceTiming, now: Timestamp) -> bool {
        match self.called() {
            None => true,
            // After a clock was set back, the time since the latest call is unknown.
            Some(called) if now < called => true,
            Some(_) => now >= self.wait_end(times),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// When values fire, for calls at these times, in milliseconds.
    fn fired(times: DebounceTiming, calls: &[u64], until: u64) -> Vec<u64> {
        let mut line = CallTimeline::new();
        let (mut pending, mut fired) = (false, Vec::new());
        for now in 0..=until {
            if line.timer().is_some_and(|timer| timer <= ms(now))
                && line.on_timer(&times, ms(now)) == TimerEffect::Expired
                && std::mem::take(&mut pending)
                && times.trailing == Edge::On
            {
                line.fire(ms(now));
                fired.push(now);
            }
            for _ in calls.iter().filter(|call| **call == now) {
                pending = line.call(&times, ms(now)) != CallEffect::Fire;
                if !pending {
                    fired.push(now);
                }
            }
        }
        fired
    }

    fn times(wait: u64, max_wait: Option<u64>, leading: Edge, trailing: Edge) -> DebounceTiming {
        DebounceTiming {
            wait: Duration::from_millis(wait),
            max_wait: max_wait.map(Duration::from_millis),
            leading,
            trailing,
            spacing: Duration::ZERO,
        }
    }

    #[test]
    fn the_max_wait_counts_from_the_last_firing() {
        let trailing = times(100, Some(200), Edge::Off, Edge::On);
        let calls = [0, 80, 160, 240, 320];
        assert_eq!(fired(trailing, &calls, 1000), [200, 400]);
    }

    #[test]
    fn edges_choose_the_ends() {
        let calls = [0, 50, 120];
        for (leading, trailing, expect) in [
            (Edge::Off, Edge::On, &[220][..]),
            (Edge::On, Edge::Off, &[0]),
            (Edge::On, Edge::On, &[0, 220]),
            (Edge::Off, Edge::Off, &[]),
        ] {
            let times = times(100, None, leading, trailing);
            assert_eq!(
                fired(times, &calls, 1000),
                expect,
                "{leading:?} {trailing:?}"
            );
        }
        // One call fires once, whichever edges are on.
        let both = times(100, None, Edge::On, Edge::On);
        assert_eq!(fired(both, &[0], 1000), [0]);
    }

    #[test]
    fn a_throttle_fires_once_a_wait() {
        let throttle = times(100, Some(100), Edge::On, Edge::On);
        let calls: Vec<u64> = (0..350).step_by(10).collect();
        assert_eq!(fired(throttle, &calls, 1000), [0, 100, 200, 300, 400]);
    }
}
