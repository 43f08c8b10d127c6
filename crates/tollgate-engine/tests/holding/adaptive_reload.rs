//! A reload while requests are in flight: their permits stay valid, and nothing leaks, in any order of events.

use std::collections::VecDeque;

use tollgate::clock::Manual;
use tollgate::concurrency::PermitOutcome;
use tollgate_engine::Facts;
use tollgate_engine::engine::AdaptiveState;
use tollgate_engine::verdict::Permits;

use super::{TestEngine, engine, policy};

const LAWS: [&str; 3] = ["gradient2", "little", "aimd"];

fn api(law: &str, min: u32, max: u32) -> String {
    format!("limits: [{{name: api, concurrency: {{adaptive: {law}, min: {min}, max: {max}}}}}]")
}

fn state(engine: &TestEngine) -> Option<AdaptiveState> {
    let states = engine.limiter_states();
    let mut adaptive = states.iter().filter_map(|state| state.adaptive);
    adaptive.next()
}

fn held(engine: &TestEngine, most: usize) -> Vec<Permits> {
    let facts = Facts::new();
    let each = (0..most).map_while(|_| engine.decide(&facts).allowed());
    each.map(|passed| passed.into_permits()).collect()
}

fn reload(engine: &TestEngine, text: &str) {
    engine.reload(policy(text)).expect("a policy");
}

#[test]
fn another_law_goes_on_from_the_limit_with_all_who_are_inside() {
    let clock = Manual::new();
    let engine = engine(&api("aimd", 5, 200), &clock);
    let first = held(&engine, 12);
    reload(&engine, &api("gradient2", 5, 200));
    let now = state(&engine).expect("it adapts");
    assert_eq!((now.limit, now.in_flight), (20, 12));
    let more = held(&engine, 100);
    assert_eq!(more.len(), 8);
    // Those who entered by the law before tell the one that is in force.
    clock.advance(std::time::Duration::from_millis(10));
    for permits in first.into_iter().chain(more) {
        permits.end(PermitOutcome::Success);
    }
    assert_eq!(state(&engine).map(|now| now.in_flight), Some(0));
}

#[test]
fn other_bounds_hold_at_once() {
    let clock = Manual::new();
    let engine = engine(&api("little", 5, 200), &clock);
    let inside = held(&engine, 20);
    reload(&engine, &api("little", 2, 8));
    let now = state(&engine).expect("it adapts");
    assert_eq!((now.limit, now.in_flight), (8, 20), "nobody is thrown out");
    assert!(held(&engine, 1).is_empty());
    drop(inside);
    assert_eq!(held(&engine, 100).len(), 8);
    reload(&engine, &api("little", 50, 80));
    assert_eq!(state(&engine).map(|now| now.limit), Some(50));
    // A policy that can't be put in force changes nothing.
    let mut wrong = policy(&api("little", 1, 9));
    wrong.rules[0].replaces.push("nobody".to_owned());
    assert!(engine.reload(wrong).is_err());
    assert_eq!(state(&engine).map(|now| now.limit), Some(50));
}

#[test]
fn those_inside_of_a_rule_that_is_gone_are_inside_when_it_comes_back() {
    let clock = Manual::new();
    let engine = engine(&api("aimd", 5, 200), &clock);
    let inside = held(&engine, 20);
    reload(&engine, "limits: [{name: other, rate: 1000/s}]");
    assert!(state(&engine).is_none());
    let beside = held(&engine, 5);
    assert!(beside.iter().all(Permits::is_empty));
    reload(&engine, &api("aimd", 5, 200));
    assert_eq!(state(&engine).map(|now| now.in_flight), Some(20));
    assert!(held(&engine, 100).is_empty());
    drop(inside);
    assert_eq!(state(&engine).map(|now| now.in_flight), Some(0));
    assert_eq!(held(&engine, 100).len(), 20);
}

#[test]
fn slots_of_a_policy_and_of_a_law_are_counted_apart() {
    let clock = Manual::new();
    let engine = engine("limits: [{name: api, concurrency: 20}]", &clock);
    let inside = held(&engine, 20);
    reload(&engine, &api("aimd", 5, 200));
    assert_eq!(held(&engine, 100).len(), 20);
    reload(&engine, "limits: [{name: api, concurrency: 20}]");
    assert!(
        held(&engine, 100).is_empty(),
        "those of the first policy are still inside"
    );
    drop(inside);
    assert_eq!(held(&engine, 100).len(), 20);
}

#[test]
fn nothing_leaks_after_ten_thousand_random_steps() {
    let clock = Manual::new();
    let both = |law: usize, max: usize| {
        format!(
            "limits:\n- {{name: api, concurrency: {{adaptive: {law}, max: {max}}}, shed: priority}}\n\
             - {{name: calls, key: user, rate: 50/s, concurrency: {{adaptive: aimd, max: 30}}}}\n",
            law = LAWS[law % LAWS.len()]
        )
    };
    let engine = engine(&both(0, 40), &clock);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).expect("below a usize")
    };
    let mut running: VecDeque<Permits> = VecDeque::new();
    for step in 0..10_000_usize {
        match next(20) {
            0..=9 => {
                let class = ["critical", "default", "sheddable", "?"][next(4)];
                let user = ["ada", "bob"][next(2)];
                let facts = Facts::new().with("priority", class).with("user", user);
                let passed = engine.decide(&facts).allowed();
                running.extend(passed.map(|passed| passed.into_permits()));
            }
            kind @ 10..=17 => {
                let place = next(running.len().max(1));
                if let Some(permits) = running.swap_remove_back(place) {
                    match kind {
                        10..=13 => permits.end(PermitOutcome::Success),
                        14 => permits.end(PermitOutcome::Dropped),
                        15 => permits.end(PermitOutcome::Ignored),
                        16 => permits.cancel(),
                        _ => drop(permits),
                    }
                }
            }
            18 => clock.advance(std::time::Duration::from_micros(1 + next(50_000) as u64)),
            _ if step % 50 == 0 => reload(&engine, &both(step, 20 + next(40))),
            _ => {}
        }
        for now in engine
            .limiter_states()
            .iter()
            .filter_map(|state| state.adaptive)
        {
            let AdaptiveState {
                limit,
                in_flight,
                adaptive,
                ..
            } = now;
            assert!((adaptive.min..=adaptive.max).contains(&limit), "{now:?}");
            assert_eq!(in_flight as usize, running.len(), "step {step}");
        }
    }
    assert!(!running.is_empty(), "some still run");
    running.clear();
    let states = engine.limiter_states();
    let inside: Vec<_> = states
        .iter()
        .filter_map(|state| Some(state.adaptive?.in_flight))
        .collect();
    assert_eq!(inside, [0, 0]);
}
