//! Resets of keys in use, as handwritten histories for limits of every kind: after a reset the whole limit is
//! available, and never more, whatever nodes still hold or held before.

use tollgate_testkit::world::{
    Amount, CountingChoice, EstimateSetting, Event, Failure, FinalCost, LimitSort, Record,
    RefundEvent, Request, Rule, Scenario, ScenarioSettings, run_scenario,
};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const LIMIT: u64 = 100;
/// When the key is reset.
const RESET: u64 = SECOND;

fn kinds() -> Vec<(LimitSort, CountingChoice)> {
    let levels = ["gcra", "token-bucket", "leaky"].map(LimitSort::Level);
    let windows = ["fixed-window", "sliding-window", "sliding-log"].map(LimitSort::Window);
    let quotas = ["hour", "10min"].map(LimitSort::Quota);
    let exact = levels.into_iter().chain(windows).chain(quotas);
    let mut kinds: Vec<_> = exact.map(|sort| (sort, CountingChoice::Exact)).collect();
    kinds.extend(levels.map(|sort| (sort, CountingChoice::Leased)));
    kinds
}

/// Two nodes with one limit of a hundred tokens, none of which come back during a story.
fn setting(
    (sort, counted): (LimitSort, CountingChoice),
    estimated: Option<EstimateSetting>,
) -> ScenarioSettings {
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
        nodes: 2,
        shards: 1,
        keys: 1,
        rules: vec![Rule {
            sort,
            counted,
            failure: Failure::Closed,
            versions: vec![vec![amount]],
            is_shared: false,
            only: None,
            estimated,
            waits: None,
            leaf: None,
        }],
        versions: 1,
        timeout: 100,
        delay: 1_000,
        lease_life: vec![4_000, 4_000],
        lease_part: 2,
        slot_life: 1_000,
        remembers: true,
        learns: false,
        is_guarded: false,
        charges_each: false,
        blocked: None,
        is_in_memory: false,
        troubles: Vec::new(),
    }
}

fn ask(node: usize, cost: u64, runs: u64, spent: u64) -> Event {
    Event::Ask(Request {
        node,
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

/// So many requests of one, to the nodes in turns, from a time on.
fn turns(from: u64, pause: u64, count: u64) -> Vec<(u64, Event)> {
    let nodes = [0, 1].into_iter().cycle();
    let turns = (0..count).zip(nodes);
    turns
        .map(|(turn, node)| (from + pause * turn, ask(node, 1, 0, 1)))
        .collect()
}

fn reset(node: usize) -> Event {
    Event::Gives(RefundEvent {
        node,
        rule: 0,
        who: 0,
        units: None,
    })
}

fn played(setting: ScenarioSettings, events: Vec<(u64, Event)>) -> Record {
    let story = Scenario {
        seed: 0,
        setting,
        events,
    };
    let record = run_scenario(&story);
    assert!(record.gifts.iter().all(|given| given.to.is_some()));
    record
}

/// How much passed after the reset, of requests that came in this time.
fn passed(record: &Record, until: u64) -> u64 {
    let answers = record.answers.iter();
    let after = answers.filter(|told| RESET + 100_000 < told.asked_at && told.asked_at <= until);
    let passed = after.filter(|told| told.allowed);
    passed.map(|told| told.ask.cost).sum()
}

#[test]
fn what_nodes_hold_and_what_is_there_after_a_reset_are_the_limit() {
    for kind in kinds() {
        // Both nodes have asked for much, so that they lease much, and have spent some.
        let mut events = turns(900_000, 1_000, 60);
        events.push((RESET, reset(0)));
        let from = RESET + 2 * SECOND;
        events.extend(turns(from, 5_000, 6 * LIMIT));
        let until = from + 5_000 * 6 * LIMIT;
        let record = played(setting(kind, None), events);
        let passed = passed(&record, until);
        // What a node has spent and not told by then stays owed.
        assert!((LIMIT - 30..=LIMIT).contains(&passed), "{kind:?}: {passed}");
    }
}

#[test]
fn what_is_held_from_before_a_reset_gives_back_nothing_that_was_spent_after_it() {
    let estimated = EstimateSetting {
        within: 60_000,
        refunds: false,
    };
    for kind in kinds() {
        let held = 50;
        let mut events = vec![(0, ask(0, held, 6 * SECOND, 0)), (RESET, reset(1))];
        // All that there is, before what was held comes back and after it.
        for from in [RESET + 2 * SECOND, 7 * SECOND] {
            events.extend((0..2 * LIMIT).map(|turn| (from + 5_000 * turn, ask(1, 1, 0, 1))));
        }
        let record = played(setting(kind, Some(estimated)), events);
        let until = 7 * SECOND + 5_000 * 2 * LIMIT;
        let passed = passed(&record, until);
        assert!(passed <= LIMIT, "{kind:?}: {passed}");
    }
}
