//! Lost races: a limit that had room at the peek denies the charge. Everything charged before it is refunded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    CompositeLimiter, ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedLimiter, Limit, Limiter,
    Rate, WhenFull,
    concurrency::{CompletedCall, PermitObserver},
    stack::LimitKind,
};

use super::world::{ALGORITHMS, Pick, START, STRIPED, World};

/// How a limit that looks free comes to deny.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loses {
    /// A table of keys at its cap: a new key looks as one never seen.
    FullTable,
    /// A quota at its cap.
    #[cfg(feature = "quota")]
    FullQuota,
    /// One permit of a key for two limits.
    KeySlotTwice,
    /// One token for two levels.
    SharedTwice,
    /// One permit for two limits.
    SlotTwice,
}

const LOSES: &[Loses] = &[
    Loses::FullTable,
    #[cfg(feature = "quota")]
    Loses::FullQuota,
    Loses::KeySlotTwice,
    Loses::SharedTwice,
    Loses::SlotTwice,
];

#[derive(Default)]
struct Told(AtomicU64);

impl PermitObserver for Told {
    fn on_completed(&self, _ended: &CompletedCall) -> Option<u32> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Every level there is that keeps a state.
fn others() -> Vec<Pick> {
    let mut all = vec![
        Pick::Key(0),
        Pick::KeyAtRate(1),
        Pick::Slots,
        Pick::KeySlots(0),
    ];
    all.extend((0..=STRIPED).map(Pick::Limiter));
    all.extend((0..ALGORITHMS.len()).map(|index| Pick::Exact(index, 0)));
    if cfg!(feature = "quota") {
        all.push(Pick::Quota(0));
    }
    all
}

/// Both worlds go on alike.
fn same_from_now_on(it: &World, twin: &World, picks: &[Pick]) {
    for round in 0..30u64 {
        for &pick in picks {
            assert_eq!(it.peek(pick), twin.peek(pick), "{pick:?}");
            let cost = 1 + round % 3;
            let (own, other) = (it.charge(pick, cost), twin.charge(pick, cost));
            assert_eq!(own.0, other.0, "{pick:?} {round}");
            assert_eq!(own.1.is_some(), other.1.is_some());
        }
        it.advance(77_000_000 * (round % 4));
        twin.advance(77_000_000 * (round % 4));
    }
}

/// A composite of all other limits and, among them, one that denies the charge.
fn lose(loses: Loses, place: usize, used: u64, holds: bool) {
    let (it, twin, stack) = (World::new(5), World::new(5), CompositeLimiter::new());
    let picks = others();
    for world in [&it, &twin] {
        for &pick in &picks {
            for _ in 0..used {
                drop(world.charge(pick, 1));
            }
        }
        world.advance(130_000_000);
    }
    let clock = Manual::starting_at(START);
    let hourly = Rate::per_hour(1);
    let table = KeyedLimiter::builder(hourly, 1)
        .at_cap(WhenFull::DenyNew)
        .clock(clock.clone())
        .build()
        .expect("a rate that fits");
    // More than there is room for, with the stash.
    let denied = (0..10_000u32).filter(|key| !table.allow(key)).last();
    let full_key = table.key(&denied.expect("a cap"));
    #[cfg(feature = "quota")]
    let quota = tollgate::QuotaLimiter::builder(tollgate::Quota::per_day(3), 1)
        .clock(clock.clone())
        .build()
        .expect("what it can do");
    #[cfg(feature = "quota")]
    assert!(quota.check("first").is_allowed());
    #[cfg(feature = "quota")]
    let quota_key = quota.key("second");
    let told = Arc::new(Told::default());
    let seats = Arc::new(KeyedConcurrencyLimiter::<u32>::new(1, 4));
    let seat = seats.key_owned(&7);
    let shared = Limiter::builder(hourly)
        .clock(clock)
        .build()
        .expect("a rate that fits");
    let slot = ConcurrencyLimiter::builder(1)
        .observer(Arc::clone(&told))
        .build();
    let slot = Arc::new(slot);

    let owners: Vec<_> = picks.iter().map(|pick| it.owner(*pick)).collect();
    let mut levels: Vec<Limit<'_>> = picks
        .iter()
        .zip(&owners)
        .map(|(&pick, owner)| it.level(pick, "other", owner))
        .collect();
    let (loser, kind) = match loses {
        Loses::FullTable => (Limit::new("loser", &full_key), LimitKind::Rate),
        #[cfg(feature = "quota")]
        Loses::FullQuota => (Limit::new("loser", &quota_key), LimitKind::Quota),
        Loses::KeySlotTwice => (Limit::new("loser", &seat), LimitKind::Concurrency),
        Loses::SharedTwice => (Limit::new("loser", &shared), LimitKind::Rate),
        Loses::SlotTwice => (Limit::new("loser", &slot), LimitKind::Concurrency),
    };
    let twice = [Loses::SharedTwice, Loses::SlotTwice, Loses::KeySlotTwice];
    if twice.contains(&loses) {
        levels.insert(0, loser.clone());
    } else {
        levels.push(Limit::new("slot", &slot));
    }
    levels.insert(place.min(levels.len()), loser);

    assert!(stack.peek(&levels).denial().is_none(), "{loses:?}");
    if holds {
        let refusal = stack
            .hold(&levels, Duration::from_secs(9))
            .expect_err("refused");
        assert_eq!((refusal.name, refusal.kind), ("loser", kind));
        assert_eq!(stack.lost_races(), 1);
    } else {
        assert!(stack.allow(&levels).is_none());
        assert_eq!(stack.lost_races(), 1);
        let verdict = stack.check(&levels);
        let refusal = verdict.denial().expect("refused");
        assert_eq!((refusal.name, refusal.kind), ("loser", kind));
        assert_eq!(stack.lost_races(), 2);
    }
    assert_eq!(seats.len(), 0);
    assert_eq!((slot.peek().in_use, it.slots.peek().in_use), (0, 0));
    assert_eq!(told.0.load(Ordering::Relaxed), 0);
    assert_eq!(shared.peek().remaining, 1);
    same_from_now_on(&it, &twin, &picks);
}

#[test]
fn what_was_charged_before_comes_back() {
    for &loses in LOSES {
        for place in [0, 1, 7, 12, usize::MAX] {
            for used in [0, 1, 3] {
                lose(loses, place, used, false);
            }
        }
    }
}

#[test]
fn what_was_held_before_comes_back() {
    for &loses in LOSES {
        for place in [0, 1, 7, 12, usize::MAX] {
            for used in [0, 1, 3] {
                lose(loses, place, used, true);
            }
        }
    }
}
