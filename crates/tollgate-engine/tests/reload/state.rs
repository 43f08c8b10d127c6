//! A restart from a snapshot equals a reload: the same answers for every algorithm, whatever changed in the policy
//! between, on any clock; and an invalid snapshot changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::core::WindowAlignment;
use tollgate::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter};
use tollgate::{Algorithm, Clock, Decision, Rate, Timestamp};
use tollgate_engine::backend::Memory;
use tollgate_engine::policy::{Limits, Policy, Rule};
use tollgate_engine::{Engine, Facts, RestoreError, RestoreOptions, RestoreReport};
use tollgate_testkit::snapshot_corruption::corrupt_snapshot;
use tollgate_testkit::temp_folder::TempFolder;

use super::common::{only, policy, rates, rule};
use super::{TestEngine, config};

const ALGORITHMS: [(&str, Algorithm); 6] = [
    ("gcra", Algorithm::Gcra),
    ("token bucket", Algorithm::TokenBucket),
    ("leaky bucket", Algorithm::LeakyBucket),
    ("log", Algorithm::SlidingLog),
    ("counter", Algorithm::SlidingCounter),
    (
        "window",
        Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    ),
];

/// Whole for every period, so that windows begin alike on all clocks.
const DAY: Duration = Duration::from_secs(86_400);
const KIND: &[u8; 8] = b"testtest";

/// A rule for each algorithm, which applies to requests that name it.
fn version(limits: &[&str], suffix: &str) -> Policy {
    let each = ALGORITHMS.map(|(name, algorithm)| Rule {
        matches: only("rule", name),
        algorithm,
        ..rule(&format!("{name}{suffix}"), rates(limits))
    });
    policy(each.into())
}

/// Policies that differ in order, periods, counts and names.
fn versions() -> Vec<Policy> {
    let mut turned = version(&["40/h", "10/m"], "");
    turned.rules.reverse();
    vec![
        version(&["10/m", "40/h"], ""),
        turned,
        version(&["10/m", "60/day"], ""),
        version(&["20/m", "40/h"], ""),
        version(&["10/m"], ""),
        version(&["10/m", "40/h"], " renamed"),
    ]
}

pub(super) fn clock() -> (Manual, Manual) {
    // 1 June 2024 by the wall clock.
    let wall = Timestamp::from_secs(1_717_200_000);
    (
        Manual::starting_at(Timestamp::ZERO + DAY * 3),
        Manual::starting_at(wall),
    )
}

fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    Timestamp::ZERO + ((at - Timestamp::ZERO) - by)
}

pub(super) fn start(policy: Policy, (clock, wall): (&Manual, &Manual)) -> TestEngine {
    let memory = Memory::builder().capacity(1_000);
    let memory = memory.clock(clock.clone()).wall(wall.clone()).build();
    Engine::new(policy, memory).expect("a policy")
}

pub(super) fn save(engine: &TestEngine, path: &Path) -> u64 {
    let mut file = SnapshotWriter::create(path, KIND, 1).expect("a file");
    let keys = engine.save(&mut file).expect("written");
    file.finish().expect("a file");
    keys
}

fn try_restore(
    policy: Policy,
    path: &Path,
    (clock, wall): (&Manual, &Manual),
) -> Result<(TestEngine, RestoreReport), RestoreError> {
    let builder = Memory::builder().capacity(1_000);
    let builder = builder.clock(clock.clone()).wall(wall.clone());
    let mut file = SnapshotReader::open(path, KIND, 1)?;
    let restored = Engine::restore(policy, builder, RestoreOptions::default(), &mut file)?;
    file.end()?;
    Ok(restored)
}

pub(super) fn restore(policy: Policy, path: &Path, clocks: (&Manual, &Manual)) -> TestEngine {
    try_restore(policy, path, clocks).expect("restored").0
}

fn ask(engine: &TestEngine, rule: &str, user: &str, cost: u64) -> Decision {
    let facts = Facts::new().with("rule", rule).with("user", user);
    *engine.decide(&facts.with_cost(cost)).decision()
}

/// A request, some time after the one before.
#[derive(Clone, Debug)]
struct Step {
    wait: Duration,
    rule: usize,
    user: usize,
    cost: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let waits = prop_oneof![Just(0), 0..3_000u64, 0..100_000u64, 0..5_000_000u64];
    let step = (waits, 0..ALGORITHMS.len(), 0..2usize, 1..5u64);
    let step = step.prop_map(|(wait, rule, user, cost)| Step {
        wait: Duration::from_millis(wait),
        rule,
        user,
        cost,
    });
    prop::collection::vec(step, 1..40)
}

