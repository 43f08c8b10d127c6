//! The default clock: the CPU's time stamp counter where the kernel trusts it, std's otherwise.

use std::sync::OnceLock;
use std::time::Instant;

use tollgate_core::Timestamp;

use super::Clock;

/// Time since the first clock of this process was made.
///
/// With the feature `tsc` (on by default) it reads the CPU's counter directly if Linux itself uses that counter as its
/// clock source: the kernel then guarantees that the counter is constant and synchronous on all cores. If a counter
/// still steps back between cores, the clock reads an earlier time, at worst the anchor, and every limit tolerates
/// that. Readers share no memory that one of them writes. Elsewhere the clock is `std::time::Instant`.
///
/// ```
/// use tollgate::{Clock, clock::Monotonic};
///
/// let clock = Monotonic::new();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    source: &'static Source,
}

#[derive(Debug)]
enum Source {
    #[cfg(feature = "tsc")]
    Counter(Counter),
    Std {
        anchor: Instant,
    },
}

/// One anchor per process, so that the times of all limiters can be compared.
static SOURCE: OnceLock<Source> = OnceLock::new();

impl Monotonic {
    /// The process's clock. The first call calibrates the counter, which takes up to 200 ms.
    pub fn new() -> Self {
        Self {
            source: SOURCE.get_or_init(Source::select_best),
        }
    }

    /// The source of the clock: `"tsc"` for the CPU's counter, `"std"` for the standard library's clock.
    pub fn source_name(&self) -> &'static str {
        match self.source {
            #[cfg(feature = "tsc")]
            Source::Counter(_) => "tsc",
            Source::Std { .. } => "std",
        }
    }
}

impl Default for Monotonic {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Monotonic {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        match self.source {
            #[cfg(feature = "tsc")]
            Source::Counter(counter) => counter.now(),
            Source::Std { anchor } => elapsed_since(*anchor),
        }
    }

    #[inline]
    fn source_id(&self) -> Option<usize> {
        Some(std::ptr::from_ref(self.source).addr())
    }
}

/// Never inlined, because it is a system call anyway.
#[inline(never)]
fn elapsed_since(anchor: Instant) -> Timestamp {
    Timestamp::ZERO + anchor.elapsed()
}

impl Source {
    fn select_best() -> Self {
        #[cfg(feature = "tsc")]
        if let Some(counter) = kernel_trusts_the_counter().then(Counter::new).flatten() {
            return Self::Counter(counter);
        }
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let anchor = Instant::now();
        Self::Std { anchor }
    }
}

#[cfg(feature = "tsc")]
use counter::Counter;

/// The counter itself, read in a few instructions once `quanta` has measured its frequency.
#[cfg(feature = "tsc")]
mod counter {
    #![cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "reading the counter is an intrinsic")
    )]

    use tollgate_core::Timestamp;

    #[derive(Debug)]
    pub(super) struct Counter {
        anchor: u64,
        /// Nanoseconds in 2⁴⁰ ticks.
        scale: u64,
        #[cfg(not(target_arch = "x86_64"))]
        clock: quanta::Clock,
    }

    const SHIFT: u32 = 40;

    impl Counter {
        /// `None` if `quanta` reads another source than the processor's counter.
        #[cfg(target_arch = "x86_64")]
        pub(super) fn new() -> Option<Self> {
            let clock = quanta::Clock::new();
            let (before, anchor, after) = (clock.raw(), ticks(), clock.raw());
            let scale = clock.delta_as_nanos(0, 1 << SHIFT);
            (before <= anchor && anchor <= after).then_some(Self { anchor, scale })
        }

        #[cfg(not(target_arch = "x86_64"))]
        pub(super) fn new() -> Option<Self> {
            let clock = quanta::Clock::new();
            let (anchor, scale) = (clock.raw(), clock.delta_as_nanos(0, 1 << SHIFT));
            Some(Self {
                anchor,
                scale,
                clock,
            })
        }

        #[inline(always)]
        pub(super) fn now(&self) -> Timestamp {
            #[cfg(target_arch = "x86_64")]
            let ticks = ticks();
            #[cfg(not(target_arch = "x86_64"))]
            let ticks = self.clock.raw();
            // A counter that is behind its anchor counts as no elapsed time.
            let ticks = ticks.saturating_sub(self.anchor);
            let nanos = (u128::from(ticks) * u128::from(self.scale)) >> SHIFT;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a counter of 64 bits at a GHz or more lasts 585 years"
            )]
            Timestamp::from_nanos(nanos as u64)
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn ticks() -> u64 {
        // SAFETY: every x86-64 has the instruction, and Linux, which keeps its own time by the
        // counter, lets programs read it.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

/// Whether Linux uses the counter that `quanta` would read as its own clock source.
#[cfg(feature = "tsc")]
fn kernel_trusts_the_counter() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let trusted = if cfg!(target_arch = "x86_64") {
        "tsc"
    } else if cfg!(target_arch = "aarch64") {
        "arch_sys_counter"
    } else {
        return false;
    };
    std::fs::read_to_string(path).is_ok_and(|name| name.trim() == trusted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clocks_of_a_process_share_one_anchor() {
        let (one, other) = (Monotonic::new(), Monotonic::new());
        let earlier = one.now();
        let later = other.now();
        assert!(later >= earlier);
        assert!(std::ptr::eq(one.source, other.source));
    }

    #[test]
    #[cfg(feature = "tsc")]
    fn the_counter_is_read_only_where_the_kernel_keeps_time_by_it() {
        let expect = if kernel_trusts_the_counter() {
            "tsc"
        } else {
            "std"
        };
        assert_eq!(Monotonic::new().source_name(), expect);
    }
}
