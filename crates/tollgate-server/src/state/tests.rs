//! State that is restored in any history of decisions, saves, crashes, reloads and clocks that somebody sets, against a
//! list of all that was admitted; and snapshots that aren't right.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;
use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::{Facts, Policy};
use tollgate_testkit::snapshot_corruption::corrupt_snapshot;
use tollgate_testkit::temp_folder::TempFolder;

use super::*;
use crate::cl_throttle::ThrottleLimit;
use crate::log::{Log, LogFormat};
use crate::throttle_keys::ThrottleKeys;

mod before;

/// The limits of the requests: rules, and a limit that the request brings along.
const RULES: [&str; 5] = ["gcra", "token-bucket", "leaky", "sliding-log", "throttle"];
const PERIOD: u64 = 60_000;
const LIMIT: u64 = 10;
/// The time that a restart may count as not passed: the resolution of uptimes, in milliseconds.
const EXACT_TO: u64 = 10;

thread_local! {
    /// The uptime that the test's machine reports.
    static UPTIME: Cell<Option<Uptime>> = const { Cell::new(None) };
}

fn uptime() -> Option<Uptime> {
    UPTIME.get()
}

/// The rules under test, among others that come and go.
fn policy(version: usize) -> Policy {
    let rule = |name: &&str| {
        format!(
            "{{name: {name}, match: {{rule: {name}}}, key: user, rate: 10/m, algorithm: {name}}}"
        )
    };
    let mut rules: Vec<_> = RULES[..4].iter().map(rule).collect();
    rules.rotate_left(version % 4);
    rules.insert(
        version % 3,
        format!("{{name: other{version}, key: tenant, rate: 5/s}}"),
    );
    let text = format!("limits: [{}]", rules.join(", "));
    Policy::from_text(&text, Format::Yaml)
        .expect("a policy")
        .policy
}

fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

/// An event of a history.
#[derive(Clone, Debug)]
enum Step {
    Ask {
        rule: usize,
        cost: u64,
    },
    Wait(u64),
    /// Somebody sets the wall clock.
    Set(i64),
    Save,
    Reload(usize),
    /// The process ends, and another one starts later.
    Restart {
        end: End,
        down: u64,
        set: i64,
        policy: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// A shutdown, with a last save.
    Stop,
    Crash,
    /// A crash and a boot of the machine.
    Reboot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ask = (0..RULES.len(), 1..4u64).prop_map(|(rule, cost)| Step::Ask { rule, cost });
    let waits = prop_oneof![0..3_000u64, 0..90_000u64];
    let year = 31_536_000_000i64;
    let set = prop_oneof![
        Just(0),
        Just(-3_600_000),
        Just(-year),
        Just(year),
        -5_000..5_000i64
    ];
    let end = prop_oneof![Just(End::Stop), Just(End::Crash), Just(End::Reboot)];
    let restart = (end, 0..40_000u64, set.clone(), 0..6usize);
    let restart = restart.prop_map(|(end, down, set, policy)| Step::Restart {
        end,
        down,
        set,
        policy,
    });
    let step = prop_oneof![
        12 => ask,
        4 => waits.prop_map(Step::Wait),
        1 => set.prop_map(Step::Set),
        2 => Just(Step::Save),
        1 => (0..6usize).prop_map(Step::Reload),
        2 => restart,
    ];
    prop::collection::vec(step, 1..120)
}

/// An admission: the rule, the time as the state counts it, and the cost.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    rule: usize,
    at: u64,
    cost: u64,
    is_lost: bool,
}