/// Asks all engines the same, and looks that they answer the same.
fn alike(engines: &[&TestEngine], clocks: &[&Manual], steps: &[Step]) -> Result<(), TestCaseError> {
    for step in steps {
        clocks.iter().for_each(|clock| clock.advance(step.wait));
        let (rule, user) = (ALGORITHMS[step.rule].0, ["ada", "eve"][step.user]);
        let mut answers = engines
            .iter()
            .map(|engine| ask(engine, rule, user, step.cost));
        let first = answers.next();
        for answer in answers {
            prop_assert_eq!(Some(answer), first, "{} {}", rule, user);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..config() })]

    #[test]
    fn a_restart_answers_as_a_reload_does(
        [before, between, after] in [steps(), steps(), steps()],
        down in prop::sample::select(vec![0, 1, 30_000, 4_000_000]),
        order in prop::sample::subsequence((0..6).collect::<Vec<usize>>(), 3).prop_shuffle(),
    ) {
        let scratch = TempFolder::new("restart-as-reload");
        let path = scratch.path("state");
        let all = versions();
        let [first, second, third] = [0, 1, 2].map(|at| all[order[at]].clone());
        let (clock, wall) = clock();
        let oracle = start(first, (&clock, &wall));
        alike(&[&oracle], &[&clock, &wall], &before)?;
        let keys = save(&oracle, &path);
        // Nothing runs for a while.
        let down = Duration::from_millis(down);
        for clock in [&clock, &wall] {
            clock.advance(down);
        }
        oracle.reload(second.clone()).unwrap();
        // On a clock that began at another time.
        let other = Manual::starting_at(clock.now() + DAY * 100);
        let restored = restore(second, &path, (&other, &wall));
        alike(&[&oracle, &restored], &[&clock, &wall, &other], &between)?;
        // And once more.
        save(&restored, &path);
        drop(restored);
        oracle.reload(third.clone()).unwrap();
        let again = Manual::starting_at(earlier(other.now(), DAY * 101));
        let (restored, loaded) = try_restore(third, &path, (&again, &wall)).unwrap();
        alike(&[&oracle, &restored], &[&clock, &wall, &again], &after)?;
        prop_assert_eq!(loaded.dropped_keys, 0);
        prop_assert!(keys <= 4 * ALGORITHMS.len() as u64);
    }
}

/// What is left of a rule of ten an hour, to each algorithm.
fn left(engine: &TestEngine) -> [u64; 6] {
    ALGORITHMS.map(|(name, _)| ask(engine, name, "ada", 0).remaining)
}

fn spent(clocks: (&Manual, &Manual)) -> TestEngine {
    let engine = start(version(&["10/h"], ""), clocks);
    for (name, _) in ALGORITHMS {
        assert!(ask(&engine, name, "ada", 6).is_allowed());
    }
    engine
}

#[test]
fn a_wall_clock_that_steps_between_grants_no_more_than_if_never_seen() {
    let scratch = TempFolder::new("restart-steps");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let engine = spent((&clock, &wall));
    save(&engine, &path);
    let at = wall.now();
    let hour = Duration::from_secs(3_600);
    let start = |wall: Timestamp, clock: u64| {
        let (clock, wall) = (
            Manual::starting_at(Timestamp::from_secs(clock)),
            Manual::starting_at(wall),
        );
        restore(version(&["10/h"], ""), &path, (&clock, &wall))
    };
    assert_eq!(left(&start(at, 0)), [4; 6], "no time has passed");
    // A clock that went back: none has passed either.
    for back in [hour, DAY * 400] {
        assert_eq!(left(&start(earlier(at, back), 7)), [4; 6], "{back:?}");
    }
    // Far ahead: as never seen, and no more.
    for ahead in [DAY, DAY * 40_000] {
        let engine = start(at + ahead, 7);
        assert_eq!(left(&engine), [10; 6], "{ahead:?}");
        for (name, _) in ALGORITHMS {
            assert!(!ask(&engine, name, "ada", 11).is_allowed());
            assert!(ask(&engine, name, "ada", 10).is_allowed());
            assert!(!ask(&engine, name, "ada", 1).is_allowed());
        }
    }
    assert_eq!(left(&start(Timestamp::MAX, 7)), [10; 6]);
}

