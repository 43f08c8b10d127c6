//! A store that flaps, in the world and as a fake store: the same steps have the same bound.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, Clock, Rate};
use tollgate_engine::backend::LimitKind;
use tollgate_redis::Redis;
use tollgate_testkit::traffic::Random;
use tollgate_testkit::world::{
    Amount, CountingChoice, Event, Failure, FinalCost, KeptData, LimitSort, Request, Rule,
    Scenario, ScenarioSettings, StoreCondition, run_scenario,
};

const SECOND: u64 = 1_000_000;
/// Per second, and burst.
const COUNT: u64 = 20;
const BURST: u64 = 60;

/// One request of so many: when, and what becomes of the store before it.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: u64,
    fate: Fate,
    cost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Down,
    ReadOnly,
    Up,
    Same,
}

/// What passed: since when it may have been counted, when it had an answer, and how much it was.
type Passed = Vec<(u64, u64, u64)>;

fn steps(random: &mut Random) -> Vec<Step> {
    let mut at = 0;
    let steps = (0..150).map(|_| {
        at += 1_000 * random.below(120);
        let fate = match random.below(10) {
            0..2 => Fate::Down,
            2 => Fate::ReadOnly,
            3..6 => Fate::Up,
            _ => Fate::Same,
        };
        let cost = 1 + random.below(6);
        Step { at, fate, cost }
    });
    steps.collect()
}

const LEVELS: [(&str, Algorithm); 3] = [
    ("gcra", Algorithm::Gcra),
    ("token-bucket", Algorithm::TokenBucket),
    ("leaky", Algorithm::LeakyBucket),
];

/// By the store of a test, whose clock is set by hand.
async fn in_memory(algorithm: Algorithm, counted: CountingChoice, steps: &[Step]) -> Passed {
    let clock = Manual::new();
    let redis = Redis::in_memory(clock.clone());
    let store = redis.fake_store().expect("it is in memory");
    let rate = Rate::per_second(COUNT).burst(BURST);
    let limiter = redis.limiter_with_kind("calls", LimitKind::Rate { rate, algorithm });
    let limiter = match counted {
        CountingChoice::Leased => limiter.leased(),
        _ => limiter,
    };
    let limiter = limiter.build().expect("a limit");
    let (start, mut passed) = (clock.now(), Vec::new());
    for step in steps {
        let elapsed = Duration::from_micros(step.at) - (clock.now() - start);
        clock.advance(elapsed);
        match step.fate {
            Fate::Down => store.inject_fault(tollgate_redis::Fault::Down),
            Fate::ReadOnly => store.inject_fault(tollgate_redis::Fault::ReadOnly),
            Fate::Up => store.clear_fault(),
            Fate::Same => {}
        }
        if limiter.check_n("k", step.cost).await.allowed().is_some() {
            passed.push((step.at, step.at, step.cost));
        }
    }
    passed
}

/// By the real client, and a store that runs the real scripts.
fn in_the_world(sort: LimitSort, counted: CountingChoice, steps: &[Step]) -> Passed {
    let mut events = Vec::new();
    let end = steps.last().map_or(0, |step| step.at);
    for (number, step) in steps.iter().enumerate() {
        // Until something else becomes of it.
        let later = steps[number + 1..].iter();
        let mut changes = later.filter(|later| later.fate != Fate::Same && later.at > step.at);
        let micros = changes.next().map_or(end, |later| later.at) - step.at;
        // Of several at the same time, the last counts.
        let mut same = steps[number + 1..].iter();
        let is_last = !same.any(|other| other.at == step.at && other.fate != Fate::Same);
        let keeps = KeptData::All;
        let condition = StoreCondition::ReadOnly;
        match step.fate {
            Fate::Down if is_last => events.push((step.at, Event::StoreDies { micros, keeps })),
            Fate::ReadOnly if is_last => {
                events.push((step.at, Event::StoreAils { condition, micros }));
            }
            _ => {}
        }
        let ask = Request {
            node: 0,
            who: 0,
            cost: step.cost,
            patience: None,
            runs: 0,
            ends: FinalCost::Unsaid,
            returns: false,
            descriptors: 0,
            has_facts: true,
            brings: None,
        };
        events.push((step.at, Event::Ask(ask)));
    }
    let amount = Amount {
        count: COUNT,
        period: SECOND,
        burst: BURST,
    };
    let rule = Rule {
        sort,
        counted,
        failure: Failure::Local,
        versions: vec![vec![amount]],
        is_shared: false,
        only: None,
        estimated: None,
        waits: None,
        leaf: None,
    };
    let setting = ScenarioSettings {
        nodes: 1,
        shards: 1,
        keys: 1,
        rules: vec![rule],
        versions: 1,
        timeout: 25,
        delay: 0,
        lease_life: vec![1_000],
        lease_part: 10,
        slot_life: 1_000,
        remembers: true,
        learns: false,
        is_guarded: false,
        charges_each: false,
        blocked: None,
        is_in_memory: false,
        troubles: Vec::new(),
    };
    let story = Scenario {
        seed: 0,
        setting,
        events,
    };
    let record = run_scenario(&story);
    let asked = record.answers.iter().filter(|told| told.asked_at <= end);
    let passed = asked.filter(|told| told.allowed);
    passed
        .map(|told| (told.asked_at, told.at, told.ask.cost))
        .collect()
}

/// Never more than the limit in any window, and a token that a level is told by; and not much less in all.
fn judge(passed: &Passed, steps: &[Step], what: &str) {
    for (number, (from, ..)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (_, at, cost) in &passed[number..] {
            sum += cost;
            let may = (BURST + 1) * SECOND + COUNT * (at - from);
            assert!(
                sum * SECOND <= may,
                "{what}: {sum} from {from} to {at} µs of {steps:?}"
            );
        }
    }
    let sum: u64 = passed.iter().map(|(_, _, cost)| cost).sum();
    let end = steps.last().map_or(0, |step| step.at);
    let asked: u64 = steps.iter().map(|step| step.cost).sum();
    let most = asked.min(BURST + COUNT * end / SECOND);
    assert!(10 * sum >= 7 * most, "{what}: {sum} of {most} in all");
}

#[test]
fn a_store_that_flaps_admits_no_more_than_one_that_works() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let mut random = Random::new(7);
    for _ in 0..super::at_length(100) {
        let steps = steps(&mut random);
        for (name, algorithm) in LEVELS {
            for counted in [CountingChoice::Leased, CountingChoice::Exact] {
                let told = |where_it_is: &str| format!("{name} {counted:?} {where_it_is}");
                let passed = runtime.block_on(in_memory(algorithm, counted, &steps));
                judge(&passed, &steps, &told("in memory"));
                let passed = in_the_world(LimitSort::Level(name), counted, &steps);
                judge(&passed, &steps, &told("in the world"));
            }
        }
    }
}
