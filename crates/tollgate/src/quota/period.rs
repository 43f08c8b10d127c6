//! `Quota`: a count per calendar hour, day, week or month, or in any span of a given length.

use std::fmt;
use std::mem::discriminant;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use tollgate_core::{TIME_UNITS, Timestamp};

use super::calendar::{Calendar, CalendarUnit, MonthAnchor};
use super::parse;

/// The number of parts of a rolling period.
const ROLLING_PARTS: u64 = 60;

/// The first day of a week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Weekday {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Weekday {
    /// In the order of a week that begins on Monday.
    pub(super) const ALL: [(Self, &str); 7] = [
        (Self::Monday, "monday"),
        (Self::Tuesday, "tuesday"),
        (Self::Wednesday, "wednesday"),
        (Self::Thursday, "thursday"),
        (Self::Friday, "friday"),
        (Self::Saturday, "saturday"),
        (Self::Sunday, "sunday"),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A total over a period.
///
/// Calendar periods begin at midnight UTC, or in the zone of [`in_zone`](Self::in_zone). A day has as
/// many hours as the zone's clocks show, 23 and 25 included.
///
/// A rolling quota is never exceeded in any span of its length. It counts in 60 parts, so usage expires
/// up to a 60th of the period late: 12 hours for 30 days, 24 minutes for a day.
///
/// ```
/// use std::time::Duration;
/// use tollgate::quota::{Quota, QuotaError, Weekday};
///
/// let monthly = Quota::per_month(10_000).in_zone("Europe/Zurich")?;
/// assert_eq!(monthly.to_string(), "10000/month in Europe/Zurich");
/// assert_eq!("10000/month in Europe/Zurich".parse(), Ok(monthly));
///
/// // Billed on the 31st, or the last day of a shorter month.
/// assert_eq!("500/month on 31".parse(), Ok(Quota::per_month(500).on_day(31)?));
/// assert_eq!("7/week from sunday".parse(), Ok(Quota::per_week(7).starting(Weekday::Sunday)?));
///
/// let rolling = Quota::rolling(1_000_000, Duration::from_secs(30 * 86_400))?;
/// assert_eq!(rolling.to_string(), "1000000 in any 30d");
/// # Ok::<(), QuotaError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Quota {
    count: u64,
    /// None if it is unlimited.
    period: Option<Arc<Period>>,
}

/// The period of a quota, without the count.
#[derive(PartialEq, Eq)]
pub(super) struct Period {
    /// A hash of the text of the kind, which identifies a period in this run and in files.
    pub(super) tag: u64,
    kind: PeriodKind,
}

impl Period {
    fn from_kind(kind: PeriodKind) -> Self {
        // FNV-1a, because the hash is stored in files and so must be the same in every build.
        let tag = kind
            .to_string()
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
                (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
            });
        Self { tag, kind }
    }

    /// A rolling period of this many nanoseconds, at least one.
    pub(super) fn rolling(nanos: u64) -> Self {
        Self::from_kind(PeriodKind::Rolling {
            nanos: nanos.max(1),
        })
    }

    /// No charge counts for longer than this. For calendars it has room for clock changes.
    pub(super) fn longest(&self) -> u64 {
        const HOUR: u64 = 3_600_000_000_000;
        match &self.kind {
            PeriodKind::Rolling { nanos } => nanos.saturating_add(nanos.div_ceil(ROLLING_PARTS)),
            PeriodKind::Calendar(calendar) => match calendar.unit {
                CalendarUnit::Hour => 2 * HOUR,
                CalendarUnit::Day => 2 * 24 * HOUR,
                CalendarUnit::Week(_) => 8 * 24 * HOUR,
                CalendarUnit::Month(_) => 33 * 24 * HOUR,
            },
        }
    }

    /// The part in which a charge at this time is counted, and when it expires.
    pub(super) fn part_at(&self, now: u64) -> PeriodPart {
        match &self.kind {
            PeriodKind::Calendar(calendar) => {
                let (start, end) = calendar.period_at(now);
                PeriodPart {
                    start,
                    end,
                    until: end,
                }
            }
            PeriodKind::Rolling { nanos } => {
                let width = nanos.div_ceil(ROLLING_PARTS);
                let start = now / width * width;
                let end = start.saturating_add(width);
                PeriodPart {
                    start,
                    end,
                    until: end.saturating_add(*nanos),
                }
            }
        }
    }
}

/// The text of a quota without its count. [`Quota`] parses it with any count.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Period({self})")
    }
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum PeriodKind {
    Rolling { nanos: u64 },
    Calendar(Calendar),
}

impl Quota {
    /// `count` in each hour of the zone's clock.
    pub fn per_hour(count: u64) -> Self {
        Self::calendar(count, CalendarUnit::Hour)
    }

