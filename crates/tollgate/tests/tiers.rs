//! Tenants in tiers: rate, quota and concurrency together, changed while they are used.
#![cfg(feature = "quota")]

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::quota::QuotaLimiter;
use tollgate::{Allowance, Kind, Level, Limiter, Quota, Rate, Stack, TierError, Tiers, Timestamp};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn allowance(text: &str) -> Allowance {
    text.parse().expect("an allowance")
}

/// The three tiers that most services begin with, at midnight of a day.
fn tiers() -> (Tiers<Manual, Manual>, Manual) {
    let clock = Manual::starting_at(Timestamp::ZERO + 20_000 * DAY);
    let quotas = QuotaLimiter::builder(Quota::unlimited())
        .clock(clock.clone())
        .build();
    let tiers = Tiers::builder("free", allowance("10/s burst 20, 1000/day, 5 at once"))
        .tier(
            "standard",
            allowance("100/s burst 200, 100000/day, 50 at once"),
        )
        .tier(
            "enterprise",
            allowance("1000/s burst 2000, 10000000/day, 500 at once"),
        )
        .quotas(quotas)
        .clock(clock.clone())
        .build()
        .expect("rates that fit");
    (tiers, clock)
}

/// How many requests pass one after the other.
fn passed(tiers: &Tiers<Manual, Manual>, tenant: &str, tries: usize) -> usize {
    (0..tries).filter(|_| tiers.allow(tenant).is_some()).count()
}

fn refused(tiers: &Tiers<Manual, Manual>, tenant: &str) -> (Kind, &'static str, String) {
    let verdict = tiers.check(tenant);
    let refusal = verdict.refusal().expect("refused");
    (refusal.kind, refusal.name, refusal.to_string())
}

#[test]
fn each_tier_allows_what_it_says() {
    let (tiers, clock) = tiers();
    tiers.assign("std", "standard").unwrap();
    tiers.assign("ent", "enterprise").unwrap();
    for (tenant, tier, burst, second, daily, slots) in [
        ("new", "free", 20, 10, 1_000, 5),
        ("std", "standard", 200, 100, 100_000, 50),
        ("ent", "enterprise", 2_000, 1_000, 10_000_000, 500),
    ] {
        assert_eq!(tiers.tier_of(tenant), tier);
        assert_eq!(passed(&tiers, tenant, 3_000), burst);
        let (kind, name, text) = refused(&tiers, tenant);
        assert_eq!((kind, name), (Kind::Rate, "rate"));
        assert!(
            text.starts_with("rate limit \"rate\": retry after "),
            "{text}"
        );
        clock.advance(Duration::from_secs(1));
        assert_eq!(passed(&tiers, tenant, 3_000), second);

        clock.advance(Duration::from_secs(10));
        let held: Vec<_> = (0..slots + 9).filter_map(|_| tiers.allow(tenant)).collect();
        let expected = slots.min(burst);
        assert_eq!(held.len(), expected);
        let (kind, name, text) = refused(&tiers, tenant);
        assert_eq!((kind, name), (Kind::Concurrency, "concurrency"));
        assert_eq!(
            text,
            format!("concurrency limit \"concurrency\": {slots} of {slots} in use")
        );
        drop(held);

        let used = burst + second + expected;
        let left = daily - used as u64;
        assert_eq!(tiers.quotas().peek(tenant).limit, u64::MAX);
        assert!(
            tiers
                .quotas()
                .check_with(tenant, &Quota::per_day(daily), left)
                .is_allowed()
        );
        clock.advance(Duration::from_secs(10));
        let (kind, name, text) = refused(&tiers, tenant);
        assert_eq!((kind, name), (Kind::Quota, "quota"));
        assert!(text.starts_with(&format!("quota \"quota\": 0 of {daily} left; retry after ")));
    }
}

#[test]
fn a_refusal_by_one_charges_none_of_the_others() {
    let (tiers, clock) = tiers();
    let held: Vec<_> = (0..5).map(|_| tiers.allow("a").unwrap()).collect();
    for _ in 0..100 {
        assert!(tiers.allow("a").is_none());
    }
    assert_eq!(tiers.rates().peek("a").limit, 20);
    assert_eq!(tiers.peek("a").refusal().unwrap().kind, Kind::Concurrency);
    drop(held);
    // Fifteen tokens are left of the burst, and the day has lost only five.
    assert_eq!(passed(&tiers, "a", 30), 15);
    clock.advance(DAY);
    assert_eq!(tiers.peek("a").decision().remaining, 5);
}

