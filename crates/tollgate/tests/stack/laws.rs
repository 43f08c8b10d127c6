//! Law 9 on random composites: all or none, against a twin that is charged limit by limit.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::{
    CompositeLimiter, Decision, Limit, Outcome,
    stack::{HeldPermits, LimitKind},
};

use super::world::{ALGORITHMS, Pick, STRIPED, Slot, World};

#[derive(Clone, Copy, Debug)]
enum Verb {
    Allow,
    Check,
    Peek,
    /// Ends the oldest request that holds permits.
    End,
}

#[derive(Clone, Debug)]
struct Call {
    wait: u64,
    verb: Verb,
    picks: Vec<(Pick, u64)>,
}

fn pick() -> impl Strategy<Value = Pick> {
    let quota = if cfg!(feature = "quota") { 2 } else { 0 };
    prop_oneof![
        6 => (0..=STRIPED).prop_map(Pick::Limiter),
        3 => (0..3u8).prop_map(Pick::Key),
        2 => (0..3u8).prop_map(Pick::KeyAtRate),
        6 => (0..ALGORITHMS.len(), 0..3u8).prop_map(|(index, key)| Pick::Exact(index, key)),
        2 => Just(Pick::Slots),
        2 => (0..3u8).prop_map(Pick::KeySlots),
        quota => (0..3u8).prop_map(Pick::Quota),
    ]
}

fn step() -> impl Strategy<Value = Call> {
    let cost = prop_oneof![
        8 => 1..4u64,
        1 => Just(0),
        1 => Just(7),
        1 => prop_oneof![Just(1_000u64), Just(u64::MAX)],
    ];
    let verb = prop_oneof![
        4 => Just(Verb::Allow),
        4 => Just(Verb::Check),
        1 => Just(Verb::Peek),
        2 => Just(Verb::End),
    ];
    let wait = prop_oneof![Just(0), 0..300_000_000u64, 0..3_000_000_000u64];
    let picks = prop::collection::vec((pick(), cost), 0..6);
    (wait, verb, picks).prop_map(|(wait, verb, mut picks)| {
        // One state once: twice would be two costs.
        let mut seen = Vec::new();
        picks.retain(|(pick, _)| {
            let new = !seen.contains(&pick.state());
            seen.push(pick.state());
            new
        });
        Call { wait, verb, picks }
    })
}

fn wait_of(decision: &Decision) -> Duration {
    match decision.outcome {
        Outcome::Never => Duration::MAX,
        _ => decision.wait_or_max(),
    }
}

/// The separate decisions of the limits: the worst denial, by index; else nothing.
fn alone(twin: &World, picks: &[(Pick, u64)]) -> Option<(usize, Option<Decision>)> {
    let mut worst: Option<(usize, Duration, Option<Decision>)> = None;
    for (index, &(pick, cost)) in picks.iter().enumerate() {
        let left = twin.peek(pick);
        // A cost of 0 passes unless there is debt.
        let passes = match cost {
            0 => left.is_allowed(),
            _ => cost <= left.remaining,
        };
        if passes {
            continue;
        }
        // A refusal changes nothing, so the twin may be asked.
        let (wait, said) = if pick.kind() == LimitKind::Concurrency {
            let never = cost > left.limit;
            let longest = Duration::MAX;
            (if never { longest } else { Duration::ZERO }, None)
        } else {
            let said = twin.charge(pick, cost).0;
            assert!(!said.is_allowed(), "{pick:?} {cost} {left:?}");
            (wait_of(&said), Some(said))
        };
        if worst.is_none_or(|(_, longest, _)| wait > longest) {
            worst = Some((index, wait, said));
        }
    }
    worst.map(|(index, _, said)| (index, said))
}

/// What is left of the tightest, after the charge.
fn tightest<'a>(
    twin: &'a World,
    picks: &[(Pick, u64)],
    slots: &mut Vec<Slot<'a>>,
) -> Option<Decision> {
    let mut tightest: Option<(u64, Decision)> = None;
    for &(pick, cost) in picks {
        let (said, slot) = twin.charge(pick, cost);
        assert!(said.is_allowed(), "{pick:?} {cost} {said:?}");
        slots.extend(slot);
        let requests = said.remaining / cost.max(1);
        if tightest.is_none_or(|(fewest, _)| requests < fewest) {
            tightest = Some((requests, said));
        }
    }
    tightest.map(|(_, said)| said)
}

fn same_everywhere(it: &World, twin: &World) -> Result<(), TestCaseError> {
    let mut all = vec![Pick::Slots];
    all.extend((0..=STRIPED).map(Pick::Limiter));
    for key in 0..3 {
        all.extend([Pick::Key(key), Pick::KeyAtRate(key), Pick::KeySlots(key)]);
        all.extend((0..ALGORITHMS.len()).map(|index| Pick::Exact(index, key)));
        if cfg!(feature = "quota") {
            all.push(Pick::Quota(key));
        }
    }
    for pick in all {
        prop_assert_eq!(it.peek(pick), twin.peek(pick), "{:?}", pick);
    }
    Ok(())
}

