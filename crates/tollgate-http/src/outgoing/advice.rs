//! What a response states about the limit of the server, in any dialect.

use std::time::Duration;

use super::field_items::{items, number, seconds};

/// A reset of at least this many seconds is taken for a time since 1970: it would be fifteen years from now, or in
/// 1985.
const LEAST_EPOCH: u64 = 500_000_000;

/// The fields of the limit, the remaining quota, the reset time and the policies.
const DRAFT_6: [&str; 4] = [
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "ratelimit-policy",
];
/// Envoy writes the policy into the field of the limit: `X-RateLimit-Limit: 3, 3;w=3600`.
const X_RATELIMIT: [&str; 4] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-limit",
];

/// What a response states about the limit of the server.
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::outgoing::{ServerAdvice, ResetMeaning};
///
/// let fields = [("ratelimit", "\"burst\";r=2;t=30"), ("ratelimit-policy", "\"burst\";q=100;w=60")];
/// let lines = |name: &str| {
///     let of_name = fields.iter().filter(move |(own, _)| *own == name);
///     of_name.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>().into_iter()
/// };
/// let advice = ServerAdvice::read(200, 1_700_000_000, ResetMeaning::Guess, lines);
/// let left = advice.left.expect("two are left");
/// assert_eq!((left.remaining, left.quota, left.refill_after), (2, Some(100), Duration::from_secs(30)));
/// assert_eq!(advice.interval, Some(Duration::from_millis(600)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerAdvice {
    /// Whether a limit denied the call: status 429, or 503 with `Retry-After`.
    pub is_denial: bool,
    /// The value of `Retry-After`.
    pub retry_after: Option<Duration>,
    /// The state of the tightest limit in the response.
    pub left: Option<RemainingQuota>,
    /// The time in which one unit of that limit comes back.
    pub interval: Option<Duration>,
}

/// The remaining quota of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemainingQuota {
    /// How many more calls may be made.
    pub remaining: u64,
    /// The whole quota, if the response states it.
    pub quota: Option<u64>,
    /// How long until more calls may be made.
    pub refill_after: Duration,
}

/// The meaning of the number in `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetMeaning {
    /// From 500 million on, a time since 1970, as GitHub sends it; below that, seconds from now, as Envoy sends them.
    #[default]
    Guess,
    /// Seconds from now.
    Delta,
    /// Seconds since 1970.
    Epoch,
}

