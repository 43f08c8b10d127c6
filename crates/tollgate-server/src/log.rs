//! What a service says of itself while it runs: one line an event, as text or JSON, from a level on that can change.

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

/// How much an event matters. Those below the level of a [`HitLog`] aren't written.
#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
pub enum Level {
    /// Something is broken, and somebody should look.
    Error,
    /// Something may not be meant, or will break.
    #[display("warning")]
    Warn,
    /// Something changed.
    Info,
    /// What was decided, and other things that there are many of.
    Debug,
}

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: `2026-11-16T17:08:10.250Z info: policy reloaded rules=3`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Where a service says what happens to it. Clones say it to the same place.
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

/// Where lines go.
enum LogOutput {
    Writer(Mutex<Box<dyn Write + Send>>),
    /// To a thread that writes them.
    Queue(LineQueue),
}

impl Log {
    /// Writes to this from [`Level::Info`] on. Each line is one write.
    pub fn to_writer(out: impl Write + Send + 'static, form: LogFormat) -> Self {
        Self::new(LogOutput::Writer(Mutex::new(Box::new(out))), form)
    }

    /// The same for what may block, as a pipe that nobody reads does: lines are written by a thread of its own. If more
    /// than a megabyte waits, lines are left out, and the reader is told how many.
    ///
    /// # Errors
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

    /// Says nothing.
    pub fn disabled() -> Self {
        Self::to_writer(io::sink(), LogFormat::Text)
    }

    /// Writes events of this level and above from now on.
    pub fn set_level(&self, level: Level) {
        // Nothing else depends on it.
        self.0.level.store(level as u8, Ordering::Relaxed);
    }

    /// The level from which on events are written.
    pub fn level(&self) -> Level {
        let all = [Level::Error, Level::Warn, Level::Info, Level::Debug];
        all[usize::from(self.0.level.load(Ordering::Relaxed))]
    }

    /// Lines that were left out, because more waited than there is room for.
    pub fn dropped(&self) -> u64 {
        match &self.0.out {
            LogOutput::Queue(queue) => queue.dropped(),
            LogOutput::Writer(_) => 0,
        }
    }

    /// Waits until all that was said is written, but no longer than this: before the process ends.
    pub fn drain(&self, within: Duration) {
        if let LogOutput::Queue(queue) = &self.0.out {
            queue.drain(within);
        }
    }

    /// Says that something happened, with what is known of it.
    pub fn log(&self, level: Level, event: &str, fields: &[(&str, &dyn Display)]) {
        if level <= self.level() {
            self.write(level, event, fields);
        }
    }

    /// Says what operators have to mend.
    pub fn error(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.log(Level::Error, event, fields);
    }

    /// Says what operators should look at.
    pub fn warn(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.log(Level::Warn, event, fields);
    }

    /// Says what operators may want to know.
    pub fn info(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.log(Level::Info, event, fields);
    }

    /// Writes down what somebody has changed, at whatever level.
    pub(crate) fn record(&self, event: &str, fields: &[(&str, &dyn Display)]) {
        self.write(Level::Info, event, fields);
    }

    fn write(&self, level: Level, event: &str, fields: &[(&str, &dyn Display)]) {
        let line = format_line(self.0.form, level, event, fields);
        match &self.0.out {
            LogOutput::Queue(queue) => queue.push(line),
            LogOutput::Writer(out) => {
                let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                // A service runs on if nobody reads what it says.
                let _ = out.write_all(&line).and_then(|()| out.flush());
            }
        }
    }
}

/// Text with spaces: in quotes in a line of text, and as it is in JSON, which has quotes of its own.
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

/// One line, with its end.
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
    // No clock shows a time that isn't one.
    let time = time.ok().and_then(Result::ok).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
}

/// A time of the wall clock, as everybody writes it.
pub(crate) fn format_time(at: tollgate::Timestamp) -> String {
    format_unix_seconds(i64::try_from(at.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX))
}

/// A time in seconds since 1970, as logs and answers write it.
pub(crate) fn format_unix_seconds(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

fn format_text(level: Level, event: &str, fields: &[(&str, &dyn Display)]) -> Vec<u8> {
    let mut line = format!("{} {level}: {event}", current_time());
    for (name, value) in fields {
        // Writing to a text doesn't fail.
        let _ = write!(line, " {name}={value}");
    }
    // Whatever a field holds, a line is one line, and does nothing to a terminal.
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
    // Nothing fails to be written to bytes.
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
