//! Header fields that tell what is left of a limit.
//!
//! Names are in lower case, as HTTP/2 wants them and HTTP/1 takes them.

use std::fmt::Write;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Rate};

use crate::dialect::Dialect;

/// The largest integer of a structured field (RFC 9651).
const LARGEST: u64 = 999_999_999_999_999;

/// What is shown of one limit.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Decision, Outcome};
/// use tollgate_http::Shown;
///
/// let decision = Decision::new(Outcome::Allowed, 10, 8, Duration::ZERO, Duration::from_millis(150));
/// let shown = Shown::of("searches", &decision).window(Duration::from_secs(1)).more_after(Duration::from_millis(50));
/// assert_eq!(shown.remaining, 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shown<'a> {
    /// The name of the limit.
    pub name: &'a str,
    /// How many at once: the burst, or the count of a window.
    pub quota: u64,
    /// How many may pass now.
    pub remaining: u64,
    /// The time in which the quota comes back, if it is limited by time.
    pub window: Option<Duration>,
    /// How long until there is more than now.
    pub more_after: Duration,
    /// How long until all of it is there.
    pub full_after: Duration,
}

impl<'a> Shown<'a> {
    /// What a decision tells. Until [`more_after`](Self::more_after) says otherwise, more comes when a refused
    /// request may be repeated, or else when all of the quota is back.
    pub const fn of(name: &'a str, decision: &Decision) -> Self {
        let more_after = match decision.outcome {
            Outcome::Denied => decision.retry_after,
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

    /// What a decision of a bucket tells, whose tokens come back one by one: the quota is back after the time that all of
    /// them take, and more is there when the next one is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_core::{Decision, Outcome, Rate};
    /// use tollgate_http::Shown;
    ///
    /// let decision = Decision::new(Outcome::Allowed, 20, 17, Duration::ZERO, Duration::from_millis(250));
    /// let shown = Shown::of_bucket("per-user", &decision, Rate::per_second(10).burst(20));
    /// assert_eq!(shown.window, Some(Duration::from_secs(2)));
    /// assert_eq!(shown.more_after, Duration::from_millis(50));
    /// ```
    pub fn of_bucket(name: &'a str, decision: &Decision, rate: Rate) -> Self {
        let (shown, limit) = (Self::of(name, decision), decision.limit);
        let Some(whole) = time_of(rate, limit) else {
            return shown;
        };
        if decision.outcome != Outcome::Allowed {
            return shown.window(whole);
        }
        // All but the last token that is missing come back after the first of them does.
        let later = limit.saturating_sub(decision.remaining).saturating_sub(1);
        let later = time_of(rate, later).unwrap_or_default();
        let next = decision.reset_after.saturating_sub(later);
        shown.window(whole).more_after(next)
    }

    /// The time in which the quota comes back.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// How long until there is more than now.
    #[must_use]
    pub const fn more_after(mut self, wait: Duration) -> Self {
        self.more_after = wait;
        self
    }
}

/// The time in which so many tokens come back; none at a rate of all or nothing.
pub fn time_of(rate: Rate, tokens: u64) -> Option<Duration> {
    let nanos = rate.period()?.as_nanos() * u128::from(tokens) / u128::from(rate.count().max(1));
    Some(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

/// Whole seconds, rounded up; as many as a field can say of a time that never comes.
const fn secs(time: Duration) -> u64 {
    let up = time
        .as_secs()
        .saturating_add((time.subsec_nanos() > 0) as u64);
    if up < LARGEST { up } else { LARGEST }
}

/// What the field `Retry-After` says to a request that was refused: whole seconds, rounded up, at least one. None
/// if it was allowed, or if it would never pass.
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
            let wait = secs(decision.retry_after);
            Some(if wait == 0 { 1 } else { wait })
        }
        Outcome::Allowed | Outcome::Never => None,
    }
}

/// Writes the fields of each dialect; the limit that decided comes first. Dialects that can show one limit only
/// show that one. Limits that limit nothing aren't shown, and nothing is written if none is left.
///
/// `unix_now` is the time in seconds since 1970, for [`Dialect::Github`].
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Decision, Outcome};
/// use tollgate_http::{Dialect, Shown, fields};
///
/// let decision = Decision::new(Outcome::Allowed, 3, 2, Duration::ZERO, Duration::from_secs(1_200));
/// let shown = Shown::of("per-ip", &decision).window(Duration::from_secs(3_600));
/// let written = |dialect| {
///     let mut lines = Vec::new();
///     fields::write(&[dialect], &[shown], 1_700_000_000, |name, value| lines.push(format!("{name}: {value}")));
///     lines.join("\n")
/// };
/// assert_eq!(
///     written(Dialect::Draft3),
///     "x-ratelimit-limit: 3, 3;w=3600\nx-ratelimit-remaining: 2\nx-ratelimit-reset: 1200",
/// );
/// assert_eq!(
///     written(Dialect::Github),
///     "x-ratelimit-limit: 3\nx-ratelimit-remaining: 2\nx-ratelimit-used: 1\nx-ratelimit-reset: 1700001200",
/// );
/// ```
pub fn write(
    dialects: &[Dialect],
    limits: &[Shown<'_>],
    unix_now: u64,
    mut put: impl FnMut(&'static str, &str),
) {
    let mut shown = limits.iter().filter(|limit| limit.quota < u64::MAX);
    let Some(first) = shown.next() else { return };
    let mut value = String::with_capacity(64);
    let mut field = |name, say: &dyn Fn(&mut String)| {
        value.clear();
        say(&mut value);
        put(name, &value);
    };
    let plain = |number: u64| move |out: &mut String| text(out, format_args!("{number}"));
    let (limit, left, reset) = counts(first);
    for dialect in dialects {
        match dialect {
            Dialect::Draft8 => {
                let each = || std::iter::once(first).chain(shown.clone());
                field("ratelimit-policy", &|out| list(out, each(), policy_item));
                field("ratelimit", &|out| list(out, each(), left_item));
            }
            Dialect::Draft7 => {
                let all = |out: &mut String| {
                    text(
                        out,
                        format_args!("limit={limit}, remaining={left}, reset={reset}"),
                    );
                };
                field("ratelimit", &all);
                field("ratelimit-policy", &|out| quota_and_window(out, first));
            }
            Dialect::Draft6 => {
                field("ratelimit-limit", &plain(limit));
                field("ratelimit-remaining", &plain(left));
                field("ratelimit-reset", &plain(reset));
                field("ratelimit-policy", &|out| quota_and_window(out, first));
            }
            Dialect::Draft3 => {
                field("x-ratelimit-limit", &|out| {
                    text(out, format_args!("{limit}, "));
                    quota_and_window(out, first);
                });
                field("x-ratelimit-remaining", &plain(left));
                field("x-ratelimit-reset", &plain(reset));
            }
            Dialect::Github => {
                let full = unix_now.saturating_add(secs(first.full_after));
                field("x-ratelimit-limit", &plain(limit));
                field("x-ratelimit-remaining", &plain(left));
                field("x-ratelimit-used", &plain(limit.saturating_sub(left)));
                field("x-ratelimit-reset", &plain(full.min(LARGEST)));
            }
        }
    }
}

/// Quota, what is left, and seconds until there is more.
fn counts(shown: &Shown<'_>) -> (u64, u64, u64) {
    let number = |value: u64| value.min(LARGEST);
    (
        number(shown.quota),
        number(shown.remaining),
        secs(shown.more_after),
    )
}

fn list<'a>(
    out: &mut String,
    limits: impl Iterator<Item = &'a Shown<'a>>,
    item: impl Fn(&mut String, &Shown<'_>),
) {
    for (number, limit) in limits.enumerate() {
        if number > 0 {
            out.push_str(", ");
        }
        item(out, limit);
    }
}

fn policy_item(out: &mut String, limit: &Shown<'_>) {
    string(out, limit.name);
    text(out, format_args!(";q={}", limit.quota.min(LARGEST)));
    window(out, limit);
}

fn left_item(out: &mut String, limit: &Shown<'_>) {
    string(out, limit.name);
    let (_, left, more) = counts(limit);
    text(out, format_args!(";r={left};t={more}"));
}

fn quota_and_window(out: &mut String, limit: &Shown<'_>) {
    text(out, format_args!("{}", limit.quota.min(LARGEST)));
    window(out, limit);
}

/// A window is at least a second in these fields.
fn window(out: &mut String, limit: &Shown<'_>) {
    if let Some(window) = limit.window {
        text(out, format_args!(";w={}", secs(window).max(1)));
    }
}

/// A string of a structured field, which is printable ASCII: what isn't is percent-encoded, and so is the percent
/// sign, so that two names stay two.
fn string(out: &mut String, name: &str) {
    out.push('"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b'%' | 0..=0x1f | 0x7f.. => text(out, format_args!("%{byte:02X}")),
            _ => out.push(char::from(byte)),
        }
    }
    out.push('"');
}

/// Text never fails to be written to a string.
fn text(out: &mut String, what: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(what);
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, quota: u64) -> Shown<'_> {
        let decision = Decision::new(
            Outcome::Denied,
            quota,
            0,
            Duration::from_millis(1_500),
            Duration::from_secs(90),
        );
        Shown::of(name, &decision).window(Duration::from_millis(100))
    }

    fn written(dialects: &[Dialect], limits: &[Shown<'_>]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        write(dialects, limits, 1_000, |name, value| {
            found.push((name.to_owned(), value.to_owned()));
        });
        found
    }

    fn value(dialect: Dialect, limits: &[Shown<'_>], name: &str) -> String {
        let found = written(&[dialect], limits);
        let one = found.into_iter().find(|(own, _)| own == name);
        one.expect("a field of the dialect").1
    }

    #[test]
    fn each_dialect_writes_the_fields_that_it_names() {
        for dialect in Dialect::ALL {
            let names: Vec<_> = written(&[dialect], &[shown("a", 5)])
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            assert_eq!(names, dialect.field_names(), "{dialect}");
        }
    }

    #[test]
    fn several_limits_are_a_list_in_draft_8_and_the_first_elsewhere() {
        let limits = [shown("burst", 5), shown("day", 900)];
        assert_eq!(
            value(Dialect::Draft8, &limits, "ratelimit-policy"),
            r#""burst";q=5;w=1, "day";q=900;w=1"#
        );
        assert_eq!(
            value(Dialect::Draft8, &limits, "ratelimit"),
            r#""burst";r=0;t=2, "day";r=0;t=2"#
        );
        assert_eq!(
            value(Dialect::Draft7, &limits, "ratelimit"),
            "limit=5, remaining=0, reset=2"
        );
    }

    #[test]
    fn dialects_are_combined_in_order() {
        let names: Vec<_> = written(&[Dialect::Draft8, Dialect::Github], &[shown("a", 5)]);
        assert_eq!(names.len(), 6);
        assert_eq!(
            names[5],
            ("x-ratelimit-reset".to_owned(), "1090".to_owned())
        );
    }

    #[test]
    fn names_stay_apart_in_printable_ascii() {
        let policy = |name: &str| value(Dialect::Draft8, &[shown(name, 5)], "ratelimit");
        assert_eq!(policy("say \"hi\"\\"), r#""say \"hi\"\\";r=0;t=2"#);
        assert_eq!(policy("é\r\n"), r#""%C3%A9%0D%0A";r=0;t=2"#);
        assert_ne!(policy("%0D"), policy("\r"));
    }

    #[test]
    fn no_number_is_longer_than_a_structured_field_takes() {
        let decision = Decision::new(
            Outcome::Never,
            u64::MAX - 1,
            u64::MAX - 1,
            Duration::MAX,
            Duration::MAX,
        );
        let shown = Shown::of("a", &decision).window(Duration::MAX);
        for (name, value) in written(&Dialect::ALL, &[shown]) {
            let longest = value
                .split(|c: char| !c.is_ascii_digit())
                .map(str::len)
                .max();
            assert!(longest <= Some(15), "{name}: {value}");
        }
    }

    #[test]
    fn what_limits_nothing_isnt_shown() {
        let shown = Shown::of("a", &Decision::UNLIMITED);
        assert_eq!(written(&Dialect::ALL, &[shown]), []);
        assert_eq!(written(&Dialect::ALL, &[]), []);
    }
}
