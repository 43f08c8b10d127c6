//! Header fields that report the state of a limit.
//!
//! Names are in lower case: HTTP/2 requires that, and HTTP/1 ignores case.

use std::time::Duration;

use tollgate_core::{Decision, Outcome, Rate};

use crate::header_dialect::HeaderDialect;

/// The largest integer of a structured field (RFC 9651).
const LARGEST: u64 = 999_999_999_999_999;

/// The state of one limit, as header fields show it.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Decision, Outcome};
/// use tollgate_http::ShownLimit;
///
/// let decision = Decision::new(Outcome::Allowed, 10, 8, Duration::ZERO, Duration::from_millis(150));
/// let shown = ShownLimit::of("searches", &decision)
///     .window(Duration::from_secs(1))
///     .more_after(Duration::from_millis(50));
/// assert_eq!(shown.remaining, 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ShownLimit<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// The most requests at one instant: the burst, or the count of a window.
    pub quota: u64,
    /// How many requests may pass now.
    pub remaining: u64,
    /// How long the whole quota takes to come back; none for a concurrency limit.
    pub window: Option<Duration>,
    /// How long until more requests may pass than now.
    pub more_after: Duration,
    /// How long until the whole quota is available.
    pub full_after: Duration,
}

impl<'a> ShownLimit<'a> {
    /// Shows a decision. Unless [`more_after`](Self::more_after) sets it, the time until there is more is the retry
    /// delay of a denial, and otherwise the time until the whole quota is back.
    pub const fn of(name: &'a str, decision: &Decision) -> Self {
        let more_after = match decision.outcome {
            Outcome::Denied => decision.wait_or_max(),
            Outcome::Allowed | Outcome::Never => decision.reset_after,
        };
        Self {
            name,
            quota: decision.limit,
            remaining: decision.remaining,
            window: None,
            more_after,
            full_after: decision.reset_after,
        }
    }

    /// Shows a decision of a bucket, whose tokens come back one by one. Its window is the time that all tokens take,
    /// and there is more as soon as the next token is back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_core::{Decision, Outcome, Rate};
    /// use tollgate_http::ShownLimit;
    ///
    /// let decision = Decision::new(Outcome::Allowed, 20, 17, Duration::ZERO, Duration::from_millis(250));
    /// let shown = ShownLimit::of_bucket("per-user", &decision, Rate::per_second(10).burst(20));
    /// assert_eq!(shown.window, Some(Duration::from_secs(2)));
    /// assert_eq!(shown.more_after, Duration::from_millis(50));
    /// ```
    pub fn of_bucket(name: &'a str, decision: &Decision, rate: Rate) -> Self {
        let (shown, limit) = (Self::of(name, decision), decision.limit);
        let Some(whole) = refill_time(rate, limit) else {
            return shown;
        };
        if decision.outcome != Outcome::Allowed {
            return shown.window(whole);
        }
        // `reset_after` ends with the last missing token. Subtracting the time of all tokens after the first leaves
        // the time of the first.
        let later = limit.saturating_sub(decision.remaining).saturating_sub(1);
        let later = refill_time(rate, later).unwrap_or_default();
        let next = decision.reset_after.saturating_sub(later);
        shown.window(whole).more_after(next)
    }

    /// Whether the time of the next refill is known. It isn't for concurrency limits: a permit comes back when a
    /// request ends.
    pub(crate) const fn tells_time(&self) -> bool {
        self.window.is_some() || !self.more_after.is_zero()
    }

    /// Sets how long the whole quota takes to come back.
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets how long until more requests may pass than now.
    pub const fn more_after(mut self, wait: Duration) -> Self {
        self.more_after = wait;
        self
    }
}

/// How long these tokens take to come back; none for a rate without a period.
pub fn refill_time(rate: Rate, tokens: u64) -> Option<Duration> {
    let (period, count) = (rate.period()?.as_nanos(), rate.count().max(1));
    // A 128-bit division takes several times as long, and few values need it.
    let short = u64::try_from(period).ok();
    let short = short.and_then(|period| period.checked_mul(tokens));
    let nanos = match short {
        Some(all) => all / count,
        None => {
            let nanos = period * u128::from(tokens) / u128::from(count);
            u64::try_from(nanos).unwrap_or(u64::MAX)
        }
    };
    Some(Duration::from_nanos(nanos))
}

/// Whole seconds, rounded up. A time that never comes becomes the largest integer of a field.
pub(crate) const fn whole_seconds(time: Duration) -> u64 {
    let up = time
        .as_secs()
        .saturating_add((time.subsec_nanos() > 0) as u64);
    if up < LARGEST { up } else { LARGEST }
}

