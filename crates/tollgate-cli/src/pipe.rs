//! `tollgate pipe`: rate-limits the lines of standard input, and writes lines that pass unchanged to standard output.
//!
//! A thread reads ahead into a few buffers, so a signal stops the reading immediately. Lines that were read by then
//! are still decided and written.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::clock::Monotonic;
use tollgate::{Clock, Rate};

use crate::outcome::CliError;

mod lines;

use lines::{LineFilter, LineLimiter};

/// The size of a read buffer.
const READ_BUFFER_BYTES: usize = 256 << 10;
/// The number of buffers that are read ahead.
const READ_AHEAD_BUFFERS: usize = 4;
/// The longest line that is buffered as a whole. A longer line is decided by its beginning, and still passes or is
/// dropped as a whole.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Options of `tollgate pipe`.
///
/// ```
/// use clap::Parser;
/// use tollgate::clock::Manual;
/// use tollgate_cli::{Cli, Command, pipe::{InterruptSource, pipe}};
///
/// let Command::Pipe(options) = Cli::parse_from(["tollgate", "pipe", "--rate", "2/s"]).command else { panic!() };
/// let (mut out, input) = (Vec::new(), &b"one\ntwo\nthree\n"[..]);
/// let report = pipe(&options, input, &mut out, Manual::new(), &InterruptSource::never())?;
/// assert_eq!(out, b"one\ntwo\n");
/// assert_eq!(report.to_string(), "2 of 3 lines passed, 1 dropped");
/// # Ok::<(), tollgate_cli::CliError>(())
/// ```
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Lines that pass are written unchanged, byte by byte; a last line without a newline stays without one. The
number of dropped lines is reported on standard error at the end.

With --key, each match of the regular expression has a limit of its own: its first group if it has one, or else
the whole match. Lines that don't match share one limit.

When the reader of standard output closes it, as head does, the command ends without an error. Ctrl-C or SIGTERM stops
the reading. Lines that were read by then are decided (with --wait only those that need not wait) and written. A
second signal ends the command immediately.

Exit code 0: all input was read, or the output was closed; 1: reading or writing failed; 2: wrong arguments;
130, 143: a signal ended it.

Examples:
  tail -f app.log | tollgate pipe --rate 100/s --burst 1000
  tollgate pipe --rate 10/s --wait < urls.txt | xargs -n1 curl -s
  journalctl -f | tollgate pipe --rate 5/m --key 'unit=(\\S+)'")]
#[group(skip)]
pub struct PipeOptions {
    /// The rate of lines that pass, such as 100/s or 5/m. It may include a burst.
    #[arg(long, value_name = "RATE")]
    pub rate: Rate,
    /// The burst: how many lines may pass at one instant. The default is the rate's count.
    #[arg(long, value_name = "LINES")]
    pub burst: Option<u64>,
    /// Drop lines over the limit. This is the default.
    #[arg(long, conflicts_with = "wait")]
    pub drop: bool,
    /// Delay lines until they may pass, which also blocks the program that writes them.
    #[arg(long)]
    pub wait: bool,
    /// A regular expression whose match is the key of a line. Each key has a limit of its own.
    #[arg(long, value_name = "REGEX")]
    pub key: Option<String>,
    /// The most keys with limits of their own. Further keys share one limit.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub keys: usize,
    /// When to write a summary to standard error.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub summary: Summary,
}

/// When a summary is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Summary {
    /// Only if lines were dropped.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeReport {
    /// Lines that passed.
    pub passed: u64,
    /// Lines that were dropped.
    pub dropped: u64,
    /// The signal that ended the run, if any.
    pub interrupted: Option<i32>,
}

impl PipeReport {
    /// Whether to write the summary.
    pub fn should_print(&self, summary: Summary) -> bool {
        match summary {
            Summary::Auto => self.dropped > 0,
            Summary::Always => true,
            Summary::Never => false,
        }
    }
}

impl fmt::Display for PipeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, dropped) = (self.passed, self.dropped);
        let all = passed + dropped;
        write!(f, "{passed} of {all} lines passed, {dropped} dropped")
    }
}

