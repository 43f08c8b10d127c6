//! `concurrency: {adaptive: …}`: the limit follows the latencies and outcomes of requests, and nothing leaks.

use std::time::Duration;

use tollgate::Clock;
use tollgate::clock::Manual;
use tollgate::concurrency::PermitOutcome;
use tollgate_adaptive::AdaptiveAlgorithm;
use tollgate_engine::engine::AdaptiveState;
use tollgate_engine::verdict::{Cause, DenyReason, Permits};
use tollgate_engine::{Engine, Facts, Policy, PolicyError, RequestDecision};

use super::tasks::Tasks;
use super::{TestEngine, engine, policy};

const MS: Duration = Duration::from_millis(1);

/// How the first limit that adapts is now.
fn state(engine: &TestEngine) -> AdaptiveState {
    let states = engine.limiter_states();
    let mut adaptive = states.iter().filter_map(|state| state.adaptive);
    adaptive.next().expect("a rule that adapts")
}

fn permits(verdict: RequestDecision<'_>) -> Option<Permits> {
    verdict.allowed().map(|passed| passed.into_permits())
}

/// As many as may run at once do, round after round, each for so long; the lowest limit of all rounds.
fn rounds(
    engine: &TestEngine,
    clock: &Manual,
    count: usize,
    (latency, ending): (Duration, PermitOutcome),
) -> u32 {
    let facts = Facts::new();
    let mut lowest = u32::MAX;
    for _ in 0..count {
        let held: Vec<_> = (0..1_000)
            .map_while(|_| permits(engine.decide(&facts)))
            .collect();
        assert!(!held.is_empty(), "one passes always");
        let AdaptiveState {
            limit, adaptive, ..
        } = state(engine);
        assert!((adaptive.min..=adaptive.max).contains(&limit), "{limit}");
        clock.advance(latency);
        for permits in held {
            permits.end(ending);
        }
        assert_eq!(state(engine).in_flight, 0);
        lowest = lowest.min(state(engine).limit);
    }
    lowest
}

fn adaptive(law: AdaptiveAlgorithm) -> String {
    format!("limits: [{{name: api, concurrency: {{adaptive: {law}, min: 5, max: 200}}}}]")
}

#[test]
fn every_law_stays_within_its_bounds_and_falls_when_requests_get_slow_and_are_dropped() {
    for law in AdaptiveAlgorithm::ALL {
        let clock = Manual::new();
        let engine = engine(&adaptive(law), &clock);
        assert_eq!(
            (state(&engine).limit, state(&engine).adaptive.algorithm),
            (20, law)
        );
        rounds(&engine, &clock, 300, (10 * MS, PermitOutcome::Success));
        let calm = state(&engine).limit;
        // Some get used to it after a while, and grow again.
        let bad = rounds(&engine, &clock, 300, (1_000 * MS, PermitOutcome::Dropped));
        // That one goes by how many are done at once, and all are.
        if law != AdaptiveAlgorithm::Bbr {
            assert!(bad < calm, "{law}: {calm} → {bad}");
        }
    }
}

#[test]
fn the_limit_falls_when_latency_rises_and_comes_back() {
    let clock = Manual::new();
    let engine = engine(&adaptive(AdaptiveAlgorithm::Gradient2), &clock);
    // A backend that serves eight at once, in 10 ms each: what is beyond them waits.
    let serve = |rounds: usize, capacity: usize| {
        let facts = Facts::new();
        for _ in 0..rounds {
            let held: Vec<_> = (0..500)
                .map_while(|_| permits(engine.decide(&facts)))
                .collect();
            let mut held = held.into_iter().peekable();
            while held.peek().is_some() {
                clock.advance(10 * MS);
                for permits in held.by_ref().take(capacity) {
                    permits.end(PermitOutcome::Success);
                }
            }
        }
        state(&engine).limit
    };
    let alone = serve(50, 1_000);
    assert!(alone > 20, "nothing queues, so it grows: {alone}");
    let halved = serve(200, 4);
    assert!(halved < alone / 2, "{alone} → {halved}");
    let again = serve(200, 1_000);
    assert!(again > halved, "{halved} → {again}");
}