#[test]
fn what_the_wall_clock_would_show_unset_tells_how_long_nothing_ran() {
    let scratch = TempFolder::new("restart-unset");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    save(&spent((&clock, &wall)), &path);
    let at = wall.now();
    // Set to another year, either way: a tenth of an hour has passed, and all but windows by the wall clock see that.
    for (shown, window) in [(at + DAY * 365, 10), (earlier(at, DAY * 365), 4)] {
        let other = Manual::starting_at(shown);
        let builder = Memory::builder().capacity(1_000);
        let builder = builder.clock(clock.clone()).wall(other);
        let mut file = SnapshotReader::open(&path, KIND, 1).unwrap();
        let resume = RestoreOptions {
            unset_wall: Some(at + Duration::from_secs(360)),
            ..RestoreOptions::default()
        };
        let policy = version(&["10/h"], "");
        let (engine, restored) = Engine::restore(policy, builder, resume, &mut file).unwrap();
        let [gcra, token, leaky, log, counter, windows] = left(&engine);
        assert_eq!([gcra, token, leaky], [5; 3], "{shown:?}");
        assert_eq!(([log, counter], windows), ([4; 2], window), "{shown:?}");
        assert_eq!(restored.dropped_keys, 0);
    }
}

#[test]
fn windows_that_begin_at_times_of_day_still_do_after_a_clock_was_set_back() {
    let scratch = TempFolder::new("restart-windows");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    wall.advance(Duration::from_secs(1_800 + 7));
    let engine = spent((&clock, &wall));
    save(&engine, &path);
    wall.set(earlier(wall.now(), Duration::from_secs(600)));
    let restored = restore(version(&["10/h"], ""), &path, (&clock, &wall));
    let decision = ask(&restored, "window", "ada", 4);
    assert!(decision.is_allowed());
    // The hour ends when it does by the wall clock: 20 minutes and 7 seconds are over.
    assert_eq!(decision.reset_after, Duration::from_secs(3_600 - 1_207));
    wall.advance(decision.reset_after);
    assert_eq!(ask(&restored, "window", "ada", 0).remaining, 10);
}

#[test]
fn keys_are_told_apart_by_the_seeds_of_the_process_before() {
    let scratch = TempFolder::new("restart-seeds");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let engine = spent((&clock, &wall));
    save(&engine, &path);
    let restored = restore(version(&["10/h"], ""), &path, (&clock, &wall));
    let other = start(version(&["10/h"], ""), (&clock, &wall));
    let facts = Facts::new().with("rule", "gcra").with("user", "ada");
    let print = |engine: &TestEngine| {
        let verdict = engine.decide(&facts);
        verdict.key().expect("a key").fingerprint()
    };
    assert_eq!(print(&restored), print(&engine));
    assert_ne!(print(&other), print(&engine));
}

#[test]
fn what_a_limit_that_is_gone_has_counted_waits_for_its_return() {
    let scratch = TempFolder::new("restart-gone");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let clocks = (&clock, &wall);
    save(&spent(clocks), &path);
    // Other names: all start from nothing.
    let renamed = version(&["10/h"], " renamed");
    let (engine, loaded) = try_restore(renamed, &path, clocks).unwrap();
    assert_eq!(loaded.keys, 6);
    let gone = [
        "counter",
        "gcra",
        "leaky bucket",
        "log",
        "token bucket",
        "window",
    ];
    assert_eq!(loaded.retired, gone.map(|name| format!("rule/{name}")));
    for (name, _) in ALGORITHMS {
        assert!(ask(&engine, name, "ada", 3).is_allowed());
    }
    save(&engine, &path);
    // The old names again go on with what they had, and so do both in one policy.
    let (engine, loaded) = try_restore(version(&["10/h"], ""), &path, clocks).unwrap();
    assert_eq!(left(&engine), [4; 6]);
    assert_eq!((loaded.keys, loaded.dropped_keys), (12, 0));
    let mut both = version(&["10/h"], " renamed");
    both.rules.extend(version(&["10/h"], "").rules);
    let engine = restore(both, &path, clocks);
    assert_eq!(left(&engine), [4; 6]);
}

#[test]
fn what_is_held_ends_with_the_process_and_estimates_count_as_spent() {
    let scratch = TempFolder::new("restart-holds");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let text = "limits: [{name: jobs, key: user, concurrency: 1}, \
                {name: tokens, key: tenant, rate: 100/h, cost: {default: 30, settle_within: 60s}}]";
    let parse = || {
        let format = tollgate_engine::document::Format::Yaml;
        Policy::from_text(text, format).expect("a policy").policy
    };
    let engine = start(parse(), (&clock, &wall));
    let facts = Facts::new().with("user", "ada").with("tenant", "acme");
    let held = engine
        .decide(&facts)
        .allowed()
        .expect("free")
        .into_permits();
    assert!(engine.decide(&facts).denied().is_some());
    save(&engine, &path);
    let restored = restore(parse(), &path, (&clock, &wall));
    let verdict = restored.decide(&facts);
    assert!(verdict.allowed().is_some(), "the slot is free");
    let restored = restore(parse(), &path, (&clock, &wall));
    let facts = Facts::new().with("tenant", "acme");
    assert_eq!(restored.peek(&facts).decision().remaining, 70);
    drop(held);
}

