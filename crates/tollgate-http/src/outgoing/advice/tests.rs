//! Responses of servers, friendly and hostile, and the advice that is read from them.

use super::*;

const NOW: u64 = 1_700_000_000;

fn read(status: u16, fields: &[(&str, &str)]) -> ServerAdvice {
    ServerAdvice::read(status, NOW, ResetMeaning::Guess, |name| {
        let own = fields.iter().filter(move |(own, _)| *own == name);
        own.map(|(_, value)| value.as_bytes())
    })
}

fn left(remaining: u64, quota: Option<u64>, more_after: u64) -> Option<RemainingQuota> {
    Some(RemainingQuota {
        remaining,
        quota,
        refill_after: Duration::from_secs(more_after),
    })
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let rows = [
        ("120", Some(120)),
        (" 7 ", Some(7)),
        ("0", Some(0)),
        ("1.5", Some(2)),
        ("Tue, 14 Nov 2023 22:14:20 GMT", Some(60)),
        ("Tuesday, 14-Nov-23 22:14:20 GMT", Some(60)),
        ("Tue Nov 14 22:14:20 2023", Some(60)),
        // A time in the past.
        ("Tue, 14 Nov 2022 22:14:20 GMT", None),
        ("Mon, 14 Nov 2022 22:14:20 GMT", Some(0)),
        ("99999999999999999999", Some(u64::MAX)),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("Tue, 99 Nov 2023 22:14:20 GMT", None),
    ];
    for (value, expect) in rows {
        let advice = read(429, &[("retry-after", value)]);
        assert!(advice.is_denial);
        let expect = expect.map(Duration::from_secs);
        assert_eq!(advice.retry_after, expect, "{value}");
    }
}

#[test]
fn dates_are_compared_with_the_clock_that_wrote_them() {
    let fields = [
        ("date", "Tue, 14 Nov 2023 12:00:00 GMT"),
        ("retry-after", "Tue, 14 Nov 2023 12:00:09 GMT"),
    ];
    let advice = read(503, &fields);
    assert_eq!(advice.retry_after, Some(Duration::from_secs(9)));
    assert!(advice.is_denial);
    assert!(!read(503, &[]).is_denial, "of another reason");
    assert!(!read(200, &fields).is_denial);
}

/// Fields, the remaining quota that they state, and the interval of its limit in milliseconds.
type Row<'a> = (
    &'a [(&'a str, &'a str)],
    Option<RemainingQuota>,
    Option<u64>,
);

#[test]
fn every_dialect_is_read() {
    let epoch = (NOW + 90).to_string();
    let past = (NOW - 90).to_string();
    let rows: [Row<'_>; 11] = [
        (
            &[("ratelimit", "\"a\";r=50;t=30")],
            left(50, None, 30),
            None,
        ),
        (
            &[
                ("ratelimit", "\"burst\";r=50;t=30, \"daily\";r=1;t=3600"),
                ("ratelimit-policy", "\"burst\";q=100;w=60"),
                ("ratelimit-policy", "\"daily\";q=1000;w=86400;pk=:eA==:"),
            ],
            left(1, Some(1_000), 3_600),
            Some(86_400),
        ),
        (
            &[("ratelimit", "\"a\";r=1;t=999, \"b\";r=0;t=2")],
            left(0, None, 2),
            None,
        ),
        (
            &[
                ("ratelimit", "limit=100, remaining=50, reset=30"),
                ("ratelimit-policy", "100;w=60"),
            ],
            left(50, Some(100), 30),
            Some(600),
        ),
        (
            &[
                ("ratelimit-limit", "100"),
                ("ratelimit-remaining", "4"),
                ("ratelimit-reset", "30"),
                ("ratelimit-policy", "100;w=60, 5000;w=3600"),
            ],
            left(4, Some(100), 30),
            Some(600),
        ),
        (
            &[
                ("x-ratelimit-limit", "3, 3;w=3600"),
                ("x-ratelimit-remaining", "2"),
                ("x-ratelimit-reset", "1200"),
            ],
            left(2, Some(3), 1_200),
            Some(1_200_000),
        ),
        (
            &[
                ("x-ratelimit-limit", "60"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", &epoch),
            ],
            left(0, Some(60), 90),
            None,
        ),
        (
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", &past)],
            left(0, None, 0),
            None,
        ),
        // The newer dialect counts.
        (
            &[
                ("ratelimit", "\"a\";r=9;t=1"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "999"),
            ],
            left(9, None, 1),
            None,
        ),
        (&[("ratelimit", "\"a\";r=-1;t=5")], None, None),
        (
            &[("ratelimit", "what?"), ("x-ratelimit-reset", "9")],
            None,
            None,
        ),
    ];
    for (fields, left, interval) in rows {
        let advice = read(200, fields);
        let interval = interval.map(Duration::from_millis);
        assert_eq!(
            (advice.left, advice.interval),
            (left, interval),
            "{fields:?}"
        );
    }
}

#[test]
fn what_a_reset_means_can_be_said() {
    let reset = |reset, value: &'static str| {
        let advice = ServerAdvice::read(200, NOW, reset, |name| {
            let value = match name {
                "x-ratelimit-remaining" => Some("0"),
                "x-ratelimit-reset" => Some(value),
                _ => None,
            };
            value.map(str::as_bytes).into_iter()
        });
        advice.left.map(|left| left.refill_after.as_secs())
    };
    assert_eq!(
        reset(ResetMeaning::Delta, "1700000060"),
        Some(1_700_000_060)
    );
    assert_eq!(reset(ResetMeaning::Epoch, "1700000060"), Some(60));
    assert_eq!(reset(ResetMeaning::Epoch, "60"), Some(0));
    assert_eq!(reset(ResetMeaning::Guess, "60"), Some(60));
    assert_eq!(reset(ResetMeaning::Guess, "1700000060"), Some(60));
}

#[test]
fn hostile_fields_say_nothing_or_little() {
    let many = "\"p\";q=1;w=1,".repeat(20_000);
    let quote = format!("\"{}", "a,".repeat(30_000));
    let rows: [&[(&str, &str)]; 5] = [
        &[("ratelimit", &many), ("ratelimit-policy", &many)],
        &[("ratelimit", &quote), ("retry-after", &quote)],
        &[
            ("ratelimit", "\u{1f980};r=\u{1f980}"),
            ("date", "\u{1f980}"),
        ],
        &[
            ("ratelimit", "r=1;t=1;r;t;=;;=;"),
            ("ratelimit-policy", ";;;"),
        ],
        &[
            ("ratelimit-remaining", "NaN"),
            ("x-ratelimit-remaining", "-0"),
        ],
    ];
    for fields in rows {
        assert_eq!(read(200, fields).left, None);
    }
    let zero = [
        ("ratelimit", "\"p\";r=3;t=9"),
        ("ratelimit-policy", "\"p\";q=0;w=9"),
    ];
    assert_eq!(read(200, &zero).interval, Some(Duration::from_secs(9)));
}