    /// `count` in each day, from midnight to midnight.
    pub fn per_day(count: u64) -> Self {
        Self::calendar(count, CalendarUnit::Day)
    }

    /// `count` in each week, from Monday or from the day of [`starting`](Self::starting).
    pub fn per_week(count: u64) -> Self {
        Self::calendar(count, CalendarUnit::Week(Weekday::Monday))
    }

    /// `count` in each month, from the first or from the day of [`on_day`](Self::on_day) or
    /// [`since`](Self::since).
    pub fn per_month(count: u64) -> Self {
        Self::calendar(count, CalendarUnit::Month(MonthAnchor::Day(1)))
    }

    /// `count` in any span of this length.
    ///
    /// # Errors
    ///
    /// If the period is zero. Use [`unlimited`](Self::unlimited) for no limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::quota::Quota;
    ///
    /// let error = Quota::rolling(5, Duration::ZERO).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "a quota of 5 has a period of zero: give it a period, or use \"unlimited\" if no limit is meant"
    /// );
    /// ```
    pub fn rolling(count: u64, period: Duration) -> Result<Self, QuotaError> {
        match u64::try_from(period.as_nanos()).unwrap_or(u64::MAX) {
            0 => Err(QuotaError::NoPeriod { count }),
            nanos => Ok(Self::from_kind(count, PeriodKind::Rolling { nanos })),
        }
    }

    /// No limit: allows any cost and counts nothing.
    pub fn unlimited() -> Self {
        Self {
            count: u64::MAX,
            period: None,
        }
    }

    /// The same quota in a time zone, by its name in the IANA database.
    ///
    /// # Errors
    /// If the zone doesn't exist, or the quota isn't a calendar quota.
    pub fn in_zone(self, name: &str) -> Result<Self, QuotaError> {
        let zone = TimeZone::get(name).map_err(|_| QuotaError::UnknownZone(name.to_owned()))?;
        self.map_calendar("a time zone", |calendar| {
            Some(Calendar { zone, ..calendar })
        })
    }

    /// The same quota with weeks that begin on this day.
    ///
    /// # Errors
    /// If it isn't a weekly quota.
    pub fn starting(self, first: Weekday) -> Result<Self, QuotaError> {
        self.with_unit("a first day of the week", CalendarUnit::Week(first))
    }

    /// The same quota with months that begin on this day, 1 to 31, or on the last day of a month that
    /// is shorter.
    ///
    /// # Errors
    /// If the day is out of range, or this isn't a monthly quota.
    pub fn on_day(self, day: u8) -> Result<Self, QuotaError> {
        match i8::try_from(day) {
            Ok(day @ 1..=31) => self.with_unit(
                "a day of the month",
                CalendarUnit::Month(MonthAnchor::Day(day)),
            ),
            _ => Err(QuotaError::NoSuchDay(day)),
        }
    }

    /// The same quota with months that begin on the day and at the time of day of an account's start,
    /// in the zone's clock: anniversary billing.
    ///
    /// ```
    /// use tollgate::{Quota, Timestamp};
    ///
    /// let start = Timestamp::from_secs(1_706_693_400); // 31 January 2024, 09:30
    /// let quota = Quota::per_month(10_000).since(start)?;
    /// let in_february = Timestamp::from_secs(1_708_000_000);
    /// let (_, end) = quota.period_at(in_february).unwrap();
    /// assert_eq!(end, Timestamp::from_secs(1_709_199_000)); // 29 February 2024, 09:30
    /// assert_eq!(quota.to_string(), "10000/month since 2024-01-31T09:30:00Z");
    /// # Ok::<(), tollgate::quota::QuotaError>(())
    /// ```
    ///
    /// # Errors
    /// If it isn't a monthly quota.
    pub fn since(self, start: Timestamp) -> Result<Self, QuotaError> {
        let anchor = MonthAnchor::Start(start.as_nanos());
        self.with_unit("an anniversary", CalendarUnit::Month(anchor))
    }

    /// The same period with another count.
    #[must_use]
    pub fn with_count(&self, count: u64) -> Self {
        Self {
            count: if self.is_unlimited() { u64::MAX } else { count },
            period: self.period.clone(),
        }
    }

    /// The count per period; the maximum if unlimited.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether it is unlimited.
    pub fn is_unlimited(&self) -> bool {
        self.period.is_none()
    }

    /// The start and the end of the calendar period that contains a time; none for a rolling quota.
    pub fn period_at(&self, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        match self.kind()? {
            PeriodKind::Rolling { .. } => None,
            PeriodKind::Calendar(calendar) => {
                let (start, end) = calendar.period_at(now.as_nanos());
                Some((Timestamp::from_nanos(start), Timestamp::from_nanos(end)))
            }
        }
    }

