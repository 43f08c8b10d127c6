//! Settling an actual cost at every time, for limits of every kind in a store: in time it is charged, and late it is
//! charged as far as it wasn't yet. A late settlement refunds nothing beyond what the rule refunds by itself.

use tollgate::stack::SettlementTiming;
use tollgate_testkit::world::{
    Amount, CountingChoice, EstimateSetting, Event, Failure, FinalCost, LimitSort, Request, Rule,
    Scenario, ScenarioSettings, run_scenario,
};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const LIMIT: u64 = 100;
const ESTIMATE: u64 = 20;
/// In milliseconds.
const WITHIN: u64 = 2_000;

/// Every kind of limit with estimates: a hundred tokens, none of which come back during a story.
fn kinds() -> Vec<(LimitSort, CountingChoice)> {
    let levels = ["gcra", "token-bucket", "leaky"].map(LimitSort::Level);
    let windows = ["fixed-window", "sliding-window", "sliding-log"].map(LimitSort::Window);
    let quotas = ["hour", "10min"].map(LimitSort::Quota);
    let exact = levels.into_iter().chain(windows).chain(quotas);
    let mut kinds: Vec<_> = exact.map(|sort| (sort, CountingChoice::Exact)).collect();
    kinds.extend(levels.map(|sort| (sort, CountingChoice::Leased)));
    kinds.extend(levels.map(|sort| (sort, CountingChoice::Local)));
    kinds
}

fn setting((sort, counted): (LimitSort, CountingChoice), refunds: bool) -> ScenarioSettings {
    let period = match sort {
        LimitSort::Quota("10min") => HOUR / 6,
        _ => HOUR,
    };
    let amount = Amount {
        count: LIMIT,
        period,
        burst: LIMIT,
    };
    ScenarioSettings {
        nodes: 1,
        shards: 1,
        keys: 1,
        rules: vec![Rule {
            sort,
            counted,
            failure: Failure::Closed,
            versions: vec![vec![amount]],
            is_shared: false,
            only: None,
            estimated: Some(EstimateSetting {
                within: WITHIN,
                refunds,
            }),
            waits: None,
            leaf: None,
        }],
        versions: 1,
        timeout: 100,
        delay: 1_000,
        lease_life: vec![500],
        lease_part: 2,
        slot_life: 1_000,
        remembers: false,
        learns: false,
        is_guarded: false,
        charges_each: false,
        blocked: None,
        is_in_memory: false,
        troubles: Vec::new(),
    }
}

fn ask(cost: u64, runs: u64, spent: u64) -> Event {
    Event::Ask(Request {
        node: 0,
        who: 0,
        cost,
        patience: None,
        runs,
        ends: FinalCost::Cost(spent),
        returns: false,
        descriptors: 0,
        has_facts: true,
        brings: None,
    })
}

/// A request that is thought to cost 20 says after this time that it cost so much: what it is told, and how much of the
/// limit others then have.
fn settled(
    kind: (LimitSort, CountingChoice),
    refunds: bool,
    (after, spent): (u64, u64),
) -> (Option<SettlementTiming>, u64) {
    let mut events = vec![(0, ask(ESTIMATE, after, spent))];
    let from = after + SECOND;
    events.extend((0..2 * LIMIT).map(|number| (from + 5_000 * number, ask(1, 0, 1))));
    let story = Scenario {
        seed: 0,
        setting: setting(kind, refunds),
        events,
    };
    let record = run_scenario(&story);
    let told = record.answers[0];
    assert!(told.allowed && told.fallback.is_none(), "{told:?}");
    let others = record.answers[1..].iter();
    let passed = others.filter(|other| other.allowed && other.asked_at < record.quiet_at / 2);
    let within = passed.filter(|other| other.asked_at <= from + 5_000 * 2 * LIMIT);
    (told.settled, within.map(|other| other.ask.cost).sum())
}

#[test]
fn a_cost_is_charged_whenever_it_is_said() {
    for kind in kinds() {
        for refunds in [false, true] {
            for spent in [0, 5, ESTIMATE, 70] {
                for after in [1, WITHIN - 50, WITHIN + 50, 3 * WITHIN] {
                    let (told, left) = settled(kind, refunds, (1_000 * after, spent));
                    let (timing, charged) = if after < WITHIN {
                        (SettlementTiming::InTime, spent)
                    } else if refunds {
                        (SettlementTiming::Late, spent)
                    } else {
                        (SettlementTiming::Late, spent.max(ESTIMATE))
                    };
                    assert_eq!(
                        (told, left),
                        (Some(timing), LIMIT - charged),
                        "{kind:?} refunds {refunds}, {spent} after {after} ms"
                    );
                }
            }
        }
    }
}
