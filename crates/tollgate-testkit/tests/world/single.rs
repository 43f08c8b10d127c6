//! Handwritten histories: failures that random histories found once, at their shortest.

use tollgate_testkit::world::{
    Amount, CountingChoice, Event, Failure, FinalCost, KeptData, LimitSort, Record, RefundEvent,
    ReportedDecision, Request, Rule, Scenario, ScenarioSettings, run_and_check, run_scenario,
};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const TIMEOUT: u64 = 25;

/// One node, and one client.
fn setting(rules: Vec<Rule>) -> ScenarioSettings {
    ScenarioSettings {
        nodes: 1,
        shards: 1,
        keys: 1,
        rules,
        versions: 1,
        timeout: TIMEOUT,
        delay: 0,
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

fn ask(cost: u64) -> Event {
    Event::Ask(Request {
        node: 0,
        who: 0,
        cost,
        patience: None,
        runs: 0,
        ends: FinalCost::Unsaid,
        returns: false,
        descriptors: 0,
        has_facts: true,
        brings: None,
    })
}

fn away(micros: u64) -> Event {
    let keeps = KeptData::All;
    Event::StoreDies { micros, keeps }
}

/// What came of it, of which nothing must not be.
fn played(setting: ScenarioSettings, events: Vec<(u64, Event)>) -> Record {
    let story = Scenario {
        seed: 0,
        setting,
        events,
    };
    assert_eq!(run_and_check(&story), Ok(()), "{story}");
    run_scenario(&story)
}

/// How much passed between two times.
fn passed(record: &Record, from: u64, to: u64) -> u64 {
    let answers = record.answers.iter();
    let passed = answers.filter(|told| told.allowed && from <= told.at && told.at < to);
    passed.map(|told| told.ask.cost).sum()
}

#[test]
fn what_was_spent_of_a_lease_that_is_forgotten_is_remembered() {
    let own = rule(
        LimitSort::Level("gcra"),
        CountingChoice::Leased,
        (1, HOUR, 10),
    );
    // Long after the lease's life, so that nobody keeps it.
    let mut events = vec![(0, ask(5)), (5 * SECOND, away(10 * SECOND))];
    events.extend((0..10).map(|_| (6 * SECOND, ask(1))));
    let record = played(setting(vec![own]), events);
    assert_eq!(passed(&record, 0, 7 * SECOND), 10, "{:#?}", record.answers);
}

#[test]
fn what_was_spent_of_a_lease_counts_where_an_open_circuit_keeps_it_from_being_asked_for() {
    let own = Rule {
        failure: Failure::Breaks,
        ..rule(
            LimitSort::Level("gcra"),
            CountingChoice::Leased,
            (1, HOUR, 10),
        )
    };
    let setting = ScenarioSettings {
        keys: 2,
        lease_life: vec![60_000],
        ..setting(vec![own])
    };
    let asked_by = |who, cost| match ask(cost) {
        Event::Ask(ask) => Event::Ask(Request { who, ..ask }),
        other => other,
    };
    let mut events = vec![(0, asked_by(0, 4)), (SECOND, away(30 * SECOND))];
    // Another one's questions open the circuit.
    events.extend((0..60).map(|turn| (SECOND + turn * SECOND / 10, asked_by(1, 1))));
    events.extend((0..10).map(|_| (8 * SECOND, asked_by(0, 1))));
    let record = played(setting, events);
    let is_own = |told: &&ReportedDecision| told.ask.who == 0 && told.at < 9 * SECOND;
    let own = record.answers.iter().filter(is_own);
    let passed = own.filter(|told| told.allowed).map(|told| told.ask.cost);
    assert_eq!(passed.sum::<u64>(), 10, "{:#?}", record.answers);
}

#[test]
fn what_ran_out_without_a_store_is_not_told_to_it_as_if_it_were_new() {
    let own = rule(
        LimitSort::Window("sliding-log"),
        CountingChoice::Exact,
        (5, SECOND, 5),
    );
    let events = vec![
        (0, away(SECOND)),
        (SECOND / 2, ask(5)),
        (9 * SECOND, ask(5)),
    ];
    let record = played(setting(vec![own]), events);
    let late = passed(&record, 8 * SECOND, 10 * SECOND);
    assert_eq!(late, 5, "{:#?}", record.answers);
}

#[test]
fn a_reply_that_is_there_when_time_is_up_wins() {
    let own = rule(
        LimitSort::Level("gcra"),
        CountingChoice::Exact,
        (1, HOUR, 10),
    );
    let micros = TIMEOUT * 1_000;
    let stops = Event::StoreStops { micros };
    let events = vec![(SECOND, ask(1)), (2 * SECOND, ask(1)), (2 * SECOND, stops)];
    let record = played(setting(vec![own]), events);
    let told = record.answers[1];
    assert_eq!(told.at - told.asked_at, micros, "{told:?}");
    assert_eq!(told.fallback, None, "{told:?}");
}

#[test]
fn time_in_which_a_node_was_frozen_counts_for_none_of_its_questions() {
    let all = Rule {
        is_shared: true,
        ..rule(
            LimitSort::Level("gcra"),
            CountingChoice::Exact,
            (1, HOUR, 10),
        )
    };
    let own = rule(
        LimitSort::Quota("10min"),
        CountingChoice::Exact,
        (4, HOUR / 6, 4),
    );
    let setting = ScenarioSettings {
        shards: 3,
        delay: 5_000,
        timeout: 100,
        ..setting(vec![all, own])
    };
    for wait in 1..30 {
        // While the one shard is asked, or the other.
        let freeze = Event::Freeze {
            node: 0,
            micros: SECOND,
        };
        let events = vec![(SECOND, ask(1)), (SECOND + 1_000 * wait, freeze)];
        let record = played(setting.clone(), events);
        assert_eq!(record.answers[0].fallback, None, "{:?}", record.answers[0]);
    }
}

#[test]
fn a_lease_that_is_over_when_it_comes_is_no_refusal() {
    let own = rule(
        LimitSort::Level("gcra"),
        CountingChoice::Leased,
        (1, HOUR, 10),
    );
    let setting = ScenarioSettings {
        delay: 2_000,
        ..setting(vec![own])
    };
    for wait in 0..8 {
        // While the store is asked for it.
        let freeze = Event::Freeze {
            node: 0,
            micros: SECOND,
        };
        let events = vec![(SECOND, ask(1)), (SECOND + 500 * wait, freeze)];
        let record = played(setting.clone(), events);
        assert!(record.answers[0].allowed, "{:?}", record.answers[0]);
    }
}

#[test]
fn a_lease_lives_as_long_as_its_taker_said_whoever_else_asks() {
    let own = rule(
        LimitSort::Level("gcra"),
        CountingChoice::Leased,
        (10, SECOND, 20),
    );
    let setting = ScenarioSettings {
        nodes: 2,
        lease_life: vec![4_000, 500],
        ..setting(vec![own])
    };
    let by = |node| {
        move |at| match ask(1) {
            Event::Ask(ask) => (at, Event::Ask(Request { node, ..ask })),
            other => (at, other),
        }
    };
    let from = |at: u64, count: u64| (0..count).map(move |place| at + 1_000 * place);
    // The one takes more than it needs and holds it; the other asks, and later has all there is.
    let events = from(SECOND, 4).map(by(0));
    let events = events.chain(from(SECOND + 50_000, 1).map(by(1)));
    let events = events.chain(from(2 * SECOND + 400_000, 25).map(by(1)));
    let events = events.chain(from(2 * SECOND + 450_000, 10).map(by(0)));
    let record = played(setting, events.collect());
    // What was held is spent in the end, without asking.
    let last = &record.answers[30..];
    assert!(
        last.iter().any(|told| told.allowed && told.ask.node == 0),
        "{last:?}"
    );
}

#[test]
fn a_log_of_which_some_is_given_back_ends_by_itself() {
    let (sort, counts) = (LimitSort::Window("sliding-log"), (5, 10 * SECOND, 5));
    let gift = Event::Gives(RefundEvent {
        node: 0,
        rule: 0,
        who: 0,
        units: Some(2),
    });
    let events = vec![(SECOND, ask(5)), (2 * SECOND, gift), (3 * SECOND, ask(2))];
    let record = played(
        setting(vec![rule(sort, CountingChoice::Exact, counts)]),
        events,
    );
    assert_eq!(passed(&record, 0, 4 * SECOND), 7, "{:#?}", record.answers);
}

#[test]
fn a_slot_that_a_step_of_the_stores_clock_ended_is_taken_again_by_its_holder() {
    let slots = rule(LimitSort::Slots, CountingChoice::Exact, (1, 0, 1));
    let holds = match ask(1) {
        Event::Ask(ask) => Event::Ask(Request {
            runs: 20 * SECOND,
            ..ask
        }),
        other => other,
    };
    let step = Event::StoreSteps {
        by: i64::try_from(10 * SECOND).expect("seconds"),
    };
    let events = vec![(0, holds), (2 * SECOND, step), (5 * SECOND, ask(1))];
    let record = played(setting(vec![slots]), events);
    let told = record.answers.iter().find(|told| told.asked_at > SECOND);
    let told = told.expect("the second one's answer");
    assert!(!told.allowed, "two hold one slot: {told:?}");
}