    /// The length of a rolling period; none for a calendar period.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Quota;
    ///
    /// let day = Duration::from_secs(86_400);
    /// assert_eq!(Quota::rolling(1_000, day)?.rolling_period(), Some(day));
    /// assert_eq!(Quota::per_day(1_000).rolling_period(), None);
    /// # Ok::<(), tollgate::quota::QuotaError>(())
    /// ```
    pub fn rolling_period(&self) -> Option<Duration> {
        match self.kind()? {
            PeriodKind::Rolling { nanos } => Some(Duration::from_nanos(*nanos)),
            PeriodKind::Calendar(_) => None,
        }
    }

    /// The part in which a charge at this time is counted, and when it expires.
    pub(super) fn part_at(&self, now: u64) -> PeriodPart {
        let nothing = PeriodPart {
            start: 0,
            end: u64::MAX,
            until: now,
        };
        let period = self.period.as_ref();
        period.map_or(nothing, |period| period.part_at(now))
    }

    /// The period; none if unlimited.
    pub(super) fn period(&self) -> Option<&Arc<Period>> {
        self.period.as_ref()
    }

    /// The tag that identifies the period.
    pub(super) fn tag(&self) -> u64 {
        self.period.as_ref().map_or(0, |period| period.tag)
    }

    pub(super) fn kind(&self) -> Option<&PeriodKind> {
        self.period.as_ref().map(|period| &period.kind)
    }

    fn calendar(count: u64, unit: CalendarUnit) -> Self {
        let zone = TimeZone::UTC;
        Self::from_kind(count, PeriodKind::Calendar(Calendar { unit, zone }))
    }

    fn from_kind(count: u64, kind: PeriodKind) -> Self {
        Self {
            count,
            period: Some(Arc::new(Period::from_kind(kind))),
        }
    }

    /// The same quota with another unit of the same kind.
    fn with_unit(self, what: &'static str, unit: CalendarUnit) -> Result<Self, QuotaError> {
        self.map_calendar(what, |calendar| {
            let is_of_kind = discriminant(&calendar.unit) == discriminant(&unit);
            is_of_kind.then_some(Calendar { unit, ..calendar })
        })
    }

    fn map_calendar(
        self,
        what: &'static str,
        change: impl FnOnce(Calendar) -> Option<Calendar>,
    ) -> Result<Self, QuotaError> {
        let changed = match self.kind() {
            Some(PeriodKind::Calendar(calendar)) => change(calendar.clone()),
            _ => None,
        };
        match changed {
            Some(calendar) => Ok(Self::from_kind(self.count, PeriodKind::Calendar(calendar))),
            None => Err(QuotaError::NotApplicable { quota: self, what }),
        }
    }
}

/// A span in which all charges are counted together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeriodPart {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The time until which these charges count.
    pub(super) until: u64,
}

impl PeriodPart {
    /// An empty part: no time lies in it.
    pub(super) fn contains(&self, at: u64) -> bool {
        self.start <= at && at < self.end
    }
}

/// The text that parses back to the same quota.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            None => f.write_str("unlimited"),
            Some(kind) => write!(f, "{}{kind}", self.count),
        }
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({self})")
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        parse::parse(text)
    }
}

impl fmt::Display for PeriodKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calendar(calendar) => write!(f, "/{calendar}"),
            Self::Rolling { nanos } => {
                f.write_str(" in any ")?;
                // The last unit divides every length.
                for (unit, length) in TIME_UNITS {
                    if nanos.is_multiple_of(length) {
                        return write!(f, "{}{unit}", nanos / length);
                    }
                }
                Ok(())
            }
        }
    }
}

/// Why a quota is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The time zone database has no zone of this name.
    UnknownZone(String),
    /// No month has this day.
    NoSuchDay(u8),
    /// A rolling period of zero.
    NoPeriod {
        /// The requested count.
        count: u64,
    },
    /// The setting doesn't apply to this quota's period.
    NotApplicable {
        /// The quota.
        quota: Quota,
        /// The setting that it can't have.
        what: &'static str,
    },
    /// The text isn't a quota.
    Parse {
        /// The text.
        text: String,
        /// Where parsing failed, in characters from 1.
        column: usize,
        /// What was expected there.
        expected: &'static str,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownZone(name) => write!(
                f,
                "unknown time zone {name:?}; use a name of the IANA database, such as Europe/Zurich"
            ),
            Self::NoSuchDay(day) => write!(f, "no month has a day {day}; use 1 to 31"),
            Self::NoPeriod { count } => write!(
                f,
                "a quota of {count} has a period of zero: give it a period, or use \"unlimited\" if no limit is meant"
            ),
            Self::NotApplicable { quota, what } => write!(f, "{quota} can't have {what}"),
            Self::Parse {
                text,
                column,
                expected,
            } => write!(
                f,
                "invalid quota {text:?}: expected {expected} at column {column}"
            ),
        }
    }
}

impl std::error::Error for QuotaError {}