#[test]
fn what_is_refused_is_shed_by_the_rule_and_charges_nothing() {
    let clock = Manual::new();
    let text = "
limits:
- {name: calls, key: user, rate: 100/h}
- {name: api, concurrency: {adaptive: aimd, max: 2}}
";
    let engine = engine(text, &clock).with_counters(10);
    let facts = Facts::new().with("user", "ada");
    let held: Vec<_> = (0..2).map(|_| engine.decide(&facts)).collect();
    assert_eq!(held[1].cause(), Cause::Rule("api"));
    assert_eq!(
        (held[1].decision().limit, held[1].decision().remaining),
        (2, 0)
    );
    let verdict = engine.decide(&facts);
    let refused = verdict.denied().expect("two run");
    assert_eq!(refused.cause(), Cause::Rule("api"));
    assert_eq!(refused.reason(), Some(DenyReason::Shed));
    assert_eq!(
        refused
            .limit()
            .map(|limit| limit.kind().to_string())
            .as_deref(),
        Some("1 to 2 concurrent by aimd")
    );
    assert!(refused.decision().wait_or_max().is_zero());
    drop((verdict, held));
    assert_eq!(engine.remaining(&facts)[0].decision.remaining, 98);
    let tallies = engine.counters();
    let api = tallies
        .iter()
        .find(|tally| &*tally.limiter == "api")
        .expect("it counts");
    assert_eq!(
        (
            api.allowed,
            api.denied(DenyReason::Shed),
            api.denied_total()
        ),
        (2, 1, 1)
    );
}

#[test]
fn a_request_that_another_rule_refuses_leaves_the_gate_as_if_it_had_never_come() {
    let clock = Manual::new();
    let text = "
limits:
- {name: calls, rate: 1/h}
- {name: api, concurrency: {adaptive: gradient2, min: 5, max: 200}}
";
    let engine = engine(text, &clock);
    let facts = Facts::new();
    assert!(engine.decide(&facts).allowed().is_some());
    for _ in 0..100 {
        let verdict = engine.decide(&facts);
        assert_eq!(verdict.cause(), Cause::Rule("calls"));
        assert_eq!(state(&engine).in_flight, 0);
    }
    assert_eq!(
        state(&engine).limit,
        20,
        "nothing was learnt of what never ran"
    );
}

#[test]
fn two_limits_that_adapt_are_entered_both_or_neither() {
    let clock = Manual::new();
    let text = "
limits:
- {name: wide, concurrency: {adaptive: aimd, min: 9, max: 9}}
- {name: narrow, match: {path: /slow}, concurrency: {adaptive: aimd, min: 2, max: 2}}
";
    let engine = engine(text, &clock);
    let both = || {
        let states = engine.limiter_states();
        let each = states.iter().filter_map(|state| state.adaptive);
        each.map(|now| now.in_flight).collect::<Vec<_>>()
    };
    let (slow, fast) = (Facts::new().with("path", "/slow"), Facts::new());
    let held: Vec<_> = (0..5)
        .map_while(|_| permits(engine.decide(&slow)))
        .collect();
    assert_eq!((held.len(), both()), (2, vec![2, 2]));
    assert_eq!(engine.decide(&slow).cause(), Cause::Rule("narrow"));
    assert_eq!(both(), [2, 2]);
    let more: Vec<_> = (0..20)
        .map_while(|_| permits(engine.decide(&fast)))
        .collect();
    assert_eq!((more.len(), both()), (7, vec![9, 2]));
    assert_eq!(engine.decide(&slow).cause(), Cause::Rule("wide"));
    drop(held);
    assert_eq!(both(), [7, 0]);
    for permits in more {
        permits.cancel();
    }
    assert_eq!(both(), [0, 0]);
}

#[test]
fn looking_takes_no_place() {
    let clock = Manual::new();
    let engine = engine(
        "limits: [{name: api, concurrency: {adaptive: aimd, max: 2}}]",
        &clock,
    );
    let facts = Facts::new();
    assert_eq!(engine.peek(&facts).decision().remaining, 2);
    let held: Vec<_> = (0..2).map(|_| engine.decide(&facts)).collect();
    let seen = engine.peek(&facts);
    assert_eq!(
        (seen.cause(), seen.decision().is_allowed()),
        (Cause::Rule("api"), false)
    );
    let left = engine.remaining(&facts);
    assert_eq!((left.len(), left[0].decision.remaining), (1, 0));
    assert_eq!(state(&engine).in_flight, 2);
    drop(held);
}