fn run(count: u64, steps: &[Call]) -> Result<(), TestCaseError> {
    let (it, twin, stack) = (
        World::new(count),
        World::new(count),
        CompositeLimiter::new(),
    );
    let names = ["0", "1", "2", "3", "4", "5"];
    // What levels borrow lives as long as the passes.
    let owners: Vec<Vec<_>> = steps
        .iter()
        .map(|step| step.picks.iter().map(|(pick, _)| it.owner(*pick)).collect())
        .collect();
    let mut running: Vec<(HeldPermits, Vec<Slot<'_>>)> = Vec::new();
    for (step, owners) in steps.iter().zip(&owners) {
        it.advance(step.wait);
        twin.advance(step.wait);
        let picks = &step.picks;
        let levels: Vec<Limit<'_>> = picks
            .iter()
            .zip(owners)
            .zip(names)
            .map(|((&(pick, cost), owner), name)| it.level(pick, name, owner).cost(cost))
            .collect();
        let expect = alone(&twin, picks);
        match step.verb {
            Verb::End => {
                if !running.is_empty() {
                    let (pass, slots) = running.remove(0);
                    pass.success();
                    slots.into_iter().for_each(Slot::success);
                }
            }
            Verb::Peek => {
                let verdict = stack.peek(&levels);
                prop_assert_eq!(verdict.denial().is_none(), expect.is_none());
            }
            Verb::Allow => {
                let pass = stack.allow(&levels);
                prop_assert_eq!(pass.is_some(), expect.is_none(), "{:?}", picks);
                if let Some(pass) = pass {
                    let mut slots = Vec::new();
                    tightest(&twin, picks, &mut slots);
                    running.push((pass, slots));
                }
            }
            Verb::Check => {
                let verdict = stack.check(&levels);
                prop_assert_eq!(verdict.denial().is_none(), expect.is_none(), "{:?}", picks);
                if let Some((index, said)) = expect {
                    let refusal = *verdict.denial().expect("refused");
                    prop_assert_eq!(refusal.name, names[index], "{:?}", picks);
                    prop_assert_eq!(refusal.kind, picks[index].0.kind());
                    prop_assert_eq!(&refusal.decision, verdict.decision());
                    if let Some(said) = said {
                        prop_assert_eq!(refusal.decision, said, "{:?}", picks[index]);
                    }
                    prop_assert!(verdict.allowed().is_none());
                    same_everywhere(&it, &twin)?;
                    after_waiting(&it, &twin, &stack, (picks, &levels), &refusal.decision)?;
                } else {
                    let mut slots = Vec::new();
                    let said = tightest(&twin, picks, &mut slots);
                    if let Some(said) = said {
                        prop_assert_eq!(*verdict.decision(), said, "{:?}", picks);
                    }
                    running.push((verdict.allowed().expect("allowed").permits, slots));
                }
            }
        }
        same_everywhere(&it, &twin)?;
    }
    prop_assert_eq!(stack.lost_races(), 0);
    drop(running);
    prop_assert_eq!(it.slots.peek().in_use, 0);
    Ok(())
}

/// A request that waits for the reported time passes, unless permits are still taken.
fn after_waiting(
    it: &World,
    twin: &World,
    stack: &CompositeLimiter,
    (picks, levels): (&[(Pick, u64)], &[Limit<'_>]),
    said: &Decision,
) -> Result<(), TestCaseError> {
    if said.outcome == Outcome::Never {
        return Ok(());
    }
    for world in [it, twin] {
        world.clock.advance(said.wait_or_max());
    }
    let timed: Vec<Limit<'_>> = picks
        .iter()
        .zip(levels)
        .filter(|((pick, _), _)| pick.kind() != LimitKind::Concurrency)
        .map(|(_, level)| level.clone())
        .collect();
    let verdict = stack.peek(&timed);
    prop_assert!(
        verdict.denial().is_none(),
        "{:?} {:?}",
        picks,
        verdict.denial()
    );
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(300))]

    #[test]
    fn all_or_none(count in 1..9u64, steps in prop::collection::vec(step(), 1..60)) {
        run(count, &steps)?;
    }
}

#[test]
fn a_request_that_meets_no_limit_passes() {
    let stack = CompositeLimiter::new();
    assert!(stack.allow(&[]).is_some());
    let verdict = stack.check(&[]);
    assert_eq!(*verdict.decision(), Decision::UNLIMITED);
    assert!(stack.peek(&[]).denial().is_none());
}

#[test]
fn a_cost_of_nothing_takes_no_slot_and_needs_none() {
    let (slots, stack) = (
        Arc::new(tollgate::ConcurrencyLimiter::new(2)),
        CompositeLimiter::new(),
    );
    let keyed = Arc::new(tollgate::KeyedConcurrencyLimiter::<u8>::new(2, 4));
    let taken = (slots.try_acquire_n(2), keyed.key(&1).try_acquire_n(2));
    // More is in use than there is room for now.
    slots.set_limit(1);
    keyed.set_limit(1);
    let key = keyed.key_owned(&1);
    for level in [Limit::new("slots", &slots), Limit::new("key", &key)] {
        let levels = [level.cost(0)];
        assert!(stack.peek(&levels).denial().is_none());
        assert!(stack.check(&levels).denial().is_none());
        assert!(stack.allow(&levels).is_some());
        assert!(stack.hold(&levels, Duration::from_secs(1)).is_ok());
    }
    assert_eq!(stack.lost_races(), 0);
    drop(taken);
    assert_eq!((slots.peek().in_use, slots.stats().cancelled), (0, 0));
}
