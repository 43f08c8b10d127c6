//! Where calendar periods begin and end in a time zone with daylight saving time.
//!
//! A period begins at a date and ends where the next begins. A time belongs to the last period that has
//! begun. So periods follow each other without gap or overlap, even where clocks go back over midnight,
//! or where a zone skips a whole day (which is then an empty period).

use std::fmt;

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Span, Timestamp};

use super::Weekday;

const HOUR_NANOS: i128 = 3_600_000_000_000;

/// The calendar periods of a zone.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Calendar {
    pub(super) unit: CalendarUnit,
    pub(super) zone: TimeZone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CalendarUnit {
    Hour,
    Day,
    Week(Weekday),
    Month(MonthAnchor),
}

/// Where a month begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MonthAnchor {
    /// At midnight of this day, or of the month's last day if the month is shorter.
    Day(i8),
    /// On the day of the month and at the time of day of this time, in nanoseconds since the epoch.
    Start(u64),
}

impl Calendar {
    /// The start and the end of the period that contains `now`, in nanoseconds since the epoch.
    pub(super) fn period_at(&self, now: u64) -> (u64, u64) {
        let whole = (0, u64::MAX);
        let Ok(time) = Timestamp::from_nanosecond(i128::from(now)) else {
            return whole;
        };
        let found = match self.unit {
            CalendarUnit::Hour => Some(self.hour_period_at(time)),
            _ => self.dated_period_at(time),
        };
        found.map_or(whole, |(start, end)| (nanos(start), nanos(end)))
    }

    /// The starts of the last period that has begun and of the next.
    fn dated_period_at(&self, now: Timestamp) -> Option<(i128, i128)> {
        let at = now.as_nanosecond();
        let mut first = self.first_date(self.zone.to_datetime(now).date())?;
        while self.start_of(first)? > at {
            first = self.shift_periods(first, -1)?;
        }
        loop {
            let next = self.shift_periods(first, 1)?;
            let end = self.start_of(next)?;
            if end > at {
                return Some((self.start_of(first)?, end));
            }
            first = next;
        }
    }

    /// The first date of the period around `date`, give or take one period.
    fn first_date(&self, date: Date) -> Option<Date> {
        match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => Some(date),
            CalendarUnit::Month(_) => Some(date.first_of_month()),
            CalendarUnit::Week(first) => {
                let day = date.weekday().to_monday_zero_offset();
                let since = (day - first as i8).rem_euclid(7);
                date.checked_sub(Span::new().days(since)).ok()
            }
        }
    }

    fn shift_periods(&self, date: Date, periods: i64) -> Option<Date> {
        let span = match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => Span::new().try_days(periods),
            CalendarUnit::Week(_) => Span::new().try_weeks(periods),
            CalendarUnit::Month(_) => Span::new().try_months(periods),
        };
        date.checked_add(span.ok()?).ok()
    }

    /// The start of the period of a date. If the clocks skip that time of day, the period begins when
    /// they continue; if they show it twice, it begins at the first.
    fn start_of(&self, date: Date) -> Option<i128> {
        let begin = match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day | CalendarUnit::Week(_) => {
                date.to_datetime(Time::midnight())
            }
            CalendarUnit::Month(anchor) => {
                let (day, time) = self.day_and_time(anchor);
                let day = day.min(date.days_in_month());
                let date = Date::new(date.year(), date.month(), day).ok()?;
                date.to_datetime(time)
            }
        };
        let ambiguous = self.zone.to_ambiguous_timestamp(begin);
        let left_out = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
        let time = ambiguous.compatible().ok()?;
        if left_out {
            // `compatible` puts a skipped time after the gap, as far as it lies in the gap. The period
            // begins at the clock change itself.
            let change = self.zone.preceding(one_nano_later(time)).next()?;
            return Some(change.timestamp().as_nanosecond());
        }
        Some(time.as_nanosecond())
    }

    fn day_and_time(&self, anchor: MonthAnchor) -> (i8, Time) {
        match anchor {
            MonthAnchor::Day(day) => (day, Time::midnight()),
            MonthAnchor::Start(start) => {
                let start = self.zone.to_datetime(timestamp(start));
                (start.day(), start.time())
            }
        }
    }

    /// The hour by the offset in force, cut short where a zone shifts by less than an hour.
    fn hour_period_at(&self, now: Timestamp) -> (i128, i128) {
        let at = now.as_nanosecond();
        let offset = self.zone.to_offset(now);
        let into = (at + offset_nanos(offset)).rem_euclid(HOUR_NANOS);
        let (mut start, mut end) = (at - into, at - into + HOUR_NANOS);
        let cuts = |other: Offset| (offset_nanos(other) - offset_nanos(offset)) % HOUR_NANOS != 0;
        if let Some(change) = self.zone.preceding(one_nano_later(now)).next()
            && change.timestamp().as_nanosecond() > start
            && let Ok(before) = change.timestamp().checked_sub(Span::new().nanoseconds(1))
            && cuts(self.zone.to_offset(before))
        {
            start = change.timestamp().as_nanosecond();
        }
        if let Some(change) = self.zone.following(now).next()
            && change.timestamp().as_nanosecond() < end
            && cuts(change.offset())
        {
            end = change.timestamp().as_nanosecond();
        }
        (start, end)
    }
}

/// The part of a quota's text after the count and the slash.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            CalendarUnit::Hour => f.write_str("hour")?,
            CalendarUnit::Day => f.write_str("day")?,
            CalendarUnit::Week(Weekday::Monday) => f.write_str("week")?,
            CalendarUnit::Week(first) => write!(f, "week from {}", first.name())?,
            CalendarUnit::Month(MonthAnchor::Day(1)) => f.write_str("month")?,
            CalendarUnit::Month(MonthAnchor::Day(day)) => write!(f, "month on {day}")?,
            CalendarUnit::Month(MonthAnchor::Start(start)) => {
                write!(f, "month since {}", timestamp(start))?
            }
        }
        match self.zone.iana_name() {
            Some(name) if self.zone != TimeZone::UTC => write!(f, " in {name}"),
            _ => Ok(()),
        }
    }
}

/// So that a clock change at this very time precedes it.
fn one_nano_later(time: Timestamp) -> Timestamp {
    let after = time.checked_add(Span::new().nanoseconds(1));
    after.unwrap_or(time)
}

fn offset_nanos(offset: Offset) -> i128 {
    i128::from(offset.seconds()) * 1_000_000_000
}

/// Any time that fits into 64 bits of nanoseconds is before the year 2555, and so within jiff's range.
fn timestamp(nanos: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::MAX)
}

/// Periods that began before 1970 begin at 0; those beyond 64 bits never end.
fn nanos(time: i128) -> u64 {
    u64::try_from(time.max(0)).unwrap_or(u64::MAX)
}