/// Rate-limits the lines of standard input in real time, until its end or a signal. The summary goes to `notes`.
///
/// # Errors
/// As [`pipe`], or a signal ended the run.
pub fn pipe_standard_input(
    options: &PipeOptions,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> Result<(), CliError> {
    let wrong = |error| CliError::failed(format_args!("can't listen for signals: {error}"));
    let interrupt = InterruptSource::by(listen_for_signals().map_err(wrong)?);
    let report = pipe(options, io::stdin(), out, Monotonic::new(), &interrupt)?;
    if report.should_print(options.summary) {
        // Standard error may be closed, and then there is nowhere to report it.
        let _ = writeln!(notes, "tollgate pipe: {report}");
    }
    match report.interrupted {
        Some(signal) => Err(CliError::new(
            128u8.wrapping_add(signal.to_le_bytes()[0]),
            format_args!("ended by signal {signal}"),
        )),
        None => Ok(()),
    }
}

/// Input, its end, an error of reading it, or a signal.
enum InputEvent {
    Bytes(Vec<u8>),
    End,
    Failed(io::Error),
    Signal(i32),
}

/// Interrupts a run from another thread.
#[derive(Debug)]
pub struct InterruptSource {
    signals: Option<Receiver<i32>>,
}

impl InterruptSource {
    /// A source that never interrupts.
    pub const fn never() -> Self {
        Self { signals: None }
    }

    /// A source that interrupts the run when the channel receives the number of a signal.
    pub const fn by(signals: Receiver<i32>) -> Self {
        Self {
            signals: Some(signals),
        }
    }

    fn received_signal(&self) -> Option<i32> {
        self.signals.as_ref()?.try_recv().ok()
    }

    /// Waits for a duration or until an interrupt. Returns the signal.
    fn wait_for_signal(&self, time: Duration) -> Option<i32> {
        match self.signals.as_ref().map(|hear| hear.recv_timeout(time)) {
            Some(Ok(signal)) => Some(signal),
            Some(Err(mpsc::RecvTimeoutError::Timeout)) => None,
            // No signal can arrive any more, but the wait must still last its full time.
            Some(Err(mpsc::RecvTimeoutError::Disconnected)) | None => {
                thread::park_timeout(time);
                None
            }
        }
    }
}

/// Rate-limits the lines of `input` into `out`, with this clock.
///
/// # Errors
/// The arguments are invalid, or reading or writing fails. If the reader of `out` has closed it, that is no error.
pub fn pipe<C: Clock + Clone>(
    options: &PipeOptions,
    input: impl Read + Send + 'static,
    out: &mut impl Write,
    clock: C,
    interrupt: &InterruptSource,
) -> Result<PipeReport, CliError> {
    let gate = LineLimiter::new(options, clock)?;
    let (sender, inputs) = mpsc::sync_channel(READ_AHEAD_BUFFERS);
    let (back, empty) = mpsc::channel();
    // The thread may be blocked in a read forever, so it is not joined.
    thread::spawn(move || read_input(input, &sender, &empty));
    let mut lines = LineFilter::new(gate, out, interrupt);
    let failed = |what: &str, error| CliError::failed(format_args!("can't {what}: {error}"));
    match process_inputs(&inputs, &back, &mut lines, interrupt) {
        Ok(Ok(interrupted)) => Ok(PipeReport {
            interrupted,
            ..lines.report()
        }),
        Ok(Err(error)) => Err(failed("read standard input", error)),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(lines.report()),
        Err(error) => Err(failed("write the lines", error)),
    }
}

fn process_inputs<C: Clock>(
    inputs: &Receiver<InputEvent>,
    back: &mpsc::Sender<Vec<u8>>,
    lines: &mut LineFilter<'_, C, impl Write>,
    interrupt: &InterruptSource,
) -> io::Result<io::Result<Option<i32>>> {
    let ended = loop {
        match next_input(inputs, interrupt) {
            InputEvent::Bytes(bytes) => {
                lines.process_bytes(&bytes)?;
                lines.flush()?;
                // A reader that has ended needs no more buffers.
                let _ = back.send(bytes);
            }
            InputEvent::End => break Ok(()),
            InputEvent::Failed(error) => break Err(error),
            InputEvent::Signal(signal) => lines.interrupt(signal),
        }
        if lines.signal().is_some() {
            // Input that was read before the signal is still decided.
            while let Ok(InputEvent::Bytes(bytes)) = inputs.try_recv() {
                lines.process_bytes(&bytes)?;
            }
            break Ok(());
        }
    };
    lines.finish()?;
    Ok(ended.map(|()| lines.signal()))
}

/// The longest delay before a signal is noticed while no input arrives or a line waits.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn next_input(inputs: &Receiver<InputEvent>, interrupt: &InterruptSource) -> InputEvent {
    if interrupt.signals.is_none() {
        return inputs.recv().unwrap_or(InputEvent::End);
    }
    loop {
        if let Some(signal) = interrupt.received_signal() {
            return InputEvent::Signal(signal);
        }
        match inputs.recv_timeout(POLL_INTERVAL) {
            Ok(input) => return input,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return InputEvent::End,
        }
    }
}

fn read_input(mut input: impl Read, sender: &SyncSender<InputEvent>, empty: &Receiver<Vec<u8>>) {
    loop {
        let mut buffer = empty.try_recv().unwrap_or_default();
        buffer.resize(READ_BUFFER_BYTES, 0);
        let read = match input.read(&mut buffer) {
            Ok(0) => InputEvent::End,
            Ok(many) => {
                buffer.truncate(many);
                InputEvent::Bytes(buffer)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => InputEvent::Failed(error),
        };
        let is_last = !matches!(read, InputEvent::Bytes(_));
        if sender.send(read).is_err() || is_last {
            return;
        }
    }
}

/// A channel of the signals that ask the process to end. Once this returns, the first signal no longer ends the
/// process. The second ends it immediately, in case a blocked reader keeps the first from being noticed.
fn listen_for_signals() -> io::Result<Receiver<i32>> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let (sender, signals) = mpsc::channel();
    let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
    let entered = runtime.enter();
    let (mut interrupts, mut terminates) = (signal(interrupt)?, signal(terminate)?);
    drop(entered);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async {
                for is_first in [true, false] {
                    let kind = tokio::select! {
                        _ = interrupts.recv() => interrupt,
                        _ = terminates.recv() => terminate,
                    };
                    let number = kind.as_raw_value();
                    if !is_first {
                        std::process::exit(128 + number);
                    }
                    if sender.send(number).is_err() {
                        // The receiver is closed, so the process is about to end.
                        return;
                    }
                }
            });
        })?;
    Ok(signals)
}
