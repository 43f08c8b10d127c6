//! The service's log: one line for each event, as text or JSON, from a level on that can change.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serializer as _;
use serde_json::Serializer;
use tollgate::clock::{Clock, Wall};

mod queue;

use queue::LineQueue;

/// The severity of an event. Events below the level of a [`Log`] aren't written.
#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
pub enum Level {
    /// Something is broken, and an operator should act.
    Error,
    /// Something may be a mistake, or will break.
    #[display("warning")]
    Warn,
    /// Something changed.
    Info,
    /// Single decisions, and other frequent events.
    Debug,
}

/// The format of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: `2026-11-16T17:08:10.250Z info: policy reloaded rules=3`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The log of a service. Clones write to the same output.
///
/// ```
/// use tollgate_server::{Level, Log, LogFormat};
///
/// let log = Log::to_writer(std::io::sink(), LogFormat::Text);
/// log.info("policy reloaded", &[("rules", &3)]);
/// log.set_level(Level::Error);
/// assert_eq!(log.level(), Level::Error);
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Log {{ level: {:?}, form: {:?}, .. }}", self.level(), _0.form)]
pub struct Log(Arc<LogInner>);

struct LogInner {
    level: AtomicU8,
    form: LogFormat,
    out: LogOutput,
}

/// The output of lines.
enum LogOutput {
    Writer(Mutex<Box<dyn Write + Send>>),
    /// A queue to a thread that writes them.
    Queue(LineQueue),
}

impl Log {
    /// Writes events from [`Level::Info`] on to `out`. Each line is one write.
    pub fn to_writer(out: impl Write + Send + 'static, form: LogFormat) -> Self {
        Self::new(LogOutput::Writer(Mutex::new(Box::new(out))), form)
    }

    /// The same for outputs that may block, such as a pipe that nobody reads: a thread of its own writes the lines.
    /// When more than a megabyte waits, further lines are dropped, and their number is logged.
    ///
    /// The system can't start a thread.
    /// The system has no thread for it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_server::{Level, Log, LogFormat};
    ///
    /// let log = Log::queued(std::io::sink(), LogFormat::Json)?;
    /// log.info("policy reloaded", &[("rules", &3)]);
    /// log.drain(Duration::from_secs(1));
    /// assert_eq!(log.dropped(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn queued(out: impl Write + Send + 'static, form: LogFormat) -> io::Result<Self> {
        let summary = move |count: u64| {
            let event = "lines were left out, as nobody read them";
            format_line(form, Level::Warn, event, &[("count", &count)])
        };
        let queue = LineQueue::start(out, summary)?;
        Ok(Self::new(LogOutput::Queue(queue), form))
    }

    fn new(out: LogOutput, form: LogFormat) -> Self {
        Self(Arc::new(LogInner {
            level: AtomicU8::new(Level::Info as u8),
            form,
            out,
        }))
    }

    /// A log that writes nothing.
    pub fn disabled() -> Self {
        Self::to_writer(io::sink(), LogFormat::Text)
    }

    /// Sets the lowest severity that is written.
    pub fn set_level(&self, level: Level) {
        // Relaxed: nothing else depends on it.
        self.0.level.store(level as u8, Ordering::Relaxed);
    }

    /// The lowest severity that is written.
    pub fn level(&self) -> Level {
        let all = [Level::Error, Level::Warn, Level::Info, Level::Debug];
        all[usize::from(self.0.level.load(Ordering::Relaxed))]
    }

    /// The number of lines dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        match &self.0.out {
            LogOutput::Queue(queue) => queue.dropped(),
            LogOutput::Writer(_) => 0,
        }
    }

    /// Waits until all lines are written, at most for `within`. To be called before the process ends.
    pub fn drain(&self, within: Duration) {
        if let LogOutput::Queue(queue) = &self.0.out {
            queue.drain(within);
        }
    }

    /// Logs an event with its fields.
    pub fn log(&self, level: Level, event: &str, fields: &[(&str, &dyn Display)]) {
        if level <= self.level() {
            self.write(level, event, fields);
        }
    }

    /// Logs an error, which operators must fix.
    pub fn error(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.log(Level::Error, event, fields);
    }

    /// Logs a warning, which operators should look at.
    pub fn warn(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.log(Level::Warn, event, fields);
    }

    /// Logs an event that operators may want to know.
    pub fn info(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.log(Level::Info, event, fields);
    }

    /// Logs an operator's change, whatever the level.
    pub(crate) fn record(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.write(Level::Info, event, fields);
    }

    fn write(&self, level: Level, event: &str, fields: &[(&str, &dyn Display)]) {
        let line = format_line(self.0.form, level, event, fields);
        match &self.0.out {
            LogOutput::Queue(queue) => queue.push(line),
            LogOutput::Writer(out) => {
                let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                // A failed write must not stop the service.
                let _ = out.write_all(&line).and_then(|()| out.flush());
            }
        }
    }
}

/// Text with spaces: quoted in text lines, and plain in JSON, which has quotes of its own.
#[derive(Clone, Debug)]
pub(crate) struct Quoted(pub(crate) String);

impl Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            f.write_str(&self.0)
        } else {
            write!(f, "{:?}", self.0)
        }
    }
}

/// Formats one line, with its end.
fn format_line(
    form: LogFormat,
    level: Level,
    event: &str,
    fields: &[(&str, &dyn Display)],
) -> Vec<u8> {
    match form {
        LogFormat::Text => format_text(level, event, fields),
        LogFormat::Json => format_json(level, event, fields),
    }
}

/// The time in UTC, to the millisecond.
fn current_time() -> impl Display {
    let millis = Wall.now().as_nanos() / 1_000_000;
    let time = i64::try_from(millis).map(Timestamp::from_millisecond);
    // Times out of range can't come from a clock.
    let time = time.ok().and_then(Result::ok).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
}

/// A time of the wall clock in RFC 3339.
pub(crate) fn format_time(at: tollgate::Timestamp) -> String {
    format_unix_seconds(i64::try_from(at.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX))
}

/// Seconds since 1970 in RFC 3339, as logs and responses have them.
pub(crate) fn format_unix_seconds(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

fn format_text(level: Level, event: &str, fields: &[(&str, &dyn Display)]) -> Vec<u8> {
    let mut line = format!("{} {level}: {event}", current_time());
    for (name, value) in fields {
        // Writing to a string can't fail.
        let _ = write!(line, " {name}={value}");
    }
    // Control characters in fields must neither end the line nor control a terminal.
    let mut line = line.replace(char::is_control, " ").into_bytes();
    line.push(b'\n');
    line
}

fn format_json(level: Level, event: &str, fields: &[(&str, &dyn Display)]) -> Vec<u8> {
    let known = [
        ("time", current_time().to_string()),
        ("level", level.to_string()),
        ("event", event.to_owned()),
    ];
    let fields = fields.iter();
    let fields = fields.map(|(name, value)| (*name, format!("{value:#}")));
    let mut line = Vec::new();
    // Writing to a `Vec` can't fail.
    let _ = Serializer::new(&mut line).collect_map(known.into_iter().chain(fields));
    line.push(b'\n');
    line
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "warning" | "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            other => Err(format!(
                "no level {other:?}: write error, warning, info or debug"
            )),
        }
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("no form {other:?}: write text or json")),
        }
    }
}