/// A machine, its process, and the admissions.
struct World {
    scratch: TempFolder,
    /// True time, in milliseconds.
    now: u64,
    /// The offset of the wall clock from true time.
    ahead: i64,
    boot: u128,
    /// The clock of the process.
    clock: Manual,
    wall: Manual,
    opened: Option<OpenedState<Manual, Manual>>,
    /// The time as the state counts it, which lacks what no clock measured.
    counted: u64,
    /// At the latest save: true time, the wall clock, the counted time, the boot, and the number of admissions.
    saved: (u64, i64, u64, u128, usize),
    admitted: Vec<Admitted>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            scratch: TempFolder::new(&format!("state-world-{:?}", std::thread::current().id())),
            now: 1_717_200_000_000,
            ahead: 0,
            boot: 1,
            clock: Manual::new(),
            wall: Manual::new(),
            opened: None,
            counted: 1_000_000,
            saved: (0, 0, 0, 0, 0),
            admitted: Vec::new(),
        };
        let _ = fs::remove_dir_all(world.scratch.path("state"));
        world.start(0);
        world.save();
        world
    }

    fn shown(&self) -> u64 {
        self.now.saturating_add_signed(self.ahead)
    }

    fn start(&mut self, version: usize) {
        self.clock = Manual::starting_at(at(7_777 * (1 + self.now % 11)));
        self.wall = Manual::starting_at(at(self.shown()));
        self.tell_uptime();
        let options = StateOptions {
            uptime,
            ..StateOptions::in_folder(self.scratch.path("state"))
        };
        let builder = Memory::builder().capacity(1_000);
        let opening = StateOpener {
            policy: policy(version),
            builder: builder.clock(self.clock.clone()).wall(self.wall.clone()),
            throttle_keys: 1_000,
            options: &options,
            log: &Log::disabled(),
        };
        self.opened = Some(opening.open().expect("a service"));
    }

    fn tell_uptime(&self) {
        let since = Duration::from_millis(self.now);
        UPTIME.set(Some(Uptime {
            boot_id: self.boot,
            elapsed: since,
        }));
    }

    fn pass(&mut self, millis: u64) {
        self.now += millis;
        self.counted += millis;
        self.clock.advance(Duration::from_millis(millis));
        self.wall.set(at(self.shown()));
    }

    fn save(&mut self) {
        self.tell_uptime();
        let own = self.opened.as_ref().expect("it runs");
        let path = own.folder.snapshot();
        snapshot::save(&own.found.engine, &own.found.cells, &path, uptime).expect("saved");
        let shown = i64::try_from(self.shown()).expect("a time");
        self.saved = (
            self.now,
            shown,
            self.counted,
            self.boot,
            self.admitted.len(),
        );
    }

    fn restart(&mut self, (end, down): (End, u64), set: i64, version: usize) {
        if let End::Stop = end {
            self.save();
        }
        self.opened = None;
        self.now += down;
        self.ahead += set;
        self.boot += u128::from(matches!(end, End::Reboot));
        let (now, shown, counted, boot, admitted) = self.saved;
        for lost in &mut self.admitted[admitted..] {
            lost.is_lost = true;
        }
        let passed = if boot == self.boot {
            (self.now - now).saturating_sub(EXACT_TO)
        } else {
            // Only the wall clock measures this.
            let later = i64::try_from(self.shown()).expect("a time") - shown;
            u64::try_from(later).unwrap_or(0)
        };
        self.counted = counted + passed;
        self.start(version);
    }

    fn ask(&self, rule: usize, cost: u64) -> bool {
        let own = self.opened.as_ref().expect("it runs");
        if RULES[rule] == "throttle" {
            let limit = ThrottleLimit::per_minute(LIMIT);
            let limit = own.found.cells.prepare_limit(limit).expect("a limit");
            let charged = own.found.cells.charge(&limit, b"ada", cost).now_or_never();
            return charged.expect("at once").expect("a decision").is_allowed;
        }
        let facts = Facts::new().with("rule", RULES[rule]).with("user", "ada");
        own.found
            .engine
            .decide(&facts.with_cost(cost))
            .allowed()
            .is_some()
    }

    /// What is spent of a rule now, in thousandths: of the saved admissions, or of all. A log is examined over its
    /// period, give or take this many milliseconds.
    fn spent(&self, rule: usize, which: impl Fn(&Admitted) -> bool, slack: i64) -> u64 {
        let own = self.admitted.iter();
        let own = own.filter(|one| one.rule == rule && which(one));
        // A lost admission may be later than the counted time.
        let mut own: Vec<_> = own
            .map(|one| (one.at.min(self.counted), one.cost))
            .collect();
        own.sort_unstable();
        if RULES[rule] == "sliding-log" {
            let begin = self
                .counted
                .saturating_sub(PERIOD.saturating_add_signed(slack));
            let within = own.iter().filter(|(at, _)| *at > begin);
            return within.map(|(_, cost)| cost * 1_000).sum();
        }
        let drained = |spent: u64, millis: u64| {
            spent.saturating_sub(millis.saturating_mul(LIMIT * 1_000) / PERIOD)
        };
        let (spent, last) = own.iter().fold((0, 0), |(spent, last), (at, cost)| {
            (drained(spent, at - last) + cost * 1_000, *at)
        });
        drained(spent, self.counted - last)
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Ask { rule, cost } => {
                let name = RULES[rule];
                let kept = self.spent(rule, |one| !one.is_lost, -2);
                let all = self.spent(rule, |_| true, 2);
                let (most, cost_now) = (LIMIT * 1_000, cost * 1_000);
                // Each division in the list above rounds down by a thousandth.
                let slack = 2 * self.admitted.len() as u64 + 2;
                if self.ask(rule, cost) {
                    prop_assert!(
                        kept + cost_now <= most + slack,
                        "{} admits {} beside {}",
                        name,
                        cost,
                        kept
                    );
                    self.admitted.push(Admitted {
                        rule,
                        at: self.counted,
                        cost,
                        is_lost: false,
                    });
                } else {
                    prop_assert!(
                        all + cost_now + slack > most,
                        "{} refuses {} though {} are spent",
                        name,
                        cost,
                        all
                    );
                }
            }
            Step::Wait(millis) => self.pass(millis),
            Step::Set(by) => {
                self.ahead += by;
                self.wall.set(at(self.shown()));
            }
            Step::Save => self.save(),
            Step::Reload(version) => {
                let own = self.opened.as_ref().expect("it runs");
                own.found.engine.reload(policy(version)).expect("a policy");
            }
            Step::Restart {
                end,
                down,
                set,
                policy,
            } => self.restart((end, down), set, policy),
        }
        Ok(())
    }
}

