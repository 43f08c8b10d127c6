//! The results of each adaptive algorithm in each scenario of the simulator, cell by cell, as in
//! `docs/explanation/adaptive.md`.

use std::sync::OnceLock;
use std::thread;

use tollgate_adaptive::simulation::{Limit, Scenario, Score};
use tollgate_adaptive::{AdaptiveAlgorithm, Bounds};

const PAGE: &str = include_str!("../../docs/adaptive.md");

/// What is wrong with a run, or that it is good.
fn cell(judged: &Score) -> String {
    let wrong = [
        ("goodput", judged.goodput < Score::GOODPUT),
        ("p99", judged.p99_times > Score::P99_TIMES),
        ("swing", judged.swing > Score::SWING),
        ("starved", judged.starved > Score::STARVED),
    ];
    let wrong: Vec<_> = wrong
        .iter()
        .filter(|(_, is)| *is)
        .map(|(name, _)| *name)
        .collect();
    if wrong.is_empty() {
        "good".to_owned()
    } else {
        wrong.join(", ")
    }
}

fn judge(scenario: &Scenario, best: &[(u32, f64)], law: AdaptiveAlgorithm, seed: u64) -> Score {
    let bounds = Bounds::new(1.0, 200.0).unwrap();
    let limit = |client| Limit::Law(law.make(bounds, 1_000 * seed + client).unwrap());
    scenario.run(limit, seed).judge(best)
}

/// Of each scenario, what each law achieves.
fn judged() -> &'static [(Scenario, Vec<Score>)] {
    static JUDGED: OnceLock<Vec<(Scenario, Vec<Score>)>> = OnceLock::new();
    JUDGED.get_or_init(|| {
        let judges: Vec<_> = Scenario::all()
            .into_iter()
            .map(|scenario| {
                thread::spawn(move || {
                    let best = scenario.best_fixed(1);
                    let each = AdaptiveAlgorithm::ALL.map(|law| judge(&scenario, &best, law, 1));
                    (scenario, each.to_vec())
                })
            })
            .collect();
        judges
            .into_iter()
            .map(|judge| judge.join().unwrap())
            .collect()
    })
}

#[test]
fn the_table_of_the_page_is_what_the_simulator_says() {
    let names = AdaptiveAlgorithm::ALL
        .map(AdaptiveAlgorithm::name)
        .join("` | `");
    let mut table = format!(
        "| scenario | `{names}` |\n|---|{}\n",
        "---|".repeat(AdaptiveAlgorithm::ALL.len())
    );
    for (scenario, each) in judged() {
        let cells: Vec<_> = each.iter().map(cell).collect();
        table += &format!(
            "| `{}`: {} | {} |\n",
            scenario.name,
            scenario.about,
            cells.join(" | ")
        );
    }
    assert!(
        PAGE.contains(&table),
        "docs/explanation/adaptive.md should have this table:\n{table}"
    );
}

#[test]
fn the_default_law_is_good_in_every_scenario() {
    for (scenario, each) in judged() {
        let little = &each[0];
        assert!(little.is_good(), "{}: {little:?}", scenario.name);
    }
}

/// Slower calls aren't a queue: with as many in flight as before, as much is answered as servers can do.
#[test]
fn calls_that_become_slower_are_not_taken_for_a_queue() {
    for name in ["slows", "slower", "milder", "tenfold", "twentyfold"] {
        let scenario = Scenario::named(name).unwrap();
        for seed in 2..4 {
            let best = scenario.best_fixed(seed);
            let little = judge(&scenario, &best, AdaptiveAlgorithm::Little, seed);
            let is_there = little.goodput >= Score::GOODPUT && little.starved <= Score::STARVED;
            assert!(is_there, "{name}, seed {seed}: {little:?}");
        }
    }
}

/// The same for several instances, each with its limit, if there are servers for all of them at all times. With fewer, one
/// call at a time from each makes a queue already, and what calls take without one can't be known from any of them.
fn with_instances(scenario: &Scenario) -> Option<Scenario> {
    let fewest = scenario.phases.iter().map(|phase| phase.servers).min()?;
    let clients = match scenario.clients {
        1 => fewest.min(4),
        clients => 2 * clients,
    };
    (clients > 1).then(|| Scenario {
        clients,
        ..scenario.clone()
    })
}

/// The same, with phases that last five times as long, but for those in which nothing is served.
fn longer(scenario: &Scenario) -> Scenario {
    let mut longer = scenario.clone();
    for phase in longer.phases.iter_mut().filter(|phase| phase.speed > 0.0) {
        phase.lasts *= 5;
    }
    longer
}

/// Other seeds than the table's, several instances and long runs, so that the default law isn't good by luck.
#[test]
fn the_default_law_is_good_by_other_chance_too() {
    let long = std::env::var_os("TOLLGATE_SOAK").is_some();
    let (mut wrong, mut runs) = (Vec::new(), 0);
    let mut played = Scenario::all();
    played.extend(
        Scenario::all()
            .iter()
            .filter_map(with_instances)
            .collect::<Vec<_>>(),
    );
    if long {
        played.extend(played.iter().map(longer).collect::<Vec<_>>());
    }
    // Every day none of the longest scenario.
    played.retain(|scenario| long || scenario.name != "turns");
    // What no run may fall below: of the few that are played every day none is below what is good.
    let (least, starved) = if long {
        (0.5, 2 * Score::STARVED)
    } else {
        (Score::GOODPUT, Score::STARVED)
    };
    for scenario in played {
        for seed in 2..if long { 22 } else { 4 } {
            runs += 1;
            let best = scenario.best_fixed(seed);
            let little = judge(&scenario, &best, AdaptiveAlgorithm::Little, seed);
            let Scenario { name, clients, .. } = scenario;
            let told = format!("{name}, {clients} instances, seed {seed}: {little:?}");
            let holds = little.goodput >= least && little.starved <= starved;
            assert!(holds, "{told}");
            if !little.is_good() {
                wrong.push(told);
            }
        }
    }
    // Of queues and swings as many as docs/explanation/adaptive.md tells of.
    let may_be = runs / if long { 10 } else { 30 };
    assert!(
        wrong.len() <= may_be,
        "{} of {runs}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_run_is_the_same_every_time() {
    let scenario = Scenario::named("slows").unwrap();
    let run = || {
        let bounds = Bounds::new(1.0, 200.0).unwrap();
        scenario.run(
            |client| Limit::Law(AdaptiveAlgorithm::Little.make(bounds, client).unwrap()),
            7,
        )
    };
    assert_eq!(run(), run());
}

/// With fixed service times a concurrency of 8 is best, and Gradient2 settles far above.
#[test]
fn gradient2_settles_near_fifty_where_eight_are_best() {
    let scenario = Scenario::named("fixed").unwrap();
    let bounds = Bounds::new(1.0, 200.0).unwrap();
    let run = scenario.run(
        |_| Limit::Law(AdaptiveAlgorithm::Gradient2.make(bounds, 0).unwrap()),
        1,
    );
    let settled = run.phases[0].limit;
    assert!((40.0..60.0).contains(&settled), "{settled}");
}
