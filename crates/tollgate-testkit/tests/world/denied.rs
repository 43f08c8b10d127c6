//! Requests that one limit denies, over leased limits: they are charged nothing.

use tollgate_testkit::world::{
    Amount, CountingChoice, Event, Failure, FinalCost, LimitSort, Request, Rule, Scenario,
    ScenarioSettings, run_scenario,
};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
/// The loud client, which retries whatever the answer is.
const LOUD: usize = 0;
/// Its concurrent requests.
const TASKS: u64 = 16;
/// The client that sends as many requests as the shared limit allows.
const OTHER: usize = 1;
const SECONDS: u64 = 2;

/// 500 in a second for all, leased.
fn all() -> Rule {
    Rule {
        is_shared: true,
        ..rule(
            LimitSort::Level("gcra"),
            CountingChoice::Leased,
            (500, SECOND, 500),
        )
    }
}

fn rule(sort: LimitSort, counted: CountingChoice, (count, period, burst): (u64, u64, u64)) -> Rule {
    Rule {
        sort,
        counted,
        failure: Failure::Local,
        versions: vec![vec![Amount {
            count,
            period,
            burst,
        }]],
        is_shared: false,
        only: None,
        estimated: None,
        waits: None,
        leaf: None,
    }
}

/// What denies the loud one.
fn own(sort: LimitSort, counted: CountingChoice, count: u64) -> Rule {
    Rule {
        failure: match sort {
            LimitSort::Slots => Failure::Closed,
            _ => Failure::Local,
        },
        only: Some(LOUD),
        ..rule(sort, counted, (count, HOUR, count))
    }
}

fn setting(rules: Vec<Rule>) -> ScenarioSettings {
    ScenarioSettings {
        nodes: 1,
        shards: 1,
        keys: 2,
        rules,
        versions: 1,
        timeout: 100,
        delay: 1_000,
        lease_life: vec![1_000],
        lease_part: 10,
        slot_life: 10_000,
        remembers: false,
        learns: false,
        is_guarded: false,
        charges_each: false,
        blocked: None,
        is_in_memory: false,
        troubles: Vec::new(),
    }
}

fn ask(who: usize, runs: u64) -> Event {
    Event::Ask(Request {
        node: 0,
        who,
        cost: 1,
        patience: None,
        runs,
        ends: FinalCost::Unsaid,
        returns: false,
        descriptors: 0,
        has_facts: true,
        brings: None,
    })
}

/// How many of the other's requests passed, and how many of the loud one's, of a story in which both ask all the time.
fn passed(rules: Vec<Rule>) -> (usize, usize) {
    let mut events = Vec::new();
    for turn in 0..500 * SECONDS {
        let at = turn * 2_000;
        // Each of its tasks asks again about when it has an answer of the store.
        events.extend((0..TASKS).map(|task| (at + task, ask(LOUD, 60 * SECOND))));
        events.push((at + 500, ask(OTHER, 0)));
    }
    let story = Scenario {
        seed: 0,
        setting: setting(rules),
        events,
    };
    let record = run_scenario(&story);
    let of = |who: usize| {
        let own = record.answers.iter().filter(|told| told.ask.who == who);
        let asked = own.filter(|told| told.asked_at < SECONDS * SECOND);
        asked.filter(|told| told.allowed).count()
    };
    (of(OTHER), of(LOUD))
}

/// The other sends exactly as much as the limit allows, and the loud one takes what its own limit allows.
fn starves_nobody(own: Rule, most: usize) {
    let (other, loud) = passed(vec![all(), own]);
    assert!(loud <= most, "{loud} of the loud one passed");
    let asked = usize::try_from(500 * SECONDS).expect("a few");
    assert_eq!(other, asked, "so many of the other passed");
}

#[test]
fn a_user_that_a_leased_limit_denies_takes_nothing_from_others() {
    starves_nobody(own(LimitSort::Level("gcra"), CountingChoice::Leased, 5), 5);
}

#[test]
fn a_user_that_a_store_denies_takes_nothing_from_others() {
    starves_nobody(own(LimitSort::Level("gcra"), CountingChoice::Exact, 5), 5);
    starves_nobody(
        own(LimitSort::Window("fixed-window"), CountingChoice::Exact, 5),
        5,
    );
    starves_nobody(own(LimitSort::Quota("10min"), CountingChoice::Exact, 5), 5);
}

#[test]
fn a_user_that_has_no_slot_left_takes_nothing_from_others() {
    starves_nobody(own(LimitSort::Slots, CountingChoice::Exact, 1), 1);
}

#[test]
fn a_user_that_its_node_denies_takes_nothing_from_others() {
    starves_nobody(own(LimitSort::Level("gcra"), CountingChoice::Local, 5), 5);
}