impl ServerAdvice {
    /// Reads a response. `lines` returns all values of a field, whose name is in lower case; `unix_now` is the time
    /// in seconds since 1970. Values that can't be read are ignored.
    ///
    /// If a response has several dialects, the first of these counts: `RateLimit` (drafts 8 and 7), `RateLimit-*`
    /// (draft 6), `X-RateLimit-*`. Times since 1970 are compared with the response's own `Date` if it has one, as the
    /// clocks of client and server may differ.
    pub fn read<'a, I: Iterator<Item = &'a [u8]>>(
        status: u16,
        unix_now: u64,
        reset: ResetMeaning,
        lines: impl Fn(&'static str) -> I,
    ) -> Self {
        let now = lines("date").next().and_then(date).unwrap_or(unix_now);
        let retry_after = lines("retry-after").next().map(<[u8]>::trim_ascii);
        let retry_after = retry_after.and_then(|value| {
            seconds(value).or_else(|| Some(Duration::from_secs(date(value)?.saturating_sub(now))))
        });
        let (left, interval) = read_draft_fields(&lines)
            .or_else(|| read_count_fields(&lines, DRAFT_6, seconds))
            .or_else(|| read_count_fields(&lines, X_RATELIMIT, |value| reset.from(value, now)))
            .unzip();
        Self {
            is_denial: status == 429 || status == 503 && retry_after.is_some(),
            retry_after,
            left,
            interval: interval.flatten(),
        }
    }
}

impl RemainingQuota {
    /// The time between calls with which the remaining quota lasts until the refill.
    pub fn spread(&self) -> Duration {
        let among = u32::try_from(self.remaining).unwrap_or(u32::MAX);
        self.refill_after
            .checked_div(among)
            .unwrap_or(self.refill_after)
    }
}

impl ResetMeaning {
    /// The time from now until this reset.
    fn from(self, value: &[u8], now: u64) -> Option<Duration> {
        let reset = seconds(value)?;
        let is_epoch = match self {
            Self::Guess => reset.as_secs() >= LEAST_EPOCH,
            Self::Delta => false,
            Self::Epoch => true,
        };
        let origin = if is_epoch { now } else { 0 };
        Some(reset.saturating_sub(Duration::from_secs(origin)))
    }
}

/// An HTTP date, in seconds since 1970.
fn date(value: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(str::from_utf8(value).ok()?.trim()).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

type LimitAdvice = (RemainingQuota, Option<Duration>);

/// Reads `RateLimit: "name";r=50;t=30`, or `RateLimit: limit=100, remaining=50, reset=30`.
fn read_draft_fields<'a, I: Iterator<Item = &'a [u8]>>(
    lines: &impl Fn(&'static str) -> I,
) -> Option<LimitAdvice> {
    let mut least = None::<(RemainingQuota, &[u8], bool)>;
    for item in items(lines("ratelimit")) {
        let numbers = (item.get("r").and_then(number), item.get("t"));
        let (Some(remaining), more_after) = numbers else {
            continue;
        };
        let left = RemainingQuota {
            remaining,
            quota: None,
            refill_after: more_after.and_then(seconds).unwrap_or_default(),
        };
        // An item without a time is a concurrency limit, whose permits come back without a wait: any limit with a
        // time is tighter.
        let is_timed = more_after.is_some();
        let is_tighter = least.is_none_or(|(least, _, was_timed)| match (is_timed, was_timed) {
            (true, false) => true,
            (false, true) => false,
            _ => is_tighter(left, least),
        });
        if is_tighter {
            least = Some((left, item.name, is_timed));
        }
    }
    if let Some((mut left, name, _)) = least {
        let policy = policy(lines("ratelimit-policy"), Some(name));
        left.quota = policy.and_then(|policy| policy.quota);
        return Some((left, policy.and_then(|policy| policy.interval())));
    }
    // Draft 7 is a dictionary: if a member occurs twice, the last readable one counts.
    let member = |name| items(lines("ratelimit")).filter_map(move |item| item.value(name));
    let left = RemainingQuota {
        remaining: member("remaining").filter_map(number).last()?,
        quota: member("limit").filter_map(number).last(),
        refill_after: member("reset")
            .filter_map(seconds)
            .last()
            .unwrap_or_default(),
    };
    let policy = policy(lines("ratelimit-policy"), None);
    Some((left, policy.and_then(|policy| policy.interval())))
}

/// Whether the first limit is tighter: it stops calls, or slows them down more.
fn is_tighter(one: RemainingQuota, other: RemainingQuota) -> bool {
    let rank = |left: RemainingQuota| (left.remaining == 0, left.spread());
    rank(one) > rank(other)
}

/// Reads the dialects that have a field for each number.
fn read_count_fields<'a, I: Iterator<Item = &'a [u8]>>(
    lines: &impl Fn(&'static str) -> I,
    [limit, remaining, after, policies]: [&'static str; 4],
    reset: impl Fn(&[u8]) -> Option<Duration>,
) -> Option<LimitAdvice> {
    let one = |field| lines(field).next().map(<[u8]>::trim_ascii);
    let left = RemainingQuota {
        remaining: number(one(remaining)?)?,
        quota: items(lines(limit))
            .next()
            .and_then(|item| number(item.name)),
        refill_after: one(after).and_then(reset).unwrap_or_default(),
    };
    let policy = policy(lines(policies), None);
    Some((left, policy.and_then(|policy| policy.interval())))
}

/// A quota in a window.
#[derive(Clone, Copy, Debug)]
struct Policy {
    quota: Option<u64>,
    window: Option<Duration>,
}

impl Policy {
    fn interval(self) -> Option<Duration> {
        let quota = u32::try_from(self.quota?.max(1)).unwrap_or(u32::MAX);
        Some(self.window? / quota)
    }
}

/// The policy of this name. Without a name, the policy with the shortest window, as that limit denies first.
fn policy<'a>(lines: impl Iterator<Item = &'a [u8]>, name: Option<&[u8]>) -> Option<Policy> {
    let all = items(lines).map(|item| {
        let quota = item.get("q").and_then(number);
        let policy = Policy {
            quota: quota.or_else(|| number(item.name)),
            window: item.get("w").and_then(seconds),
        };
        (item.name, policy)
    });
    let own = all.filter(|(own, _)| name.is_none_or(|name| name == *own));
    let with_window = own.filter(|(_, policy)| policy.window.is_some());
    let (_, shortest) = with_window.min_by_key(|(_, policy)| policy.window)?;
    Some(shortest)
}

#[cfg(test)]
mod tests;
