//! The fields of each dialect, and that no name or number breaks them.

use super::*;

fn shown(name: &str, quota: u64) -> ShownLimit<'_> {
    let decision = Decision::new(
        Outcome::Denied,
        quota,
        0,
        Duration::from_millis(1_500),
        Duration::from_secs(90),
    );
    ShownLimit::of(name, &decision).window(Duration::from_millis(100))
}

fn written(dialects: &[HeaderDialect], limits: &[ShownLimit<'_>]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    write(dialects, limits, 1_000, |name, value| {
        found.push((name.to_owned(), value.to_owned()));
    });
    found
}

fn value(dialect: HeaderDialect, limits: &[ShownLimit<'_>], name: &str) -> String {
    let found = written(&[dialect], limits);
    let one = found.into_iter().find(|(own, _)| own == name);
    one.expect("a field of the dialect").1
}

#[test]
fn each_dialect_writes_the_fields_that_it_names() {
    for dialect in HeaderDialect::ALL {
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
        value(HeaderDialect::Draft8, &limits, "ratelimit-policy"),
        r#""burst";q=5;w=1, "day";q=900;w=1"#
    );
    assert_eq!(
        value(HeaderDialect::Draft8, &limits, "ratelimit"),
        r#""burst";r=0;t=2, "day";r=0;t=2"#
    );
    assert_eq!(
        value(HeaderDialect::Draft7, &limits, "ratelimit"),
        "limit=5, remaining=0, reset=2"
    );
}

#[test]
fn dialects_are_combined_in_order() {
    let names: Vec<_> = written(
        &[HeaderDialect::Draft8, HeaderDialect::XRateLimit],
        &[shown("a", 5)],
    );
    assert_eq!(names.len(), 6);
    assert_eq!(
        names[5],
        ("x-ratelimit-reset".to_owned(), "1090".to_owned())
    );
}

#[test]
fn names_stay_apart_in_printable_ascii() {
    let policy = |name: &str| value(HeaderDialect::Draft8, &[shown(name, 5)], "ratelimit");
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
    let shown = ShownLimit::of("a", &decision).window(Duration::MAX);
    for (name, value) in written(&HeaderDialect::ALL, &[shown]) {
        let longest = value
            .split(|c: char| !c.is_ascii_digit())
            .map(str::len)
            .max();
        assert!(longest <= Some(15), "{name}: {value}");
    }
}

#[test]
fn what_limits_nothing_isnt_shown() {
    let shown = ShownLimit::of("a", &Decision::UNLIMITED);
    assert_eq!(written(&HeaderDialect::ALL, &[shown]), []);
    assert_eq!(written(&HeaderDialect::ALL, &[]), []);
}