/// The value of `Retry-After` for a denied request: whole seconds, rounded up, at least one. None if the request was
/// allowed, or can never pass.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Decision, Outcome};
/// use tollgate_http::retry_after;
///
/// let refused = |wait| Decision::new(Outcome::Denied, 5, 0, wait, wait);
/// assert_eq!(retry_after(&refused(Duration::from_millis(20))), Some(1));
/// assert_eq!(retry_after(&refused(Duration::from_millis(1_001))), Some(2));
/// let never = Decision::new(Outcome::Never, 5, 5, Duration::MAX, Duration::ZERO);
/// assert_eq!(retry_after(&never), None);
/// ```
pub const fn retry_after(decision: &Decision) -> Option<u64> {
    match decision.outcome {
        Outcome::Denied => {
            let wait = whole_seconds(decision.wait_or_max());
            Some(if wait == 0 { 1 } else { wait })
        }
        Outcome::Allowed | Outcome::Never => None,
    }
}

/// Writes the fields of each dialect. The limit that decided comes first, and dialects for one limit show only that
/// one. Limits without a bound aren't shown; if no other is left, nothing is written.
///
/// `unix_now` is the time in seconds since 1970, for [`HeaderDialect::XRateLimit`].
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Decision, Outcome};
/// use tollgate_http::{HeaderDialect, ShownLimit, fields};
///
/// let decision = Decision::new(Outcome::Allowed, 3, 2, Duration::ZERO, Duration::from_secs(1_200));
/// let shown = ShownLimit::of("per-ip", &decision).window(Duration::from_secs(3_600));
/// let written = |dialect| {
///     let mut lines = Vec::new();
///     fields::write(&[dialect], &[shown], 1_700_000_000, |name, value| lines.push(format!("{name}: {value}")));
///     lines.join("\n")
/// };
/// assert_eq!(
///     written(HeaderDialect::Draft3),
///     "x-ratelimit-limit: 3, 3;w=3600\nx-ratelimit-remaining: 2\nx-ratelimit-reset: 1200",
/// );
/// assert_eq!(
///     written(HeaderDialect::XRateLimit),
///     "x-ratelimit-limit: 3\nx-ratelimit-remaining: 2\nx-ratelimit-used: 1\nx-ratelimit-reset: 1700001200",
/// );
/// ```
pub fn write(
    dialects: &[HeaderDialect],
    limits: &[ShownLimit<'_>],
    unix_now: u64,
    put: impl FnMut(&'static str, &str),
) {
    let mut lines = FieldCollector {
        name: "",
        value: String::with_capacity(64),
        put,
    };
    write_to(dialects, limits, unix_now, &mut lines);
    lines.flush();
}

/// A target for fields that takes them piece by piece, so no field has to be assembled in a buffer first.
pub(crate) trait FieldSink {
    /// Begins a field, which completes the previous one.
    fn field(&mut self, name: &'static str);

    /// Appends to the value of the field.
    fn text(&mut self, text: &str);

    #[inline]
    fn number(&mut self, value: u64) {
        self.text(itoa::Buffer::new().format(value));
    }

    /// Writes the fields `RateLimit-Policy` and `RateLimit` of one limit, in the form of the eighth draft.
    fn draft8(&mut self, limit: &ShownLimit<'_>) {
        self.field("ratelimit-policy");
        policy_item(self, limit);
        self.field("ratelimit");
        left_item(self, limit);
    }
}

/// Collects each field, and passes it on when it is complete.
struct FieldCollector<F> {
    name: &'static str,
    value: String,
    put: F,
}

impl<F: FnMut(&'static str, &str)> FieldCollector<F> {
    fn flush(&mut self) {
        if !self.name.is_empty() {
            (self.put)(self.name, &self.value);
        }
        self.value.clear();
    }
}

impl<F: FnMut(&'static str, &str)> FieldSink for FieldCollector<F> {
    fn field(&mut self, name: &'static str) {
        self.flush();
        self.name = name;
    }

    fn text(&mut self, text: &str) {
        self.value.push_str(text);
    }
}

/// [`write`](fn@write), to any [`FieldSink`].
pub(crate) fn write_to(
    dialects: &[HeaderDialect],
    limits: &[ShownLimit<'_>],
    unix_now: u64,
    out: &mut impl FieldSink,
) {
    let mut shown = limits.iter().filter(|limit| limit.quota < u64::MAX);
    let Some(first) = shown.next() else { return };
    let (limit, left, reset) = counts(first);
    for dialect in dialects {
        match dialect {
            HeaderDialect::Draft8 => {
                if shown.clone().next().is_none() {
                    out.draft8(first);
                    continue;
                }
                let each = || std::iter::once(first).chain(shown.clone());
                out.field("ratelimit-policy");
                write_list(out, each(), policy_item);
                out.field("ratelimit");
                write_list(out, each(), left_item);
            }
            HeaderDialect::Draft7 => {
                out.field("ratelimit");
                for (name, value) in [
                    ("limit=", limit),
                    (", remaining=", left),
                    (", reset=", reset),
                ] {
                    out.text(name);
                    out.number(value);
                }
                out.field("ratelimit-policy");
                quota_and_window(out, first);
            }
            HeaderDialect::Draft6 => {
                write_number(out, "ratelimit-limit", limit);
                write_number(out, "ratelimit-remaining", left);
                write_number(out, "ratelimit-reset", reset);
                out.field("ratelimit-policy");
                quota_and_window(out, first);
            }
            HeaderDialect::Draft3 => {
                write_number(out, "x-ratelimit-limit", limit);
                out.text(", ");
                quota_and_window(out, first);
                write_number(out, "x-ratelimit-remaining", left);
                write_number(out, "x-ratelimit-reset", reset);
            }
            HeaderDialect::XRateLimit => {
                let full = unix_now.saturating_add(whole_seconds(first.full_after));
                write_number(out, "x-ratelimit-limit", limit);
                write_number(out, "x-ratelimit-remaining", left);
                write_number(out, "x-ratelimit-used", limit.saturating_sub(left));
                write_number(out, "x-ratelimit-reset", full.min(LARGEST));
            }
        }
    }
}

/// Writes a field whose value is a number.
fn write_number(out: &mut impl FieldSink, name: &'static str, value: u64) {
    out.field(name);
    out.number(value);
}

/// Quota, remaining requests, and seconds until there is more.
fn counts(shown: &ShownLimit<'_>) -> (u64, u64, u64) {
    let number = |value: u64| value.min(LARGEST);
    (
        number(shown.quota),
        number(shown.remaining),
        whole_seconds(shown.more_after),
    )
}

fn write_list<'a, S: FieldSink>(
    out: &mut S,
    limits: impl Iterator<Item = &'a ShownLimit<'a>>,
    item: impl Fn(&mut S, &ShownLimit<'_>),
) {
    for (number, limit) in limits.enumerate() {
        if number > 0 {
            out.text(", ");
        }
        item(out, limit);
    }
}

pub(crate) fn policy_item(out: &mut (impl FieldSink + ?Sized), limit: &ShownLimit<'_>) {
    write_string(out, limit.name);
    out.text(";q=");
    out.number(limit.quota.min(LARGEST));
    write_window(out, limit);
}

/// Writes an item of `RateLimit`.
pub(crate) fn left_item(out: &mut (impl FieldSink + ?Sized), limit: &ShownLimit<'_>) {
    left_name(out, limit);
    left_counts(out, limit);
}

/// The start of an item of `RateLimit`, which doesn't depend on the remaining quota, so it can be cached.
pub(crate) fn left_name(out: &mut (impl FieldSink + ?Sized), limit: &ShownLimit<'_>) {
    write_string(out, limit.name);
    out.text(";r=");
}

/// The rest of the item: the remaining quota and the time until there is more.
pub(crate) fn left_counts(out: &mut (impl FieldSink + ?Sized), limit: &ShownLimit<'_>) {
    let (_, left, more) = counts(limit);
    out.number(left);
    if limit.tells_time() {
        out.text(";t=");
        out.number(more);
    }
}

fn quota_and_window(out: &mut impl FieldSink, limit: &ShownLimit<'_>) {
    out.number(limit.quota.min(LARGEST));
    write_window(out, limit);
}

/// Writes a window, which is at least a second in these fields.
fn write_window(out: &mut (impl FieldSink + ?Sized), limit: &ShownLimit<'_>) {
    if let Some(window) = limit.window {
        out.text(";w=");
        out.number(whole_seconds(window).max(1));
    }
}

/// Writes a string of a structured field, which is printable ASCII. All other bytes are percent-encoded; so is the
/// percent sign itself, so that different names stay different.
fn write_string(out: &mut (impl FieldSink + ?Sized), name: &str) {
    out.text("\"");
    // `fold` with `&` instead of `all`: without an early exit the compiler can check many bytes in one step.
    if name.bytes().fold(true, |all, byte| all & is_itself(byte)) {
        out.text(name);
    } else {
        name.bytes().for_each(|byte| write_escaped(out, byte));
    }
    out.text("\"");
}

const fn is_itself(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e) & !matches!(byte, b'"' | b'\\' | b'%')
}

/// Writes one byte of a string in which some bytes have to be escaped.
fn write_escaped(out: &mut (impl FieldSink + ?Sized), byte: u8) {
    match byte {
        b'"' => out.text("\\\""),
        b'\\' => out.text("\\\\"),
        _ if is_itself(byte) => out.text(char::from(byte).encode_utf8(&mut [0; 4])),
        _ => {
            const HEX: &str = "0123456789ABCDEF";
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            out.text("%");
            out.text(&HEX[high..=high]);
            out.text(&HEX[low..=low]);
        }
    }
}

#[cfg(test)]
mod tests;
