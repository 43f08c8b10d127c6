//! How busy the machine is, by the kernel's files: processors, pressure, and the limits of a container.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use derive_more::{Display, Error};
use tollgate::Timestamp;

/// A value that is read now and then: 0 for idle, 1 for busy.
///
/// ```
/// use tollgate::Timestamp;
/// use tollgate_adaptive::{Gauge, GaugeError};
///
/// /// How full your own queue is.
/// struct Backlog(u32);
///
/// impl Gauge for Backlog {
///     fn read(&mut self, _now: Timestamp) -> Result<f64, GaugeError> {
///         Ok(f64::from(self.0) / 100.0)
///     }
/// }
/// assert_eq!(Backlog(40).read(Timestamp::ZERO)?, 0.4);
/// # Ok::<(), GaugeError>(())
/// ```
pub trait Gauge {
    /// Reads the gauge at this time of a monotonic clock.
    ///
    /// # Errors
    /// If it can't be read.
    fn read(&mut self, now: Timestamp) -> Result<f64, GaugeError>;
}

/// Why a gauge can't be read.
#[derive(Debug, Display, Error)]
#[non_exhaustive]
pub enum GaugeError {
    /// The kernel's file can't be read.
    #[display("{} can't be read: {source}; {help}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Where the file exists, or what to read instead.
        help: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel's file doesn't contain the value.
    #[display("{} has no {wanted}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The missing value.
        wanted: &'static str,
    },
}

fn read_text(path: &Path, help: &'static str) -> Result<String, GaugeError> {
    fs::read_to_string(path).map_err(|source| GaugeError::File {
        path: path.to_owned(),
        help,
        source,
    })
}

fn missing_text(path: &Path, wanted: &'static str) -> GaugeError {
    GaugeError::Text {
        path: path.to_owned(),
        wanted,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of ticks and microseconds since the last reading are small"
)]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        f64::NAN
    } else {
        part as f64 / whole as f64
    }
}

/// The share of all processors' time that was used since the last reading, from `/proc/stat`.
///
/// ```no_run
/// use tollgate::Timestamp;
/// use tollgate_adaptive::{CpuUsage, Gauge};
///
/// let mut cpu = CpuUsage::open()?; // an error here, at the start, if there is no such file
/// let used = cpu.read(Timestamp::ZERO)?;
/// # Ok::<(), tollgate_adaptive::GaugeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CpuUsage {
    path: PathBuf,
    /// Busy ticks and all ticks at the last reading.
    last: (u64, u64),
}

impl CpuUsage {
    const READ_HELP: &str = "only Linux has it; elsewhere write a Gauge of your own";

    /// For this machine.
    ///
    /// # Errors
    /// If there is no `/proc/stat`.
    pub fn open() -> Result<Self, GaugeError> {
        Self::at("/proc/stat")
    }

    /// From another file of the same format.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, GaugeError> {
        let path = path.into();
        let last = Self::read_ticks(&path)?;
        Ok(Self { path, last })
    }

    fn read_ticks(path: &Path) -> Result<(u64, u64), GaugeError> {
        let text = read_text(path, Self::READ_HELP)?;
        let wanted = "line of times that begins with cpu";
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
        let line = line.ok_or_else(|| missing_text(path, wanted))?;
        // user, nice, system, idle, iowait, irq, softirq, steal. Guest time is included in user time
        // already.
        let ticks: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .map_while(|word| word.parse().ok())
            .collect();
        if ticks.len() < 4 {
            return Err(missing_text(path, wanted));
        }
        let all = ticks.iter().sum::<u64>();
        let idle = ticks[3] + ticks.get(4).copied().unwrap_or(0);
        Ok((all.saturating_sub(idle), all))
    }
}

impl Gauge for CpuUsage {
    /// Returns NaN if no tick has passed since the last reading; algorithms skip that.
    fn read(&mut self, _now: Timestamp) -> Result<f64, GaugeError> {
        let (busy, all) = Self::read_ticks(&self.path)?;
        let last = std::mem::replace(&mut self.last, (busy, all));
        Ok(ratio(
            busy.saturating_sub(last.0),
            all.saturating_sub(last.1),
        ))
    }
}

