//! Tenants in tiers: rate, quota and concurrency together, changed while they are used.
#![cfg(feature = "quota")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate::clock::Manual;
use tollgate::quota::QuotaLimiter;
use tollgate::{
    Algorithm, CompositeLimiter, FairLimiter, KeyedLimiter, Limit, Limiter, Quota, Rate,
    StoredKeyLimiter, Tier, Tiers, Timestamp,
    core::WindowAlignment,
    stack::LimitKind,
    tiers::{TierError, TierLimits, Usage},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn allowance(text: &str) -> TierLimits {
    text.parse().expect("an allowance")
}

/// The three tiers that most services begin with, at midnight of a day.
fn tiers() -> (Tiers<Manual, Manual>, Manual) {
    let clock = Manual::starting_at(Timestamp::ZERO + 20_000 * DAY);
    let quotas = QuotaLimiter::builder(Quota::unlimited(), 1_000_000)
        .clock(clock.clone())
        .build()
        .expect("what it can do");
    let tiers = Tiers::builder(
        "free",
        allowance("10/s burst 20, 1000/day, 5 concurrent"),
        1_000_000,
    )
    .tier(
        "standard",
        allowance("100/s burst 200, 100000/day, 50 concurrent"),
    )
    .tier(
        "enterprise",
        allowance("1000/s burst 2000, 10000000/day, 500 concurrent"),
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

fn refused(tiers: &Tiers<Manual, Manual>, tenant: &str) -> (LimitKind, &'static str, String) {
    let verdict = tiers.check(tenant);
    let refusal = verdict.denial().expect("refused");
    (refusal.kind, refusal.name, refusal.to_string())
}

fn used_of_rate(tiers: &Tiers<Manual, Manual>, tenant: &str) -> (u64, Option<u64>, Duration) {
    let Usage {
        used,
        limit,
        reset_after,
        resets_at,
        ..
    } = tiers.usage(tenant).rate;
    assert_eq!(resets_at, None, "a rate follows no calendar");
    (used, limit, reset_after.expect("a rate refills"))
}

fn used_of_quota(tiers: &Tiers<Manual, Manual>, tenant: &str) -> (u64, Option<u64>) {
    let usage = tiers.usage(tenant).quota.expect("a quota");
    (usage.used, usage.limit)
}

fn used_at_once(tiers: &Tiers<Manual, Manual>, tenant: &str) -> (u64, Option<u64>) {
    let usage = tiers.usage(tenant).concurrency.expect("so many concurrent");
    assert_eq!((usage.reset_after, usage.resets_at), (None, None));
    (usage.used, usage.limit)
}

/// When a tenant's quota resets: from now, and in seconds since the epoch.
fn quota_resets(tiers: &Tiers<Manual, Manual>, tenant: &str) -> (Duration, Option<u64>) {
    let usage = tiers.usage(tenant).quota.expect("a quota");
    let since_epoch = |at: SystemTime| at.duration_since(UNIX_EPOCH).expect("not before").as_secs();
    let after = usage.reset_after.expect("quotas tell");
    (after, usage.resets_at.map(since_epoch))
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
        assert_eq!((kind, name), (LimitKind::Rate, "rate"));
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
        assert_eq!((kind, name), (LimitKind::Concurrency, "concurrency"));
        assert_eq!(
            text,
            format!("concurrency limit \"concurrency\": {slots} of {slots} in use")
        );
        drop(held);

        let used = burst + second + expected;
        assert_eq!(used_of_quota(&tiers, tenant), (used as u64, Some(daily)));
        // What is left of the day is spent at any rate.
        let fast = TierLimits::new(Rate::unlimited()).quota(Quota::per_day(daily));
        tiers.set_override(tenant, fast).unwrap();
        let rest = tiers.check_n(tenant, daily - used as u64);
        assert!(rest.denial().is_none());
        tiers.assign(tenant, tier).unwrap();
        clock.advance(Duration::from_secs(10));
        let (kind, name, text) = refused(&tiers, tenant);
        assert_eq!((kind, name), (LimitKind::Quota, "quota"));
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
    assert_eq!(tiers.usage("a").rate.used, 5);
    assert_eq!(
        tiers.peek("a").denial().unwrap().kind,
        LimitKind::Concurrency
    );
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
    assert_eq!(used_of_quota(&tiers, "a"), (420, Some(1_000)));
}

#[test]
fn a_tier_that_changes_changes_for_all_its_tenants() {
    let (tiers, _clock) = tiers();
    tiers
        .set_tier("free", allowance("1/s burst 3, 1000/day, 2 concurrent"))
        .unwrap();
    assert_eq!(
        tiers.allowance_of("a").to_string(),
        "1/s burst 3, 1000/day, 2 concurrent"
    );
    let held: Vec<_> = (0..9).filter_map(|_| tiers.allow("a")).collect();
    assert_eq!(held.len(), 2);
    tiers
        .set_tier("free", allowance("1/s burst 9, 1000/day, 4 concurrent"))
        .unwrap();
    // The two in flight stay valid and count.
    let more: Vec<_> = (0..9).filter_map(|_| tiers.allow("a")).collect();
    assert_eq!(more.len(), 2);
    assert_eq!(used_at_once(&tiers, "a"), (4, Some(4)));
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
    let stack = CompositeLimiter::new();
    let meet = |tenant: &str| {
        tiers.with_limits(tenant, 1, |own| {
            let mut levels = own.to_vec();
            levels.push(Limit::new("global", &global));
            let verdict = stack.check(&levels);
            verdict.denial().map(|refusal| refusal.name.to_owned())
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
    let few = Tiers::builder("free", allowance("1/s"), 1).build().unwrap();
    few.assign("a", "free").unwrap();
    few.assign("a", "free").unwrap();
    let many = few.assign("b", "free").unwrap_err();
    assert_eq!(many, TierError::TooManyTenants { most: 1 });
    let slow = TierLimits::new(Rate::per_day(1).burst(10_000));
    assert!(matches!(
        tiers.set_tier("slow", slow),
        Err(TierError::Rate(_))
    ));
}

#[test]
fn an_allowance_is_text_and_back() {
    for text in [
        "10/s burst 20, 1000/day, 5 concurrent",
        "100/s",
        "5/m burst 1, 7 concurrent",
        "unlimited, 10000/month on 31 in Europe/Zurich",
    ] {
        assert_eq!(allowance(text).to_string(), text);
    }
    let error = |text: &str| text.parse::<TierLimits>().unwrap_err().to_string();
    assert_eq!(
        error("10/s, many concurrent"),
        "\"many concurrent\" names no number of requests; write it as \"5 concurrent\""
    );
    assert_eq!(
        error("10/s, 5 concurrent, 6 concurrent"),
        "\"6 concurrent\" repeats what an earlier part says; leave one of them out"
    );
    assert!(error("10/s, 5/fortnight").starts_with("\"5/fortnight\" is no quota ("));
    assert!(error("").contains("rate"));
}

#[test]
fn usage_tells_each_kind_by_the_tenants_own_tier_and_charges_nothing() {
    let (tiers, clock) = tiers();
    tiers.assign("a", "standard").unwrap();
    clock.advance(DAY / 4);
    let held: Vec<_> = (0..3).map(|_| tiers.allow("a").unwrap()).collect();
    let midnight = 20_001 * DAY.as_secs();
    for _ in 0..3 {
        assert_eq!(tiers.usage("a").tier, "standard");
        let pace = Duration::from_millis(30);
        assert_eq!(used_of_rate(&tiers, "a"), (3, Some(200), pace));
        assert_eq!(used_of_quota(&tiers, "a"), (3, Some(100_000)));
        assert_eq!(quota_resets(&tiers, "a"), (DAY * 3 / 4, Some(midnight)));
        assert_eq!(used_at_once(&tiers, "a"), (3, Some(50)));
    }
    drop(held);
    clock.advance(Duration::from_secs(1));
    // What is in flight ends with its request and the rate refills; the day stays spent until midnight.
    let idle = Duration::ZERO;
    assert_eq!(used_of_rate(&tiers, "a"), (0, Some(200), idle));
    assert_eq!(used_at_once(&tiers, "a"), (0, Some(50)));
    assert_eq!(used_of_quota(&tiers, "a"), (3, Some(100_000)));
    clock.advance(DAY * 3 / 4);
    assert_eq!(used_of_quota(&tiers, "a"), (0, Some(100_000)));
    assert_eq!(tiers.usage("a").quota.unwrap().remaining(), Some(100_000));
}

#[test]
fn usage_of_a_tenant_never_seen_is_the_default_tiers_and_leaves_it_unseen() {
    let (tiers, clock) = tiers();
    clock.advance(DAY / 2);
    let usage = tiers.usage("new");
    assert_eq!(usage.tier, "free");
    let nothing = (0, Some(20), Duration::ZERO);
    assert_eq!(used_of_rate(&tiers, "new"), nothing);
    assert_eq!(used_of_quota(&tiers, "new"), (0, Some(1_000)));
    // The day ends for those too who have used nothing of it.
    let midnight = 20_001 * DAY.as_secs();
    assert_eq!(quota_resets(&tiers, "new"), (DAY / 2, Some(midnight)));
    assert_eq!(used_at_once(&tiers, "new"), (0, Some(5)));
    assert_eq!(tiers.stats().quotas.keys, 0);
    assert_eq!(tiers.stats().rates.allowed, 0);
    assert_eq!(tiers.stats().concurrency.acquired, 0);
    tiers
        .set_override("roll", allowance("1/s, 5 in any 30d"))
        .unwrap();
    assert_eq!(quota_resets(&tiers, "roll"), (Duration::ZERO, None));
}

#[test]
fn usage_follows_a_tenant_into_another_tier_in_the_middle_of_a_period() {
    let (tiers, clock) = tiers();
    tiers.assign("a", "standard").unwrap();
    assert_eq!(passed(&tiers, "a", 150), 150);
    tiers.assign("a", "enterprise").unwrap();
    assert_eq!(tiers.usage("a").tier, "enterprise");
    assert_eq!(used_of_quota(&tiers, "a"), (150, Some(10_000_000)));
    let (used, limit, _) = used_of_rate(&tiers, "a");
    assert_eq!((used, limit), (150, Some(2_000)));
    // A quota of another period counts what the day has counted, and tells its own period.
    let monthly = allowance("1000/s, 200/month");
    tiers.set_override("a", monthly).unwrap();
    assert_eq!(used_of_quota(&tiers, "a"), (150, Some(200)));
    assert_eq!(tiers.usage("a").concurrency, None);
    clock.advance(Duration::from_secs(60));
    assert_eq!(passed(&tiers, "a", 100), 50);
    // It began on the fourth of October.
    let november = 20_028 * DAY.as_secs();
    assert_eq!(used_of_quota(&tiers, "a"), (200, Some(200)));
    assert_eq!(quota_resets(&tiers, "a").1, Some(november));
}

#[test]
fn usage_of_a_tenant_whose_tier_got_smaller_is_above_its_limit() {
    let (tiers, clock) = tiers();
    tiers.assign("a", "enterprise").unwrap();
    let held: Vec<_> = (0..400).map(|_| tiers.allow("a").unwrap()).collect();
    assert!(tiers.check_n("a", 1_600).denial().is_none());
    tiers.unassign("a");
    assert_eq!(used_of_quota(&tiers, "a"), (2_000, Some(1_000)));
    assert_eq!(tiers.usage("a").quota.unwrap().remaining(), Some(0));
    assert_eq!(quota_resets(&tiers, "a").0, DAY);
    assert_eq!(used_at_once(&tiers, "a"), (400, Some(5)));
    let (used, limit, reset_after) = used_of_rate(&tiers, "a");
    assert_eq!((used, limit), (20, Some(20)));
    drop(held);
    // What is told comes true.
    clock.advance(reset_after);
    assert_eq!(used_of_rate(&tiers, "a").0, 0);
    clock.advance(DAY - reset_after);
    assert_eq!(passed(&tiers, "a", 50), 20);
}

#[test]
fn usage_of_what_is_unlimited_has_no_limit() {
    let (tiers, _clock) = tiers();
    let plain = TierLimits::new(Rate::unlimited()).quota(Quota::unlimited());
    tiers.set_override("a", plain).unwrap();
    assert!(tiers.check_n("a", 1_000_000).denial().is_none());
    assert_eq!(used_of_rate(&tiers, "a"), (0, None, Duration::ZERO));
    assert_eq!(used_of_quota(&tiers, "a"), (0, None));
    assert_eq!(quota_resets(&tiers, "a"), (Duration::ZERO, None));
    let usage = tiers.usage("a");
    assert_eq!((usage.rate.remaining(), usage.concurrency), (None, None));
    assert!(!format!("{usage:?}").contains("18446744073709551615"));
}

#[test]
fn what_an_operator_does_goes_by_the_tenants_own_tier() {
    let (tiers, clock) = tiers();
    tiers.assign("a", "enterprise").unwrap();
    assert!(tiers.check_n("a", 1_500).denial().is_none());
    tiers.refund("a", 10);
    assert_eq!(used_of_rate(&tiers, "a").0, 1_490);
    assert_eq!(used_of_quota(&tiers, "a").0, 1_490);
    // By the burst of the default tier it would be empty long since, and nothing be taken.
    tiers.penalize("a", 9_999).unwrap();
    assert_eq!(used_of_rate(&tiers, "a").0, 2_000);
    tiers.block_for("a", Duration::from_secs(60)).unwrap();
    clock.advance(Duration::from_secs(59));
    let last = Duration::from_secs(1);
    assert_eq!(used_of_rate(&tiers, "a"), (2_000, Some(2_000), last));
    tiers.reset("a");
    assert_eq!(passed(&tiers, "a", 9), 9);
    assert_eq!(used_of_quota(&tiers, "a").0, 9);
}

#[test]
fn no_limit_is_shown_as_a_word() {
    let (rate, clock) = (Rate::unlimited(), Manual::new());
    let mut shown = Vec::new();
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
    ] {
        let builder = Limiter::builder(rate)
            .algorithm(algorithm)
            .clock(clock.clone());
        shown.push(format!("{builder:?}"));
        let limiter = builder.build().unwrap();
        let slot = limiter.reserve(5).unwrap();
        shown.push(format!("{limiter:?} {slot:?} {:?}", limiter.check()));
        shown.push(limiter.check().to_string());
        let builder = StoredKeyLimiter::<String>::builder(rate, 10).algorithm(algorithm);
        shown.push(format!(
            "{builder:?} {:?}",
            Tier::new(algorithm, rate).unwrap()
        ));
        let exact = builder.clock(clock.clone()).build().unwrap();
        shown.push(format!("{exact:?} {:?}", exact.check("a")));
    }
    let keyed = KeyedLimiter::builder(rate, 10);
    shown.push(format!("{keyed:?}"));
    let keyed = keyed.clock(clock.clone()).build().unwrap();
    shown.push(format!("{keyed:?} {:?}", keyed.check("a")));
    let fair = FairLimiter::builder(rate).clock(clock.clone());
    shown.push(format!("{fair:?}"));
    let fair = fair.build().unwrap();
    shown.push(format!("{fair:?} {:?}", fair.check("a")));
    let quotas = QuotaLimiter::new(Quota::unlimited(), 1_000_000);
    shown.push(format!("{quotas:?} {:?}", quotas.charge("a", 7)));
    let plain = TierLimits::new(rate).quota(Quota::unlimited());
    shown.push(format!("{plain:?} {plain}"));
    let tiers = Tiers::builder("free", plain, 1_000_000)
        .clock(clock)
        .build()
        .unwrap();
    shown.push(format!(
        "{tiers:?} {:?} {:?}",
        tiers.check("a"),
        tiers.usage("a")
    ));
    for text in shown {
        assert!(!text.contains("18446744073709551615"), "{text}");
    }
}
