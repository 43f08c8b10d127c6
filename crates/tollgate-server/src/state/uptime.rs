//! The uptime of the machine: a clock that runs on between two processes, and can't be set.

use std::fs;
use std::time::Duration;

use tollgate::Timestamp;

/// The resolution of the system's text.
const EXACT_TO: Duration = Duration::from_millis(10);

/// The uptime of a machine, and the boot since which it is counted.
///
/// ```
/// use std::time::Duration;
/// use tollgate_server::Uptime;
///
/// let earlier = Uptime { boot_id: 7, elapsed: Duration::from_secs(100) };
/// let later = Uptime { boot_id: 7, elapsed: Duration::from_secs(160) };
/// assert_eq!(later.duration_since(&earlier), Some(Duration::from_millis(59_990)));
/// assert_eq!(Uptime { boot_id: 8, ..later }.duration_since(&earlier), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uptime {
    /// A random number for each boot.
    pub boot_id: u128,
    /// The time since the boot, including suspend.
    pub elapsed: Duration,
}

impl Uptime {
    /// The uptime of this machine, where the system reports it.
    ///
    /// ```
    /// use tollgate_server::Uptime;
    ///
    /// if let (Some(earlier), Some(later)) = (Uptime::of_system(), Uptime::of_system()) {
    ///     assert!(later.duration_since(&earlier).is_some());
    /// }
    /// ```
    pub fn of_system() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        Self::read(&boot, &uptime)
    }

    fn read(boot: &str, uptime: &str) -> Option<Self> {
        let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).ok()?;
        let (whole, part) = uptime.split(' ').next()?.split_once('.')?;
        let hundredths: u64 = part.get(..2)?.parse().ok()?;
        let since = Duration::from_secs(whole.parse().ok()?);
        Some(Self {
            boot_id: boot,
            elapsed: since + Duration::from_millis(hundredths * 10),
        })
    }

    /// The time since an earlier uptime, cut by up to a hundredth of a second. `None` if the machine was booted in
    /// between, or is another one.
    pub fn duration_since(&self, earlier: &Self) -> Option<Duration> {
        let passed = self.elapsed.checked_sub(earlier.elapsed);
        let is_same = self.boot_id == earlier.boot_id;
        passed
            .filter(|_| is_same)
            .map(|passed| passed.saturating_sub(EXACT_TO))
    }

    /// The time that a wall clock would show now if it showed `wall` at the earlier uptime and wasn't set since; `None`
    /// if an uptime is unknown.
    pub(super) fn wall_now(
        now: Option<Self>,
        earlier: Option<Self>,
        wall: Timestamp,
    ) -> Option<Timestamp> {
        Some(wall + now?.duration_since(&earlier?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_text_is_read() {
        let read = Uptime::read(
            "0e5f0c4e-0000-4000-8000-00000000000a\n",
            "350735.47 234388.90\n",
        );
        let since = Duration::from_millis(350_735_470);
        let boot = 0x0e5f_0c4e_0000_4000_8000_0000_0000_000a;
        assert_eq!(
            read,
            Some(Uptime {
                boot_id: boot,
                elapsed: since
            })
        );
        for (boot, uptime) in [
            ("", "1.00 1.00"),
            ("0e", ""),
            ("0e", "1"),
            ("xy", "1.00"),
            ("0e", "1.x"),
        ] {
            assert_eq!(Uptime::read(boot, uptime), None, "{boot:?} {uptime:?}");
        }
    }

    #[test]
    fn nothing_is_said_of_another_boot_or_a_time_that_went_back() {
        let at = |boot, secs| Uptime {
            boot_id: boot,
            elapsed: Duration::from_secs(secs),
        };
        let wall = Timestamp::from_secs(1_000);
        let now = |now, earlier| Uptime::wall_now(now, earlier, wall);
        assert_eq!(
            now(Some(at(1, 70)), Some(at(1, 60))),
            Some(wall + Duration::from_millis(9_990))
        );
        assert_eq!(now(Some(at(1, 60)), Some(at(1, 60))), Some(wall));
        for (later, earlier) in [(at(2, 70), at(1, 60)), (at(1, 50), at(1, 60))] {
            assert_eq!(now(Some(later), Some(earlier)), None);
        }
        assert_eq!(now(None, Some(at(1, 60))), None);
        assert_eq!(now(Some(at(1, 60)), None), None);
    }
}
