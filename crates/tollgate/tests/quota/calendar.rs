//! Calendar periods against an oracle that has its own rules for summer time, its own calendar, and
//! finds a period by walking through time a quarter of an hour at a time.

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::quota::Weekday;
use tollgate::{Quota, QuotaLimiter, Timestamp};

const QUARTER: i64 = 900;
const DAY: i64 = 86_400;

#[derive(Clone, Copy, Debug)]
enum Zone {
    Utc,
    Zurich,
    NewYork,
    LordHowe,
    Kathmandu,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Hour,
    Day,
    /// From a weekday, 0 for Monday.
    Week(i64),
    /// From a day and a time of day.
    Month(i64, i64),
}

/// Days since 1970 of a date, by counting years and months.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let years: i64 = (1970..year).map(|year| 365 + i64::from(leap(year))).sum();
    let months: i64 = (1..month).map(|month| month_length(year, month)).sum();
    years + months + day - 1
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn month_length(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Year, month and day, by counting.
fn date(mut days: i64) -> (i64, i64, i64) {
    let (mut year, mut month) = (1970, 1);
    while days >= 365 + i64::from(leap(year)) {
        days -= 365 + i64::from(leap(year));
        year += 1;
    }
    while days >= month_length(year, month) {
        days -= month_length(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

/// Monday is 0; 1 January 1970 was a Thursday.
fn weekday(days: i64) -> i64 {
    (days + 3).rem_euclid(7)
}

/// The n-th Sunday of a month, or the last if n is 0.
fn sunday(year: i64, month: i64, n: i64) -> i64 {
    if n == 0 {
        let last = days(year, month, month_length(year, month));
        return last - (weekday(last) + 1) % 7;
    }
    let first = days(year, month, 1);
    first + (6 - weekday(first)) + 7 * (n - 1)
}

/// What clocks in the zone are ahead of UTC, in seconds, by the rules in force since 2008.
fn offset(zone: Zone, at: i64) -> i64 {
    let (year, ..) = date(at.div_euclid(DAY));
    let hour = 3_600;
    match zone {
        Zone::Utc => 0,
        Zone::Kathmandu => 20_700,
        Zone::Zurich => {
            let start = sunday(year, 3, 0) * DAY + hour;
            let end = sunday(year, 10, 0) * DAY + hour;
            hour + if (start..end).contains(&at) { hour } else { 0 }
        }
        Zone::NewYork => {
            let start = sunday(year, 3, 2) * DAY + 7 * hour;
            let end = sunday(year, 11, 1) * DAY + 6 * hour;
            -5 * hour + if (start..end).contains(&at) { hour } else { 0 }
        }
        Zone::LordHowe => {
            // Summer is 11 hours ahead, winter ten and a half; both change at 2:00 on the clock.
            let end = sunday(year, 4, 1) * DAY + 2 * hour - 11 * hour;
            let start = sunday(year, 10, 1) * DAY + 2 * hour - 10 * hour - 1_800;
            10 * hour + 1_800 + if (end..start).contains(&at) { 0 } else { 1_800 }
        }
    }
}

/// A number that grows with each period, of what a clock in the zone shows.
fn shown(zone: Zone, unit: Unit, at: i64) -> i64 {
    let local = at + offset(zone, at);
    let (day, time) = (local.div_euclid(DAY), local.rem_euclid(DAY));
    match unit {
        Unit::Hour => unreachable!("hours are told apart by `same_hour`"),
        Unit::Day => day,
        Unit::Week(first) => (day + 3 - first).div_euclid(7),
        Unit::Month(first, from) => {
            let (year, month, day) = date(day);
            let begun = (day, time) >= (first.min(month_length(year, month)), from);
            year * 12 + month - i64::from(!begun)
        }
    }
}

/// Whether a new hour begins on the clock between a time and the quarter before.
fn new_hour(zone: Zone, at: i64) -> bool {
    let (before, after) = (offset(zone, at - 1), offset(zone, at));
    (at + after).rem_euclid(3_600) == 0 || (after - before) % 3_600 != 0
}

/// The period of a quarter of an hour: its first quarter, and the first after it.
fn oracle(zone: Zone, unit: Unit, at: i64) -> (i64, i64) {
    if matches!(unit, Unit::Hour) {
        let back = (0..).map(|n| at - n * QUARTER);
        let forth = (1..).map(|n| at + n * QUARTER);
        let find = |mut times: Box<dyn Iterator<Item = i64>>| {
            times.find(|time| new_hour(zone, *time)).expect("an hour")
        };
        return (find(Box::new(back)), find(Box::new(forth)));
    }
    // The latest that any clock so far has shown, from far enough back.
    let back = match unit {
        Unit::Month(..) => 70,
        _ => 16,
    };
    let mut time = at - back * DAY;
    let mut latest = shown(zone, unit, time);
    let mut start = time;
    loop {
        time += QUARTER;
        let now = shown(zone, unit, time);
        if now > latest {
            if time > at {
                return (start, time);
            }
            (latest, start) = (now, time);
        }
    }
}

fn quota(zone: Zone, unit: Unit) -> Quota {
    let weekdays = [
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
    ];
    let quota = match unit {
        Unit::Hour => Quota::per_hour(10),
        Unit::Day => Quota::per_day(10),
        Unit::Week(first) => Quota::per_week(10)
            .starting(weekdays[usize::try_from(first).expect("a quota")])
            .expect("a quota"),
        Unit::Month(day, 0) => Quota::per_month(10)
            .on_day(u8::try_from(day).expect("a quota"))
            .expect("a quota"),
        Unit::Month(day, time) => {
            // As the clocks showed it in a January, when nothing changes.
            let local = days(2019, 1, day) * DAY + time;
            let start = local - offset(zone, local);
            Quota::per_month(10).since(stamp(start)).expect("a quota")
        }
    };
    match zone {
        Zone::Utc => quota,
        Zone::Zurich => quota.in_zone("Europe/Zurich").expect("a quota"),
        Zone::NewYork => quota.in_zone("America/New_York").expect("a quota"),
        Zone::LordHowe => quota.in_zone("Australia/Lord_Howe").expect("a quota"),
        Zone::Kathmandu => quota.in_zone("Asia/Kathmandu").expect("a quota"),
    }
}

fn stamp(seconds: i64) -> Timestamp {
    Timestamp::from_secs(u64::try_from(seconds).expect("a quota"))
}

fn zones() -> impl Strategy<Value = Zone> {
    prop_oneof![
        Just(Zone::Utc),
        Just(Zone::Zurich),
        Just(Zone::NewYork),
        Just(Zone::LordHowe),
        Just(Zone::Kathmandu),
    ]
}

fn units() -> impl Strategy<Value = Unit> {
    prop_oneof![
        Just(Unit::Hour),
        Just(Unit::Day),
        (0i64..7).prop_map(Unit::Week),
        (1i64..=31).prop_map(|day| Unit::Month(day, 0)),
        (prop_oneof![1i64..=31, 28i64..=31], 0i64..96)
            .prop_map(|(day, quarter)| Unit::Month(day, quarter * QUARTER)),
    ]
}

/// Quarters of an hour, half of them within two days of a change of clocks or the end of a February.
fn times() -> impl Strategy<Value = i64> {
    let years = || 2009i64..2036;
    let any = years().prop_flat_map(|year| (days(year, 1, 1)..days(year + 1, 1, 1), 0i64..96));
    let any = any.prop_map(|(day, quarter)| day * DAY + quarter * QUARTER);
    let near = (years(), 0usize..7, -192i64..192).prop_map(|(year, which, quarters)| {
        let day = [
            sunday(year, 3, 0),
            sunday(year, 10, 0),
            sunday(year, 3, 2),
            sunday(year, 11, 1),
            sunday(year, 4, 1),
            sunday(year, 10, 1),
            days(year, 3, 1),
        ][which];
        day * DAY + quarters * QUARTER
    });
    prop_oneof![any, near]
}

proptest! {
    #![proptest_config(crate::config(256))]

    #[test]
    fn a_period_is_what_walking_through_time_finds(
        zone in zones(), unit in units(), at in times(), within in 0i64..QUARTER,
    ) {
        let quota = quota(zone, unit);
        let expected = oracle(zone, unit, at);
        let (start, end) = quota.period_at(stamp(at + within)).unwrap();
        prop_assert_eq!((start, end), (stamp(expected.0), stamp(expected.1)), "{}", quota);
        // The next begins where this one ends, and not a nanosecond earlier.
        let last = Timestamp::from_nanos(end.as_nanos() - 1);
        prop_assert_eq!(quota.period_at(last).unwrap(), (start, end));
        prop_assert_eq!(quota.period_at(end).unwrap().0, end);
        let again: Quota = quota.to_string().parse().unwrap();
        prop_assert_eq!(again, quota);
    }

    #[test]
    fn no_period_gets_more_than_the_quota_and_none_less(
        zone in zones(), unit in units(), at in times(),
        steps in prop::collection::vec((0i64..200, 1u64..7), 1..30),
    ) {
        let quota = quota(zone, unit);
        let limiter = QuotaLimiter::builder(quota.clone(), 1_000_000).clock(Manual::new()).build().unwrap();
        let (mut at, mut used) = (at, 0);
        let mut period = oracle(zone, unit, at);
        for (quarters, cost) in steps {
            at += quarters * QUARTER;
            if at >= period.1 {
                (period, used) = (oracle(zone, unit, at), 0);
            }
            let decision = limiter.check_at(stamp(at), "key", cost);
            prop_assert_eq!(decision.is_allowed(), used + cost <= 10);
            if decision.is_allowed() {
                used += cost;
            } else {
                // The wait is tight.
                let retry = stamp(at) + decision.wait_or_max();
                prop_assert_eq!(retry, stamp(period.1));
                let before = Timestamp::from_nanos(retry.as_nanos() - 1);
                prop_assert!(limiter.peek_at(retry, "key", None, cost).is_allowed());
                prop_assert!(!limiter.peek_at(before, "key", None, cost).is_allowed());
            }
            prop_assert_eq!(decision.remaining, 10 - used);
            let reset = if used == 0 { at } else { period.1 };
            prop_assert_eq!(stamp(at) + decision.reset_after, stamp(reset));
        }
    }
}

/// Hours of the period that a time lies in.
fn hours(quota: &Quota, at: i64) -> u64 {
    let (start, end) = quota.period_at(stamp(at)).expect("a calendar");
    (end - start).as_secs() / 3_600
}

#[test]
fn days_of_23_and_25_hours_and_a_leap_day() {
    let day = Quota::per_day(1).in_zone("Europe/Zurich").unwrap();
    let noon = |year, month, date| days(year, month, date) * DAY + 43_200;
    assert_eq!(hours(&day, noon(2024, 3, 31)), 23);
    assert_eq!(hours(&day, noon(2024, 10, 27)), 25);
    assert_eq!(hours(&day, noon(2024, 10, 28)), 24);
    let month = Quota::per_month(1);
    assert_eq!(hours(&month, noon(2024, 2, 10)), 29 * 24);
    assert_eq!(hours(&month, noon(2023, 2, 10)), 28 * 24);
    let on_31 = Quota::per_month(1).on_day(31).unwrap();
    // From 31 January to 29 February, and from there to 31 March.
    assert_eq!(hours(&on_31, noon(2024, 2, 10)), 29 * 24);
    assert_eq!(hours(&on_31, noon(2024, 3, 10)), 31 * 24);
}

#[test]
fn odd_zones_leave_no_time_without_a_period() {
    let period = |zone, at| {
        let (start, end) = Quota::per_day(1)
            .in_zone(zone)
            .unwrap()
            .period_at(stamp(at))
            .unwrap();
        let seconds = |time: Timestamp| i64::try_from(time.as_nanos() / 1_000_000_000).unwrap();
        (seconds(start), seconds(end))
    };
    // Samoa had no 30 December 2011: the 29th, 10 hours behind, is followed by the 31st, 14 ahead.
    let change = days(2011, 12, 30) * DAY + 36_000;
    assert_eq!(period("Pacific/Apia", change - 1), (change - DAY, change));
    assert_eq!(period("Pacific/Apia", change), (change, change + DAY));
    // St John's went from 00:01 back to 23:01: the new day had begun and goes on, 25 hours long.
    let midnight = days(2010, 11, 7) * DAY + 9_000;
    assert_eq!(
        period("America/St_Johns", midnight - 1),
        (midnight - DAY, midnight)
    );
    for at in [midnight, midnight + 60, midnight + 1_800, midnight + 86_399] {
        assert_eq!(
            period("America/St_Johns", at),
            (midnight, midnight + 25 * 3_600)
        );
    }
    // Havana skips from 00:00 to 01:00, where the day begins.
    let change = days(2024, 3, 10) * DAY + 18_000;
    assert_eq!(
        period("America/Havana", change),
        (change, change + 23 * 3_600)
    );
}

#[test]
fn the_ends_of_time_are_periods_too() {
    for quota in [
        "1/hour",
        "1/day",
        "1/week",
        "1/month",
        "1/month on 31 in Asia/Tokyo",
    ] {
        let quota: Quota = quota.parse().unwrap();
        let (start, end) = quota.period_at(Timestamp::ZERO).unwrap();
        assert!(start == Timestamp::ZERO && end > start, "{quota}");
        let (start, end) = quota.period_at(Timestamp::MAX).unwrap();
        assert!(start < Timestamp::MAX && end == Timestamp::MAX, "{quota}");
    }
}
