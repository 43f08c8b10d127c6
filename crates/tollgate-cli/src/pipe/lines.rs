//! Splits bytes into lines. Each line is decided once, and written as a whole or not at all.

use std::io::{self, Write};
use std::time::Duration;

use memchr::{memchr, memchr_iter, memrchr};
use regex::bytes::Regex;
use tollgate::{Clock, KeyedLimiter, Limiter};

use super::{InterruptSource, MAX_LINE_BYTES, POLL_INTERVAL, PipeOptions, PipeReport};
use crate::outcome::CliError;

pub(super) struct LineFilter<'a, C: Clock, W> {
    gate: LineLimiter<C>,
    /// The output for lines that pass.
    out: &'a mut W,
    interrupt: &'a InterruptSource,
    /// The beginning of a line whose end has not arrived.
    partial_line: Vec<u8>,
    /// The decision on a line that is too long to be buffered. It applies to the rest of the line.
    long_line_outcome: Option<LineOutcome>,
    report: PipeReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineOutcome {
    Passes,
    Dropped,
}

impl<'a, C: Clock, W: Write> LineFilter<'a, C, W> {
    pub(super) fn new(
        gate: LineLimiter<C>,
        out: &'a mut W,
        interrupt: &'a InterruptSource,
    ) -> Self {
        Self {
            gate,
            out,
            interrupt,
            partial_line: Vec::new(),
            long_line_outcome: None,
            report: PipeReport::default(),
        }
    }

    pub(super) const fn report(&self) -> PipeReport {
        self.report
    }

    pub(super) const fn signal(&self) -> Option<i32> {
        self.report.interrupted
    }

    /// Records a signal: lines that are not decided yet stop waiting.
    pub(super) const fn interrupt(&mut self, signal: i32) {
        self.report.interrupted = Some(signal);
    }

    /// Decides all lines that end in these bytes.
    pub(super) fn process_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if let Some(fate) = self.long_line_outcome {
            let end = memchr(b'\n', bytes).map(|end| end + 1);
            let (rest, after) = bytes.split_at(end.unwrap_or(bytes.len()));
            if fate == LineOutcome::Passes {
                self.out.write_all(rest)?;
            }
            if end.is_none() {
                return Ok(());
            }
            self.long_line_outcome = None;
            bytes = after;
        }
        if !self.partial_line.is_empty() {
            let Some(end) = memchr(b'\n', bytes) else {
                return self.buffer_partial(bytes);
            };
            let (rest, after) = bytes.split_at(end + 1);
            let mut line = std::mem::take(&mut self.partial_line);
            line.extend_from_slice(rest);
            self.decide(&line)?;
            line.clear();
            self.partial_line = line;
            bytes = after;
        }
        let Some(last) = memrchr(b'\n', bytes) else {
            return self.buffer_partial(bytes);
        };
        let (whole, begun) = bytes.split_at(last + 1);
        self.decide_all(whole)?;
        self.buffer_partial(begun)
    }

    /// Decides the last line if it has no newline.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.partial_line);
        if !line.is_empty() {
            self.decide(&line)?;
        }
        self.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn decide_all(&mut self, whole: &[u8]) -> io::Result<()> {
        let many = memchr_iter(b'\n', whole).count() as u64;
        // If all lines pass, the chunk is written as it is.
        if self.gate.allow_all(many) {
            self.report.passed += many;
            return self.out.write_all(whole);
        }
        let mut begin = 0;
        // Adjacent lines that pass are written together.
        let mut passing = 0;
        for end in memchr_iter(b'\n', whole) {
            let line = &whole[begin..=end];
            if !self.gate.allow(line) {
                self.out.write_all(&whole[passing..begin])?;
                if self.wait_to_pass(line)? {
                    self.out.write_all(line)?;
                    self.report.passed += 1;
                } else {
                    self.report.dropped += 1;
                }
                passing = end + 1;
            } else {
                self.report.passed += 1;
            }
            begin = end + 1;
        }
        self.out.write_all(&whole[passing..])
    }

    fn decide(&mut self, line: &[u8]) -> io::Result<()> {
        if self.gate.allow(line) || self.wait_to_pass(line)? {
            self.report.passed += 1;
            return self.out.write_all(line);
        }
        self.report.dropped += 1;
        Ok(())
    }

    /// Waits until a line may pass. Returns whether it did.
    fn wait_to_pass(&mut self, line: &[u8]) -> io::Result<bool> {
        if !self.gate.waits {
            return Ok(false);
        }
        // The reader should get all lines that passed before this one waits.
        self.out.flush()?;
        while self.report.interrupted.is_none() {
            if let Some(signal) = self.interrupt.received_signal() {
                self.interrupt(signal);
                break;
            }
            let most = self
                .interrupt
                .signals
                .as_ref()
                .map_or(Duration::MAX, |_| POLL_INTERVAL);
            if self.gate.wait(line, most) {
                return Ok(true);
            }
            // A wait beyond the poll interval is denied immediately, so the time until then is slept here, where a
            // signal is noticed.
            if let Some(signal) = self
                .interrupt
                .wait_for_signal(self.gate.wait_time(line).min(POLL_INTERVAL))
            {
                self.interrupt(signal);
            }
        }
        Ok(false)
    }

    /// Buffers the beginning of a line, unless it is too long.
    fn buffer_partial(&mut self, begun: &[u8]) -> io::Result<()> {
        self.partial_line.extend_from_slice(begun);
        if self.partial_line.len() <= MAX_LINE_BYTES {
            return Ok(());
        }
        let line = std::mem::take(&mut self.partial_line);
        let before = self.report.passed;
        self.decide(&line)?;
        let passes = self.report.passed > before;
        self.long_line_outcome = Some(if passes {
            LineOutcome::Passes
        } else {
            LineOutcome::Dropped
        });
        Ok(())
    }
}