/// Each case waits for the disk a few times.
fn cases() -> u32 {
    match std::env::var_os("TOLLGATE_SOAK") {
        Some(_) => 3_000,
        None => 30,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_admits_more_than_was_lost_or_refuses_without_a_reason(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step)?;
        }
    }
}

/// A folder with state of every kind, and an opener for it.
fn with_folder(name: &str, check: impl FnOnce(&Folder, &StateOpener<'_, Manual, Manual>)) {
    let scratch = TempFolder::new(name);
    let options = StateOptions {
        uptime: || None,
        ..StateOptions::in_folder(scratch.path("state"))
    };
    let clock = Manual::starting_at(Timestamp::from_secs(1_717_200_000));
    let log = Log::to_writer(io::sink(), LogFormat::Text);
    let opening = || StateOpener {
        policy: policy(0),
        builder: Memory::builder().clock(clock.clone()).wall(clock.clone()),
        throttle_keys: 1_000,
        options: &options,
        log: &log,
    };
    let opened = opening().open().expect("a service");
    let facts = Facts::new().with("user", "ada").with_cost(3);
    for rule in &RULES[..4] {
        let facts = facts.clone().with("rule", rule);
        let verdict = opened.found.engine.decide(&facts);
        assert!(verdict.allowed().is_some());
    }
    let path = opened.folder.snapshot();
    snapshot::save(&opened.found.engine, &opened.found.cells, &path, || None).expect("saved");
    let OpenedState { folder, found, .. } = opened;
    drop(found);
    check(&folder, &opening());
}

fn is_refused(opening: &StateOpener<'_, Manual, Manual>, folder: &Folder) -> bool {
    let restored = snapshot::restore(opening, folder);
    matches!(
        restored,
        Err(RestoreFailure::Restore(RestoreError::Snapshot(_)))
    )
}

#[test]
fn a_snapshot_with_any_byte_changed_or_missing_is_refused() {
    with_folder("state-bytes", |folder, opening| {
        let path = folder.snapshot();
        let right = fs::read(&path).expect("a snapshot");
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("a file");
            is_refused(opening, folder)
        };
        let mut damaged = right.clone();
        for place in 0..right.len() {
            damaged[place] ^= 1 << (place % 8);
            assert!(refused(&damaged), "{place}");
            damaged[place] = right[place];
            assert!(refused(&right[..place]), "{place}");
        }
        damaged.extend([0; 8]);
        assert!(refused(&damaged));
        assert!(!refused(&right));
    });
}

#[test]
fn a_snapshot_whose_parts_make_no_sense_is_refused_though_its_checksum_fits() {
    with_folder("state-words", |folder, opening| {
        let path: &Path = &folder.snapshot();
        let right = fs::read(path).expect("a snapshot");
        let last = right.len() / 8 - 2;
        // The boot, the engine's section, and the end of the last one.
        for (place, value) in [(6, 99), (9, 99), (10, 99), (last, u64::MAX)] {
            fs::write(path, &right).expect("a file");
            corrupt_snapshot(path, |words| words[place] = value);
            assert!(is_refused(opening, folder), "{place}");
        }
    });
}

#[test]
fn a_machine_that_runs_on_tells_the_time_between_whatever_the_wall_clock_shows() {
    let mut world = World::new();
    for rule in 0..RULES.len() {
        assert!(world.ask(rule, LIMIT));
    }
    let year = 31_536_000_000;
    for set in [year, -2 * year] {
        // A tenth of a minute: one of ten has come back, of buckets.
        world.restart((End::Stop, 6_100), set, 0);
        for (rule, name) in RULES.iter().enumerate() {
            assert_eq!(world.ask(rule, 1), *name != "sliding-log", "{name} {set}");
            assert!(!world.ask(rule, 1), "{name} {set}");
        }
    }
}
