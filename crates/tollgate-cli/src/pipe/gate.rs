//! Which lines pass: one limit for all, or one for what a regular expression finds in each.

use std::time::Duration;

use regex::bytes::Regex;
use tollgate::{Clock, KeyedLimiter, Limiter};

use super::Pipe;
use crate::ended::CliError;

/// Decides about lines.
pub(super) struct Gate<C: Clock> {
    limit: Limit<C>,
    pub(super) mode: Mode,
}

enum Limit<C: Clock> {
    One(Limiter<C>),
    Each(KeyedLimiter<C>, Box<Regex>),
}

/// What becomes of lines that are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Drop,
    Wait,
}

impl<C: Clock + Clone> Gate<C> {
    pub(super) fn new(options: &Pipe, clock: C) -> Result<Self, CliError> {
        let rate = match options.burst {
            Some(burst) => options.rate.burst(burst),
            None => options.rate,
        };
        let limit = match &options.key {
            None => {
                let limiter = Limiter::builder(rate).clock(clock).build();
                Limit::One(limiter.map_err(CliError::usage)?)
            }
            Some(pattern) => {
                let regex = Regex::new(pattern).map_err(|error| {
                    CliError::usage(format_args!("--key can't be used: {error}"))
                })?;
                let limiter = KeyedLimiter::builder(rate, options.keys.max(1))
                    .clock(clock)
                    .build();
                Limit::Each(limiter.map_err(CliError::usage)?, Box::new(regex))
            }
        };
        let mode = if options.wait { Mode::Wait } else { Mode::Drop };
        Ok(Self { limit, mode })
    }
}

impl<C: Clock> Gate<C> {
    /// Whether so many lines pass at once, whatever is in them; all are charged, or none. With keys nobody knows.
    pub(super) fn allow_all(&self, lines: u64) -> bool {
        match &self.limit {
            Limit::One(limiter) => limiter.allow_n(lines),
            Limit::Each(..) => false,
        }
    }

    /// Whether a line passes now.
    pub(super) fn allow(&self, line: &[u8]) -> bool {
        match &self.limit {
            Limit::One(limiter) => limiter.allow(),
            Limit::Each(limiter, regex) => limiter.allow(key(regex, line)),
        }
    }

    /// Waits until a line may pass, for at most so long. Whether it may.
    pub(super) fn wait(&self, line: &[u8], most: Duration) -> bool {
        let turn = match &self.limit {
            Limit::One(limiter) => limiter.acquire().timeout(most).wait_blocking(),
            Limit::Each(limiter, regex) => {
                let key = limiter.key(key(regex, line));
                key.acquire().timeout(most).wait_blocking()
            }
        };
        turn.is_ok()
    }

    /// How long a line would have to wait.
    pub(super) fn wait_of(&self, line: &[u8]) -> Duration {
        let decision = match &self.limit {
            Limit::One(limiter) => limiter.peek(),
            Limit::Each(limiter, regex) => limiter.key(key(regex, line)).peek(),
        };
        decision.wait()
    }
}

/// The first group of a match, or all of it. Lines without a match have one key together.
fn key<'a>(regex: &Regex, line: &'a [u8]) -> &'a [u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if regex.captures_len() == 1 {
        return regex.find(line).map_or(&[], |found| found.as_bytes());
    }
    let found = regex.captures(line);
    let group = found.and_then(|found| found.get(1).or_else(|| found.get(0)));
    group.map_or(&[], |group| group.as_bytes())
}
