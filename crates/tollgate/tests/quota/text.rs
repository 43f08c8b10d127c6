//! The exact texts of quotas and denials.

use tollgate::Quota;
use tollgate::clock::Manual;
use tollgate::quota::{QuotaDenied, QuotaLimiter};

#[test]
fn quotas_print_as_they_parse() {
    for text in [
        "10000/month",
        "10000/month in Europe/Zurich",
        "500/month on 31",
        "500/month since 2024-01-31T09:30:00Z in America/New_York",
        "1000/day",
        "7/week",
        "7/week from sunday in Asia/Tokyo",
        "60/hour",
        "10000 in any 30d",
        "5 in any 90m",
        "18446744073709551615 in any 1500ms",
        "0/day",
        "unlimited",
    ] {
        assert_eq!(text.parse::<Quota>().unwrap().to_string(), text);
    }
    let long: Quota = "  7 per week  from monday in UTC ".parse().unwrap();
    assert_eq!(long.to_string(), "7/week");
    assert_eq!(
        "7 in any 48h".parse::<Quota>().unwrap().to_string(),
        "7 in any 2d"
    );
}

#[test]
fn what_is_no_quota_says_where_and_what() {
    for (text, error) in [
        ("", "expected a count, as in 10000/month at column 1"),
        (
            "many/day",
            "expected a count, as in 10000/month at column 1",
        ),
        (
            "1 day",
            "expected \"/\" and a period, or \"in any\" and a length at column 3",
        ),
        (
            "1/fortnight",
            "expected hour, day, week or month at column 3",
        ),
        (
            "99999999999999999999/day",
            "expected a number of at most 18446744073709551615 at column 1",
        ),
        (
            "1/week from noon",
            "expected a day from monday to sunday at column 13",
        ),
        (
            "1/day on 3",
            "expected nothing that such a period can't have (from: weeks; on, since: months) \
             at column 7",
        ),
        (
            "1/day please",
            "expected the end, or \"from\", \"on\", \"since\" or \"in\" with what they say at column 7",
        ),
        (
            "1 in 30d",
            "expected \"any\" and a length, as in 10000 in any 30d at column 6",
        ),
        (
            "1 in any 0d",
            "expected a length above zero, as in 30d, 12h, 90m or 45s at column 10",
        ),
        (
            "1/month since noon",
            "expected a time since 1970, as in 2024-01-31T09:30:00Z at column 15",
        ),
        (
            "unlimited!",
            "expected nothing after \"unlimited\" at column 10",
        ),
    ] {
        let expected = format!("invalid quota {text:?}: {error}");
        assert_eq!(text.parse::<Quota>().unwrap_err().to_string(), expected);
    }
    let error = "1/day in Europe/Gotham".parse::<Quota>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown time zone \"Europe/Gotham\"; use a name of the IANA database, such as Europe/Zurich"
    );
    let error = "1/month on 32".parse::<Quota>().unwrap_err();
    assert_eq!(error.to_string(), "no month has a day 32; use 1 to 31");
    let error = Quota::per_day(5).on_day(3).unwrap_err();
    assert_eq!(error.to_string(), "5/day can't have a day of the month");
}

#[test]
fn refusals_say_that_they_are_a_quota_s() {
    let limiter = QuotaLimiter::builder(Quota::per_day(10), 1)
        .clock(Manual::new())
        .build()
        .unwrap();
    let refused = |key: &str, cost| limiter.charge(key, cost).unwrap_err().to_string();
    assert_eq!(
        refused("a", 11),
        "quota: the cost is above 10/day, so it never fits"
    );
    let _ = limiter.charge("a", 8).unwrap();
    assert_eq!(
        refused("a", 3),
        "quota: 10/day has only 2 left; enough in 1d"
    );
    let _ = limiter.charge("a", 2).unwrap();
    assert_eq!(refused("a", 1), "quota: 10/day is used up; resets in 1d");
    assert_eq!(
        refused("b", 1),
        "quota: no room for a new key, 1 are counted; retry in 1d"
    );
    let long = "k".repeat(QuotaDenied::MAX_KEY_BYTES + 1);
    assert_eq!(
        refused(&long, 1),
        "quota: a key of 1025 bytes is longer than the 1024 that keys may have"
    );
    assert!(!limiter.check(&long).is_allowed());
    for (seconds, text) in [
        (86_399, "1s"),
        (86_339, "1m 1s"),
        (86_340, "1m"),
        (80_000, "1h 47m"),
        (82_800, "1h"),
        (0, "1d"),
    ] {
        limiter.clock().set(tollgate::Timestamp::from_secs(seconds));
        let fresh = QuotaLimiter::builder(Quota::per_day(1), 1_000_000)
            .clock(limiter.clock().clone())
            .build()
            .unwrap();
        let _ = fresh.charge("a", 1).unwrap();
        assert_eq!(
            fresh.charge("a", 1).unwrap_err().to_string(),
            format!("quota: 1/day is used up; resets in {text}")
        );
    }
}