#[test]
fn in_shadow_it_refuses_nothing_and_learns_all_the_same() {
    let clock = Manual::new();
    let text = "limits: [{name: api, mode: shadow, concurrency: {adaptive: aimd, min: 1, max: 4}}]";
    let engine = engine(text, &clock).with_counters(10);
    let facts = Facts::new();
    let held: Vec<_> = (0..6).map(|_| engine.decide(&facts)).collect();
    let refusals: Vec<_> = held
        .iter()
        .map(|one| one.shadow_denials().count())
        .collect();
    assert_eq!(refusals, [0, 0, 0, 0, 1, 1]);
    let refusal = held[5].shadow_denials().next().expect("a refusal");
    assert_eq!(refusal.cause, Cause::Rule("api"));
    assert_eq!(state(&engine).in_flight, 4);
    clock.advance(MS);
    for verdict in held {
        permits(verdict)
            .expect("all pass")
            .end(PermitOutcome::Dropped);
    }
    assert_eq!(state(&engine).in_flight, 0);
    assert!(state(&engine).limit < 4, "{:?}", state(&engine));
    assert_eq!(engine.peek(&facts).shadow_denials().count(), 0);
}

#[test]
fn those_who_wait_for_it_pass_in_turn_as_places_come_back() {
    let clock = Manual::new();
    let text = "limits: [{name: api, over: wait 5s, concurrency: {adaptive: aimd, max: 1}}]";
    let engine = engine(text, &clock);
    let mut tasks = Tasks::new();
    let ask = async || {
        let facts = Facts::new();
        let Ok(verdict) = engine.decide_async(&facts).await;
        permits(verdict)
    };
    for name in 0..3 {
        tasks.start(name, ask());
    }
    let mut first = tasks.take_done();
    assert_eq!((first.len(), engine.waiter_count()), (1, 2));
    assert_eq!(engine.limiter_states()[0].waiting, 2);
    assert!(
        engine.decide(&Facts::new()).denied().is_some(),
        "nobody passes the line"
    );
    for next in 1..3 {
        let (_, held) = first.pop().expect("one that runs");
        held.expect("it passed").end(PermitOutcome::Success);
        tasks.run();
        first = tasks.take_done();
        assert_eq!(
            first.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            [next]
        );
    }
    assert_eq!(engine.waiter_count(), 0);
}

#[test]
fn a_policy_of_a_program_is_judged_as_a_file_is() {
    let bad = |change: fn(&mut Policy)| {
        let mut policy = policy("limits: [{name: a, concurrency: {adaptive: little, max: 9}}]");
        change(&mut policy);
        let memory = tollgate_engine::backend::Memory::new();
        match Engine::new(policy, memory) {
            Err(error @ PolicyError::Overload { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let zero = bad(|policy| policy.rules[0].adaptive.as_mut().unwrap().min = 0);
    assert!(zero.starts_with("\"a\": "), "{zero}");
    bad(|policy| policy.rules[0].adaptive.as_mut().unwrap().min = 10);
    bad(|policy| policy.rules[0].limits.concurrency = Some(3));
    bad(|policy| policy.rules[0].shared = Some("all".to_owned()));
    let nothing = bad(|policy| {
        let rule = &mut policy.rules[0];
        (rule.adaptive, rule.limits.unlimited) = (None, true);
        rule.shed = Some(tollgate_engine::policy::Shedding {
            by: "priority".to_owned(),
            shares: tollgate_adaptive::shed::CriticalityShares::default(),
        });
    });
    assert_eq!(
        nothing,
        "\"a\": there is nothing to shed by: give it a concurrency"
    );
}

#[test]
fn a_clock_that_is_set_back_teaches_nothing() {
    let clock = Manual::starting_at(tollgate::Timestamp::from_secs(100));
    let engine = engine(&adaptive(AdaptiveAlgorithm::Aimd), &clock);
    let facts = Facts::new();
    let held = permits(engine.decide(&facts)).expect("it passes");
    clock.set(tollgate::Timestamp::from_secs(1));
    assert_eq!(clock.now(), tollgate::Timestamp::from_secs(1));
    held.end(PermitOutcome::Success);
    assert_eq!(state(&engine), state(&engine));
    assert_eq!((state(&engine).limit, state(&engine).in_flight), (20, 0));
}

/// A law that mistakes slow calls for a queue stays at the least limit, so that isn't 1.
#[test]
fn a_limit_that_adapts_has_a_least_above_one() {
    for (max, least) in [(1, 1), (2, 1), (9, 4), (19, 9), (20, 10), (5_000, 10)] {
        let text = format!("limits: [{{name: a, concurrency: {{adaptive: little, max: {max}}}}}]");
        let rule = &policy(&text).rules[0];
        assert_eq!(rule.adaptive.map(|adaptive| adaptive.min), Some(least));
    }
}
