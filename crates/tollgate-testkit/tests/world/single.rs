//! Histories that are told by hand: what the random ones found once, at its shortest.

use tollgate_testkit::world::{
    Amount, Ask, Counted, Event, Failure, Keeps, Rule, Setting, Sort, Story, play, try_story,
};

const SECOND: u64 = 1_000_000;

/// One node, one who asks and one rule.
fn setting(counted: Counted, amount: Amount) -> Setting {
    Setting {
        nodes: 1,
        shards: 1,
        keys: 1,
        rules: vec![Rule {
            sort: Sort::Level("gcra"),
            counted,
            failure: Failure::Local,
            versions: vec![vec![amount]],
            is_shared: false,
        }],
        versions: 1,
        timeout: 25,
        delay: 0,
        lease_life: vec![500],
        lease_part: 2,
        slot_life: 1_000,
        remembers: false,
        learns: false,
        troubles: Vec::new(),
    }
}

fn ask(cost: u64) -> Event {
    Event::Ask(Ask {
        node: 0,
        who: 0,
        cost,
        patience: None,
        runs: 0,
        returns: false,
    })
}

#[test]
fn what_was_spent_of_a_lease_that_is_forgotten_is_remembered() {
    let amount = Amount {
        count: 1,
        period: 3_600 * SECOND,
        burst: 10,
    };
    let away = Event::StoreDies {
        micros: 10 * SECOND,
        keeps: Keeps::All,
    };
    let mut events = vec![(0, ask(5))];
    // Long after the lease's life, so that nobody keeps it.
    events.push((5 * SECOND, away));
    events.extend((0..10).map(|_| (6 * SECOND, ask(1))));
    let story = Story {
        seed: 0,
        setting: setting(Counted::Leased, amount),
        events,
    };
    let record = play(&story);
    let early = record.answers.iter().filter(|told| told.at < 7 * SECOND);
    let passed = early.filter(|told| told.allowed);
    let passed: u64 = passed.map(|told| told.ask.cost).sum();
    assert_eq!(passed, 10, "{:#?}", record.answers);
    assert_eq!(try_story(&story), Ok(()));
}