/// The share of the last ten seconds in which some task waited for a processor, from
/// `/proc/pressure/cpu`.
///
/// It shows more than usage: a machine can be fully used without any task waiting.
///
/// ```
/// use tollgate_adaptive::CpuPressure;
///
/// let error = CpuPressure::at("/nowhere/pressure/cpu").unwrap_err().to_string();
/// assert!(error.starts_with("/nowhere/pressure/cpu can't be read: "));
/// assert!(error.ends_with("; a kernel has it since 4.20, with CONFIG_PSI and not psi=0; CpuUsage needs neither"));
/// ```
#[derive(Clone, Debug)]
pub struct CpuPressure {
    path: PathBuf,
}

impl CpuPressure {
    const READ_HELP: &str =
        "a kernel has it since 4.20, with CONFIG_PSI and not psi=0; CpuUsage needs neither";

    /// For this machine.
    ///
    /// # Errors
    /// If there is no `/proc/pressure/cpu`.
    pub fn open() -> Result<Self, GaugeError> {
        Self::at("/proc/pressure/cpu")
    }

    /// From another file of the same format, such as `cpu.pressure` of a control group.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, GaugeError> {
        let gauge = Self { path: path.into() };
        gauge.read_pressure()?;
        Ok(gauge)
    }

    fn read_pressure(&self) -> Result<f64, GaugeError> {
        let text = read_text(&self.path, Self::READ_HELP)?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "));
        let mut words = some.unwrap_or_default().split_whitespace();
        let percent = words.find_map(|word| word.strip_prefix("avg10="));
        let percent: Option<f64> = percent.and_then(|percent| percent.parse().ok());
        let wanted = "share of ten seconds (some avg10=)";
        Ok(percent.ok_or_else(|| missing_text(&self.path, wanted))? / 100.0)
    }
}

impl Gauge for CpuPressure {
    fn read(&mut self, _now: Timestamp) -> Result<f64, GaugeError> {
        self.read_pressure()
    }
}

/// The share that a control group has used of its available processor time since the last reading:
/// `cpu.stat` against `cpu.max`.
///
/// Use it in a container: the machine may be idle while the container is at its limit.
///
/// ```no_run
/// use tollgate_adaptive::CgroupCpu;
///
/// let group = CgroupCpu::open("/sys/fs/cgroup")?;
/// # Ok::<(), tollgate_adaptive::GaugeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CgroupCpu {
    folder: PathBuf,
    /// Microseconds used, and the time of the reading; none before the first.
    last: (u64, Option<Timestamp>),
}

impl CgroupCpu {
    const READ_HELP: &str =
        "it has to be the folder of a control group of version 2; CpuUsage needs none";

    /// For the group of this folder; inside a container that is usually `/sys/fs/cgroup`.
    ///
    /// # Errors
    /// If the folder has no `cpu.stat`.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, GaugeError> {
        let folder = folder.into();
        let used = Self::read_used(&folder)?;
        Ok(Self {
            folder,
            last: (used, None),
        })
    }

    fn read_used(folder: &Path) -> Result<u64, GaugeError> {
        let path = folder.join("cpu.stat");
        let text = read_text(&path, Self::READ_HELP)?;
        let used = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        let used = used.and_then(|used| used.trim().parse().ok());
        used.ok_or_else(|| missing_text(&path, "usage_usec"))
    }

    /// How many processors the group may use: all, unless `cpu.max` sets fewer.
    fn read_processors(&self) -> f64 {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let all = f64::from(u32::try_from(all).unwrap_or(u32::MAX));
        let text = fs::read_to_string(self.folder.join("cpu.max")).unwrap_or_default();
        let mut words = text.split_whitespace().map(str::parse::<u64>);
        match (words.next(), words.next()) {
            (Some(Ok(quota)), Some(Ok(period))) if period > 0 => ratio(quota, period).min(all),
            _ => all,
        }
    }
}

impl Gauge for CgroupCpu {
    /// Returns NaN the first time, because a rate needs two readings.
    fn read(&mut self, now: Timestamp) -> Result<f64, GaugeError> {
        let used = Self::read_used(&self.folder)?;
        let last = std::mem::replace(&mut self.last, (used, Some(now)));
        let Some(then) = last.1 else {
            return Ok(f64::NAN);
        };
        let micros = now.nanos_since(then) / 1_000;
        Ok(ratio(used.saturating_sub(last.0), micros) / self.read_processors())
    }
}
