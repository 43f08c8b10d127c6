//! The shortest history that still fails, for people to read.

use super::checks::{Violation, judge};
use super::scenario::Scenario;
use super::simulation::run_scenario;

/// The most runs that are tried.
const MAX_RUNS: usize = 400;

/// Runs a scenario and checks its record.
///
/// # Errors
/// The first violation.
pub fn run_and_check(story: &Scenario) -> Result<(), Violation> {
    judge(story, &run_scenario(story))
}

/// Removes all events that aren't needed for a scenario to fail: halves, quarters, and so on down to single
/// events.
///
/// ```
/// use tollgate_testkit::world::{Scenario, shrink};
///
/// // A scenario that doesn't fail stays as it is.
/// let scenario = Scenario::new(1).with(Vec::new());
/// assert_eq!(shrink(&scenario).events.len(), 0);
/// ```
pub fn shrink(story: &Scenario) -> Scenario {
    let mut shortest = story.clone();
    if run_and_check(story).is_ok() {
        return shortest;
    }
    let (mut size, mut plays) = (shortest.events.len().div_ceil(2), 0);
    while size > 0 && plays < MAX_RUNS {
        let (mut from, mut is_shorter) = (0, false);
        while from < shortest.events.len() {
            plays += 1;
            let mut events = shortest.events.clone();
            let to = (from + size).min(events.len());
            events.drain(from..to);
            let shorter = shortest.with(events);
            if run_and_check(&shorter).is_err() {
                (shortest, is_shorter) = (shorter, true);
            } else {
                from = to;
            }
        }
        if !is_shorter || size > 1 {
            size /= 2;
        }
    }
    shortest
}

/// Runs a seed. The error is the text that a failing seed prints: the seed, its shortest history, and the
/// violation in that.
///
/// # Errors
/// That text.
pub fn run_seed(seed: u64) -> Result<(), String> {
    let story = Scenario::new(seed);
    let Err(violation) = run_and_check(&story) else {
        return Ok(());
    };
    let shortest = shrink(&story);
    let left = match run_and_check(&shortest) {
        Err(left) => left.to_string(),
        Ok(()) => "it passes now: it isn't repeatable".to_owned(),
    };
    Err(format!(
        "seed {seed}: {violation}\n\nthe shortest that fails: {left}\n{shortest}"
    ))
}