#[test]
fn what_a_tenant_has_spent_stays_spent_when_its_tier_changes() {
    let (tiers, clock) = tiers();
    assert_eq!(passed(&tiers, "a", 50), 20);
    tiers.assign("a", "standard").unwrap();
    assert_eq!(passed(&tiers, "a", 500), 180);
    clock.advance(Duration::from_secs(120));
    assert_eq!(passed(&tiers, "a", 500), 200);
    tiers.unassign("a");
    assert_eq!(tiers.tier_of("a"), "free");
    clock.advance(Duration::from_secs(10));
    assert_eq!(passed(&tiers, "a", 50), 20);
    // All of them count against the day, in whichever tier.
    let used = tiers.quotas().check_with("a", &Quota::per_day(1_000), 0);
    assert_eq!(used.remaining, 580);
}

#[test]
fn a_tier_that_changes_changes_for_all_its_tenants() {
    let (tiers, _clock) = tiers();
    tiers
        .set_tier("free", allowance("1/s burst 3, 1000/day, 2 at once"))
        .unwrap();
    assert_eq!(
        tiers.allowance_of("a").to_string(),
        "1/s burst 3, 1000/day, 2 at once"
    );
    let held: Vec<_> = (0..9).filter_map(|_| tiers.allow("a")).collect();
    assert_eq!(held.len(), 2);
    tiers
        .set_tier("free", allowance("1/s burst 9, 1000/day, 4 at once"))
        .unwrap();
    // The two in flight stay valid and count.
    let more: Vec<_> = (0..9).filter_map(|_| tiers.allow("a")).collect();
    assert_eq!(more.len(), 2);
    assert_eq!(tiers.slots().peek("a").in_use, 4);
}

#[test]
fn an_override_is_one_tenants_alone() {
    let (tiers, _clock) = tiers();
    tiers.set_override("a", allowance("1/h burst 1")).unwrap();
    assert_eq!((passed(&tiers, "a", 9), passed(&tiers, "b", 9)), (1, 9));
    assert_eq!(tiers.tier_of("a"), "a");
    tiers.assign("a", "free").unwrap();
    assert_eq!(tiers.tier_of("a"), "free");
}

#[test]
fn tiers_stand_in_a_stack_with_others() {
    let (tiers, clock) = tiers();
    let global = Limiter::with_clock(Rate::per_second(8), clock);
    let stack = Stack::new();
    let meet = |tenant: &str| {
        tiers.with_levels(tenant, 1, |own| {
            let mut levels = own.to_vec();
            levels.push(Level::new("global", &global));
            let verdict = stack.check(&levels);
            verdict.refusal().map(|refusal| refusal.name.to_owned())
        })
    };
    let refused: Vec<_> = (0..10).filter_map(|_| meet("a")).collect();
    assert_eq!(refused, ["global", "global"]);
    // What the global limit refused was not charged to the tenant.
    assert_eq!(passed(&tiers, "a", 30), 12);
}

#[test]
fn what_can_not_be_is_said() {
    let (tiers, _clock) = tiers();
    let unknown = tiers.assign("a", "gold").unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "no tier \"gold\"; there are enterprise, free, standard"
    );
    let few = Tiers::builder("free", allowance("1/s"))
        .max_tenants(1)
        .build()
        .unwrap();
    few.assign("a", "free").unwrap();
    few.assign("a", "free").unwrap();
    let many = few.assign("b", "free").unwrap_err();
    assert_eq!(many, TierError::TooManyTenants { most: 1 });
    let slow = Allowance::new(Rate::per_day(1).burst(10_000));
    assert!(matches!(
        tiers.set_tier("slow", slow),
        Err(TierError::Rate(_))
    ));
}

#[test]
fn an_allowance_is_text_and_back() {
    for text in [
        "10/s burst 20, 1000/day, 5 at once",
        "100/s",
        "5/m burst 1, 7 at once",
        "unlimited, 10000/month on 31 in Europe/Zurich",
    ] {
        assert_eq!(allowance(text).to_string(), text);
    }
    let error = |text: &str| text.parse::<Allowance>().unwrap_err().to_string();
    assert_eq!(
        error("10/s, many at once"),
        "\"many at once\" names no number of requests; write it as \"5 at once\""
    );
    assert_eq!(
        error("10/s, 5 at once, 6 at once"),
        "\"6 at once\" says again what was said before it"
    );
    assert!(error("10/s, 5/fortnight").starts_with("\"5/fortnight\" is no quota ("));
    assert!(error("").contains("rate"));
}
