//! Rules and trees together: an allowed request is charged to all limits that it meets, and a denied one to
//! none, unless the trees charge each limit by itself.

use std::collections::BTreeMap;

use super::bucket::Bucket;
use super::{CheckContext, ReportedDecision};
use crate::world::network::EPOCH;
use crate::world::scenario::{Amount, CountingChoice, LimitSort, Rule};

pub(super) fn check_all_or_none(case: CheckContext<'_>) -> Result<(), String> {
    if !case.setting().has_trees() {
        return Ok(());
    }
    for told in &case.record.answers {
        charged(case, told)?;
    }
    if is_known(case) {
        as_the_oracle(case)
    } else {
        Ok(())
    }
}

/// Checks the charge that is reported for a request.
fn charged(case: CheckContext<'_>, told: &ReportedDecision) -> Result<(), String> {
    if told.version != told.last_version {
        return Ok(());
    }
    let in_force = told.ask.descriptors & case.setting().leaves_in_force(told.version);
    if told.allowed && told.charged & in_force != in_force {
        return Err(format!(
            "it passed, and not all of its trees were charged: {told:?}"
        ));
    }
    if !told.allowed && told.charged != 0 && !case.setting().charges_each {
        return Err(format!("denied, and charged: {told:?}"));
    }
    Ok(())
}

/// Whether what remains of all limits is known at any time: no faults or delays, no waiting, refunds or
/// cancellations, and all limits are exact.
fn is_known(case: CheckContext<'_>) -> bool {
    let setting = case.setting();
    let is_simple = |rule: &Rule| {
        let is_counted = match rule.counted {
            CountingChoice::Exact => true,
            // Beside a store each node has its own count, and the interval of one word is whole.
            CountingChoice::Local => {
                let is_whole = |amount: &Amount| amount.period.is_multiple_of(amount.count);
                setting.is_in_memory && rule.amounts().all(is_whole)
            }
            CountingChoice::Leased => false,
        };
        let is_sort = matches!(
            rule.sort,
            LimitSort::Level(_) | LimitSort::Window("fixed-window" | "sliding-log")
        );
        is_counted && is_sort && rule.estimated.is_none() && rule.waits.is_none()
    };
    case.is_calm()
        && setting.delay == 0
        && setting.shards == 1
        && setting.versions == 1
        && case.record.unanswered.is_empty()
        && setting.rules.iter().all(is_simple)
}

/// What one limit has admitted for one key.
#[derive(Debug)]
enum State {
    Level(Bucket),
    /// The window's number, and the count in it.
    Window(u64, u64),
    /// The time and the cost of each hit.
    Log(Vec<(u64, u64)>),
}

impl State {
    fn new(rule: &Rule) -> Self {
        match rule.sort {
            LimitSort::Level(_) => Self::Level(Bucket::default()),
            LimitSort::Window("sliding-log") => Self::Log(Vec::new()),
            _ => Self::Window(0, 0),
        }
    }

    fn has_room(&self, told: &ReportedDecision, amount: Amount) -> bool {
        let (now, cost) = (told.at, told.ask.cost);
        let count = match self {
            Self::Level(bucket) => {
                let mut bucket = *bucket;
                return bucket.take(now, cost, amount);
            }
            Self::Window(window, count) if *window == number_of(now, amount) => *count,
            Self::Window(..) => 0,
            Self::Log(log) => {
                let within = log.iter().filter(|(at, _)| at + amount.period > now);
                within.map(|(_, cost)| cost).sum()
            }
        };
        count + cost <= amount.count
    }

    fn charge(&mut self, told: &ReportedDecision, amount: Amount) {
        let (now, cost) = (told.at, told.ask.cost);
        match self {
            Self::Level(bucket) => bucket.charge(now, cost, amount),
            Self::Window(window, count) => {
                let number = number_of(now, amount);
                *count = cost + if *window == number { *count } else { 0 };
                *window = number;
            }
            Self::Log(log) => log.push((now, cost)),
        }
    }
}

/// The number of the window that contains a time.
fn number_of(now: u64, amount: Amount) -> u64 {
    (EPOCH + now) / amount.period
}

/// Checks that each request passes if all of its limits have room, and is charged to all or to none.
fn as_the_oracle(case: CheckContext<'_>) -> Result<(), String> {
    let setting = case.setting();
    let mut states: BTreeMap<(usize, usize, usize), State> = BTreeMap::new();
    for told in &case.record.answers {
        let rules = setting.rules.iter().enumerate();
        let met: Vec<_> = rules
            .filter(|(number, rule)| rule.meets(*number, &told.ask))
            .flat_map(|(number, rule)| {
                let key = if rule.is_shared { 0 } else { told.ask.who };
                let amounts = rule.versions[0].iter().enumerate();
                amounts.map(move |(rate, amount)| (rule, (number, key, rate), *amount))
            })
            .map(|(rule, place, mut amount)| {
                if let Some((count, _)) = rule.adjusted_cost(0, told.ask.brings) {
                    amount.count = count;
                }
                let state = states.entry(place);
                let has_room = state
                    .or_insert_with(|| State::new(rule))
                    .has_room(told, amount);
                (place, amount, has_room)
            })
            .collect();
        let is_leaf = |number: usize| setting.rules[number].leaf.is_some();
        let is_shadow = |number: usize| setting.rules[number].is_shadow();
        let all = |of_trees: bool| {
            let mut own = met
                .iter()
                .filter(|((number, ..), ..)| is_leaf(*number) == of_trees);
            own.all(|((number, ..), _, has_room)| *has_room || is_shadow(*number))
        };
        let passes = all(true) && all(false) && !case.is_blocked(&told.ask);
        if passes != told.allowed {
            let says = if passes { "passes" } else { "doesn't pass" };
            return Err(format!(
                "it {says} by the oracle of all limits, and not here: {told:?}"
            ));
        }
        let mut charged = 0;
        for (place, amount, _) in &met {
            let number = place.0;
            let is_charged = passes || (setting.charges_each && is_leaf(number));
            // A limit with several rates is charged to all of them or to none.
            let mut rates = met.iter().filter(|((other, ..), ..)| *other == number);
            if is_charged && rates.all(|(_, _, has_room)| *has_room) {
                states
                    .entry(*place)
                    .and_modify(|state| state.charge(told, *amount));
                charged |= u8::from(is_leaf(number)) << number;
            }
        }
        // The charge of a limit in shadow mode isn't reported if a rule denies the request.
        let is_told = passes || told.rule.is_some_and(is_leaf) || told.charged == 0;
        if is_told && charged != told.charged && (passes || setting.charges_each || charged == 0) {
            return Err(format!("charged {charged:#b} by the oracle: {told:?}"));
        }
    }
    Ok(())
}