#[test]
fn a_rule_warms_up_anew_after_a_restart() {
    let scratch = TempFolder::new("restart-warm");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let warming = || {
        let rule = Rule {
            warm_up: Some(Duration::from_secs(90)),
            ..rule("api", rates(&["100/h"]))
        };
        policy(vec![rule])
    };
    let engine = start(warming(), (&clock, &wall));
    let facts = |cost| Facts::new().with("user", "ada").with_cost(cost);
    let allows = |engine: &TestEngine, cost| engine.decide(&facts(cost)).allowed().is_some();
    clock.advance(Duration::from_secs(100));
    assert!(allows(&engine, 50));
    save(&engine, &path);
    let restored = restore(warming(), &path, (&clock, &wall));
    let passed = (0..50).filter(|_| allows(&restored, 1)).count();
    assert_eq!(passed, 10, "a tenth of its burst at first");
    clock.advance(Duration::from_secs(100));
    assert!(!allows(&restored, 45), "and what was spent before is spent");
    assert!(allows(&restored, 40));
}

/// A snapshot with something of everything, and its bytes.
fn some(scratch: &TempFolder, clocks: (&Manual, &Manual)) -> Vec<u8> {
    save(&spent(clocks), &scratch.path("state"));
    fs::read(scratch.path("state")).expect("a file")
}

#[test]
fn no_damaged_or_shortened_snapshot_is_taken() {
    let scratch = TempFolder::new("restart-damaged");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let clocks = (&clock, &wall);
    let right = some(&scratch, clocks);
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let restored = try_restore(version(&["10/h"], ""), &path, clocks);
        matches!(restored, Err(RestoreError::Snapshot(_)))
    };
    for length in 0..right.len() {
        assert!(refused(&right[..length]), "{length}");
    }
    let mut damaged = right.clone();
    for place in 0..right.len() {
        damaged[place] ^= 1 << (place % 8);
        assert!(refused(&damaged), "{place}");
        damaged[place] = right[place];
    }
    damaged.extend([0; 8]);
    assert!(refused(&damaged));
    assert!(!refused(&right));
    let other = SnapshotReader::open(&path, KIND, 2).unwrap_err();
    assert!(matches!(
        other,
        SnapshotError::OtherVersion { version: 1, .. }
    ));
    assert!(matches!(
        SnapshotReader::open(&path, b"otherone", 1),
        Err(SnapshotError::Foreign { .. })
    ));
}

#[test]
fn no_word_of_a_snapshot_makes_it_panic() {
    let scratch = TempFolder::new("restart-words");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let right = some(&scratch, (&clock, &wall));
    for place in 3..right.len() / 8 - 1 {
        for value in [0, 1, 3, 1 << 32, u64::MAX >> 1, u64::MAX] {
            fs::write(&path, &right).unwrap();
            corrupt_snapshot(&path, |words| words[place] = value);
            if let Ok((engine, _)) = try_restore(version(&["10/h"], ""), &path, (&clock, &wall)) {
                let left = left(&engine);
                assert!(left.iter().all(|left| *left <= 10), "{place}: {left:?}");
            }
        }
    }
}

#[test]
fn a_smaller_table_says_what_it_left_out() {
    let scratch = TempFolder::new("restart-smaller");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let limits = Limits {
        rates: vec![Rate::per_hour(10)],
        ..Limits::default()
    };
    let own = || policy(vec![rule("api", limits.clone())]);
    let engine = start(own(), (&clock, &wall));
    for user in 0..900 {
        let user = user.to_string();
        let _ = engine.decide(&Facts::new().with("user", &user)).allowed();
    }
    assert_eq!(save(&engine, &path), 900);
    let builder = Memory::builder().capacity(10);
    let builder = builder.clock(clock.clone()).wall(wall.clone());
    let mut file = SnapshotReader::open(&path, KIND, 1).unwrap();
    let (_, loaded) =
        Engine::restore(own(), builder, RestoreOptions::default(), &mut file).unwrap();
    assert_eq!(loaded.keys + loaded.dropped_keys, 900);
    assert!(loaded.dropped_keys > 0 && loaded.keys >= 10, "{loaded:?}");
}