/// Decides lines.
pub(super) struct LineLimiter<C: Clock> {
    limit: LimitByKey<C>,
    /// Whether lines over the limit wait; otherwise they are dropped.
    waits: bool,
}

#[expect(clippy::large_enum_variant, reason = "a run has one")]
enum LimitByKey<C: Clock> {
    One(Limiter<C>),
    Each(KeyedLimiter<C>, Box<Regex>),
}

impl<C: Clock + Clone> LineLimiter<C> {
    pub(super) fn new(options: &PipeOptions, clock: C) -> Result<Self, CliError> {
        let rate = match options.burst {
            Some(burst) => options.rate.burst(burst),
            None => options.rate,
        };
        let limit = match &options.key {
            None => {
                let limiter = Limiter::builder(rate).clock(clock).build();
                LimitByKey::One(limiter.map_err(CliError::usage)?)
            }
            Some(pattern) => {
                let wrong = |error| CliError::usage(format_args!("--key can't be used: {error}"));
                let regex = Regex::new(pattern).map_err(wrong)?;
                let limiter = KeyedLimiter::builder(rate, options.keys.max(1)).clock(clock);
                let limiter = limiter.build().map_err(CliError::usage)?;
                LimitByKey::Each(limiter, Box::new(regex))
            }
        };
        let holds_back = options.wait;
        Ok(Self {
            limit,
            waits: holds_back,
        })
    }
}

impl<C: Clock> LineLimiter<C> {
    /// Whether this many lines pass together, whatever their content. All are charged, or none. Always false with
    /// keys, because the keys are unknown here.
    pub(super) fn allow_all(&self, lines: u64) -> bool {
        match &self.limit {
            LimitByKey::One(limiter) => limiter.allow_n(lines),
            LimitByKey::Each(..) => false,
        }
    }

    /// Whether a line passes now.
    pub(super) fn allow(&self, line: &[u8]) -> bool {
        match &self.limit {
            LimitByKey::One(limiter) => limiter.allow(),
            LimitByKey::Each(limiter, regex) => limiter.allow(extract_key(regex, line)),
        }
    }

    /// Waits until a line may pass, for at most `most`. Returns whether it may.
    pub(super) fn wait(&self, line: &[u8], most: Duration) -> bool {
        match &self.limit {
            LimitByKey::One(limiter) => limiter.acquire().timeout(most).wait_blocking().is_ok(),
            LimitByKey::Each(limiter, regex) => {
                let key = limiter.key(extract_key(regex, line));
                key.acquire().timeout(most).wait_blocking().is_ok()
            }
        }
    }

    /// How long a line would have to wait.
    pub(super) fn wait_time(&self, line: &[u8]) -> Duration {
        let decision = match &self.limit {
            LimitByKey::One(limiter) => limiter.peek(),
            LimitByKey::Each(limiter, regex) => limiter.key(extract_key(regex, line)).peek(),
        };
        decision.wait_or_max()
    }
}

/// The first group of the match, or else the whole match. All lines without a match share one key.
fn extract_key<'a>(regex: &Regex, line: &'a [u8]) -> &'a [u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if regex.captures_len() == 1 {
        return regex.find(line).map_or(&[], |found| found.as_bytes());
    }
    let found = regex.captures(line);
    let group = found.and_then(|found| found.get(1).or_else(|| found.get(0)));
    group.map_or(&[], |group| group.as_bytes())
}
