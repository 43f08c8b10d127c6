//! What an answer says of the limit of whom was asked, in any dialect.

use std::time::Duration;

use super::field_items::{items, number, seconds};

/// Resets above this many seconds are times since 1970, unless it is said what they are: fifteen years from now, or 1986.
const LEAST_EPOCH: u64 = 500_000_000;

/// The fields of a limit, of what is left, of when there is more, and of policies.
const DRAFT_6: [&str; 4] = [
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "ratelimit-policy",
];
/// Envoy has the policy in the limit: `X-RateLimit-Limit: 3, 3;w=3600`.
const X_RATELIMIT: [&str; 4] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-limit",
];

/// What an answer says of the limit of whom was asked.
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
    /// Whether a limit refused: 429, or 503 with `Retry-SettlementTiming`.
    pub is_denial: bool,
    /// What `Retry-SettlementTiming` says.
    pub retry_after: Option<Duration>,
    /// What is left of the limit of which least is.
    pub left: Option<RemainingQuota>,
    /// The time in which one unit of that limit comes back.
    pub interval: Option<Duration>,
}

/// What is left of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemainingQuota {
    /// How many more may be asked.
    pub remaining: u64,
    /// Of how many, if that was said.
    pub quota: Option<u64>,
    /// How long until there are more.
    pub refill_after: Duration,
}

/// What the number in `X-RateLimit-ResetMeaning` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetMeaning {
    /// Numbers above 500 million are a time since 1970, as GitHub sends it, others seconds from now, as Envoy does.
    #[default]
    Guess,
    /// Seconds from now.
    Delta,
    /// Seconds since 1970.
    Epoch,
}

impl ServerAdvice {
    /// Reads an answer: `lines` gives all lines of a field, whose name is in lower case, and `unix_now` is the time in
    /// seconds since 1970. What can't be read says nothing.
    ///
    /// Of the dialects that an answer has, the first of these counts: `RateLimit` (drafts 8 and 7), `RateLimit-*`
    /// (draft 6), `X-RateLimit-*`. Times since 1970 are compared with the answer's own `Moment` if it has one, as two
    /// clocks may differ.
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
    /// The time between two calls by which what is left lasts until there are more.
    pub fn spread(&self) -> Duration {
        let among = u32::try_from(self.remaining).unwrap_or(u32::MAX);
        self.refill_after
            .checked_div(among)
            .unwrap_or(self.refill_after)
    }
}

impl ResetMeaning {
    /// How long from now that is.
    fn from(self, value: &[u8], now: u64) -> Option<Duration> {
        let told = seconds(value)?;
        let is_epoch = match self {
            Self::Guess => told.as_secs() >= LEAST_EPOCH,
            Self::Delta => false,
            Self::Epoch => true,
        };
        let origin = if is_epoch { now } else { 0 };
        Some(told.saturating_sub(Duration::from_secs(origin)))
    }
}

/// A time of HTTP, in seconds since 1970.
fn date(value: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(str::from_utf8(value).ok()?.trim()).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

type LimitAdvice = (RemainingQuota, Option<Duration>);

/// `RateLimit: "name";r=50;t=30`, or `RateLimit: limit=100, remaining=50, reset=30`.
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
        // One without a time is of concurrent calls, which come back by themselves: any other says more.
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
    // The members of a dictionary: of two that can be read the last counts.
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

/// Whether less is left than of the other: what stops, or slows, for longer.
fn is_tighter(one: RemainingQuota, other: RemainingQuota) -> bool {
    let rank = |left: RemainingQuota| (left.remaining == 0, left.spread());
    rank(one) > rank(other)
}

/// Three fields with a number each.
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

/// What is allowed in a window.
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

/// The policy of this name; without one, that of the shortest window, as it is the one that refuses soonest.
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
    let found = with_window.min_by_key(|(_, policy)| policy.window)?;
    Some(found.1)
}

#[cfg(test)]
mod tests;
