//! The counter of each limit, from one policy to the next.
//!
//! A limit that has the same name and algorithm in the next policy keeps its counter, whatever its rate. The backend
//! carries over what was spent, so that no window admits more than the largest burst and the fastest rate of the
//! versions in it, however often they change. The counter of a limit that a policy doesn't have is retired. A later
//! policy that has the limit again continues with it: keys that are idle by then are fully refilled anyway.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::{Algorithm, LimitError, Rate};

use crate::limits::{Counter, Limit, LimitKind};

mod snapshot;

/// Whether other rules may use the same counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Alone,
    Shared,
}

/// The kind of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CounterKind {
    Rate(Algorithm),
    Quota,
    Concurrency,
}

impl CounterKind {
    fn of(kind: &LimitKind) -> Self {
        match kind {
            LimitKind::Rate { algorithm, .. } => Self::Rate(*algorithm),
            LimitKind::Quota(_) => Self::Quota,
            LimitKind::Concurrency(_) | LimitKind::Adaptive(_) => Self::Concurrency,
        }
    }
}

type CounterStates = HashMap<(Box<str>, CounterKind), Vec<CounterState>, FixedState>;

/// How many retired counters are kept beside those that the latest reload retired. The longest retired go first.
const MOST_RETIRED: usize = 1 << 16;

/// The counters of a policy's limits, and of limits that earlier policies had.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    active: CounterStates,
    /// Counters that no limit of the policy uses.
    retired: CounterStates,
    /// Filled during compilation: the counters that limits may continue with. Those of the previous policy come
    /// first, then retired ones, the latest first.
    reusable: CounterStates,
    next_id: u64,
}

/// The counter of one limit.
#[derive(Clone, Copy, Debug)]
struct CounterState {
    id: u64,
    /// `None` for a quota or a concurrency limit.
    rate: Option<Rate>,
    /// The number of reloads since a policy had its limit. Zero while one has.
    retired: u64,
}

impl Counters {
    /// The counters for a policy that follows this one.
    pub(crate) fn continue_from(before: Option<&Self>) -> Self {
        let Some(last) = before else {
            return Self {
                next_id: 1,
                ..Self::default()
            };
        };
        let mut before = last.active.clone();
        for (key, states) in &last.retired {
            before.entry(key.clone()).or_default().extend(states);
        }
        Self {
            active: CounterStates::default(),
            retired: CounterStates::default(),
            reusable: before,
            next_id: last.next_id,
        }
    }

    /// Retires the counters that no limit uses, once all limits have theirs.
    pub(crate) fn retire_unused(&mut self) {
        let mut retired = std::mem::take(&mut self.reusable);
        let mut ages = Vec::new();
        retired.retain(|_, states| {
            for state in states.iter_mut() {
                state.retired = state.retired.saturating_add(1);
            }
            ages.extend(states.iter().map(|state| state.retired));
            !states.is_empty()
        });
        ages.retain(|age| *age > 1);
        if ages.len() > MOST_RETIRED {
            ages.sort_unstable();
            // The ages beyond the bound go. Of the age at the bound, only as many stay as there is room for.
            let oldest = ages[MOST_RETIRED];
            let mut room = MOST_RETIRED - ages.partition_point(|age| *age < oldest);
            retired.retain(|_, states| {
                states.retain(|state| {
                    let has_room = state.retired == oldest && room > 0;
                    room -= usize::from(has_room);
                    state.retired < oldest || has_room
                });
                !states.is_empty()
            });
        }
        self.retired = retired;
    }

    /// The numbers of all counters.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        let all = self.active.values().chain(self.retired.values());
        all.flatten().map(|state| state.id)
    }

    /// The names of rates that the previous policy had and this one hasn't, in order.
    pub(crate) fn just_retired(&self) -> Vec<String> {
        let retired = self.retired.iter().filter(|((name, sort), states)| {
            // Warm-up gates have names that no user wrote.
            matches!(sort, CounterKind::Rate(_))
                && !name.starts_with(super::warm_up::COUNTER_PREFIX)
                && states.iter().any(|state| state.retired == 1)
        });
        let names: BTreeSet<_> = retired.map(|((name, _), _)| name.to_string()).collect();
        names.into_iter().collect()
    }

    /// Assigns each limit of a rule its counter.
    pub(crate) fn assign_counters(
        &mut self,
        name: &str,
        sharing: Sharing,
        kinds: &[LimitKind],
    ) -> Result<Vec<Limit>, LimitError> {
        let mut limits = Vec::with_capacity(kinds.len());
        for alike in kinds.chunk_by(|one, other| CounterKind::of(one) == CounterKind::of(other)) {
            let states = self.assign_states(name, CounterKind::of(&alike[0]), alike);
            for (number, (kind, state)) in alike.iter().zip(states).enumerate() {
                let ordinal = ordinal(alike, number);
                let counter = Counter {
                    name: name.to_owned(),
                    ordinal,
                    id: state.id,
                };
                let limit = Limit::new(kind.clone(), counter)?;
                limits.push(match sharing {
                    Sharing::Alone => limit.with_own_counter(),
                    Sharing::Shared => limit,
                });
            }
        }
        Ok(limits)
    }

    /// The counters for limits of one kind.
    fn assign_states(
        &mut self,
        name: &str,
        sort: CounterKind,
        kinds: &[LimitKind],
    ) -> Vec<CounterState> {
        let key = (name.into(), sort);
        let rates: Vec<_> = kinds
            .iter()
            .map(|kind| match kind {
                LimitKind::Rate { rate, .. } => Some(*rate),
                _ => None,
            })
            .collect();
        // Another rule that shares the counter may have assigned some already.
        let mut states = self.active.remove(&key).unwrap_or_default();
        let rest = &rates[states.len().min(rates.len())..];
        let before = self.reusable.entry(key.clone()).or_default();
        let matched = match_states(before, rest);
        for (place, rate) in matched.iter().zip(rest) {
            let id = match place {
                Some(place) => before[*place].id,
                None => take_id(&mut self.next_id),
            };
            states.push(CounterState {
                id,
                rate: *rate,
                retired: 0,
            });
        }
        let mut place = 0;
        before.retain(|_| {
            place += 1;
            !matched.contains(&Some(place - 1))
        });
        let own = states[..rates.len()].to_vec();
        self.active.insert(key, states);
        own
    }
}

/// The number of a limit among those of its kind and period, the strictest first. So its name depends neither on
/// limits with other periods nor on the order in the policy.
fn ordinal(alike: &[LimitKind], number: usize) -> usize {
    let strictness = |number: usize| match &alike[number] {
        LimitKind::Rate { rate, .. } => (rate.count(), rate.burst_size(), number),
        _ => (0, 0, number),
    };
    let before = (0..alike.len()).filter(|other| {
        period(&alike[*other]) == period(&alike[number]) && strictness(*other) < strictness(number)
    });
    before.count()
}

/// The period of a rate.
fn period(kind: &LimitKind) -> Option<Duration> {
    match kind {
        LimitKind::Rate { rate, .. } => rate.period(),
        _ => None,
    }
}

fn take_id(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}

/// Whether a limit may continue with a counter.
type ReuseRule<'a> = dyn Fn(&CounterState, &Option<Rate>) -> bool + 'a;

/// The previous counter that each limit continues with: that of an equal limit, else one with the same period, else
/// the next in order among those that the rule had when it was last in force.
fn match_states(before: &[CounterState], rates: &[Option<Rate>]) -> Vec<Option<usize>> {
    let period = |rate: &Option<Rate>| rate.and_then(|rate| rate.period());
    let last = before.iter().map(|state| state.retired).min().unwrap_or(0);
    let mut left: Vec<_> = (0..before.len()).collect();
    let mut matched = vec![None; rates.len()];
    let steps: [&ReuseRule<'_>; 3] = [
        &|state, rate| state.rate == *rate,
        &|state, rate| period(&state.rate) == period(rate),
        &|state, _| state.retired == last,
    ];
    for may_follow in steps {
        for (place, rate) in matched.iter_mut().zip(rates) {
            if place.is_some() {
                continue;
            }
            let found = left.iter().position(|own| may_follow(&before[*own], rate));
            *place = found.map(|found| left.remove(found));
        }
    }
    matched
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(rates: &[&str]) -> Vec<LimitKind> {
        let kind = |rate: &&str| LimitKind::Rate {
            rate: rate.parse().unwrap(),
            algorithm: Algorithm::Gcra,
        };
        rates.iter().map(kind).collect()
    }

    fn ids(counters: &mut Counters, limits: &[&str]) -> Vec<u64> {
        let placed = counters.assign_counters("rule/a", Sharing::Alone, &rates(limits));
        placed.unwrap().iter().map(|limit| limit.id).collect()
    }

    #[test]
    fn a_limit_keeps_its_state_by_period_and_then_by_order() {
        let mut first = Counters::continue_from(None);
        assert_eq!(ids(&mut first, &["10/s", "1000/h"]), [1, 2]);
        let mut second = Counters::continue_from(Some(&first));
        assert_eq!(ids(&mut second, &["2000/h", "20/s"]), [2, 1]);
        let mut third = Counters::continue_from(Some(&second));
        assert_eq!(ids(&mut third, &["20/s", "3000/minute"]), [1, 2]);
        let mut fourth = Counters::continue_from(Some(&third));
        assert_eq!(ids(&mut fourth, &["20/s"]), [1]);
        let mut fifth = Counters::continue_from(Some(&fourth));
        assert_eq!(ids(&mut fifth, &["20/s", "1000/h"]), [1, 3]);
    }

    /// The counters of a policy that follows this one with these limits, and their numbers.
    fn next(before: &Counters, limits: &[&str]) -> (Counters, Vec<u64>) {
        let mut counters = Counters::continue_from(Some(before));
        let ids = ids(&mut counters, limits);
        counters.retire_unused();
        (counters, ids)
    }

    #[test]
    fn equal_limits_keep_their_states_wherever_they_stand() {
        let first = Counters::continue_from(None);
        let (first, ids) = next(&first, &["10/h", "1000/h"]);
        assert_eq!(ids, [1, 2]);
        let (second, ids) = next(&first, &["2000/h", "1000/h", "10/h"]);
        assert_eq!(ids, [3, 2, 1]);
        let (third, ids) = next(&second, &["10/h", "1000/h"]);
        assert_eq!(ids, [1, 2]);
        let (_, ids) = next(&third, &["2000/h", "1000/h", "10/h"]);
        assert_eq!(ids, [3, 2, 1], "also that of the one that was gone");
    }

    #[test]
    fn a_limit_that_was_gone_goes_on_with_its_state() {
        let first = Counters::continue_from(None);
        let (first, ids) = next(&first, &["10/s", "1000/h"]);
        assert_eq!(ids, [1, 2]);
        let (gone, _) = next(&first, &[]);
        assert_eq!(gone.just_retired(), ["rule/a"]);
        let (gone, _) = next(&gone, &[]);
        assert!(gone.just_retired().is_empty());
        let mut all: Vec<_> = gone.ids().collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        assert_eq!(next(&gone, &["1000/h", "10/s"]).1, [2, 1]);
        // A limit that changed while it was gone has the counter that a change without a gap would have given it.
        assert_eq!(next(&gone, &["20/s"]).1, [1]);
        assert_eq!(next(&gone, &["20/s", "9/minute"]).1, [1, 2]);
        // A new limit beside an existing one doesn't continue with counters that were retired earlier.
        let (there, _) = next(&gone, &["10/s"]);
        assert_eq!(next(&there, &["10/s", "9/minute"]).1, [1, 3]);
        assert_eq!(next(&there, &["10/s", "2000/h"]).1, [1, 2]);
    }

    #[test]
    fn rules_that_share_a_counter_never_get_one_state_for_two_limits() {
        let first = Counters::continue_from(None);
        let (first, _) = next(&first, &["10/h", "20/h"]);
        let mut second = Counters::continue_from(Some(&first));
        assert_eq!(ids(&mut second, &["10/h"]), [1]);
        assert_eq!(ids(&mut second, &["10/h", "30/h"]), [1, 2]);
    }

    #[test]
    fn no_more_retired_states_are_kept_than_said_and_the_oldest_go_first() {
        let place = |counters: &mut Counters, name: String| {
            let placed = counters.assign_counters(&name, Sharing::Alone, &rates(&["1/h"]));
            placed.unwrap()[0].id
        };
        let mut counters = Counters::continue_from(None);
        let oldest = place(&mut counters, "oldest".to_owned());
        counters.retire_unused();
        let mut many = Counters::continue_from(Some(&counters));
        for number in 0..MOST_RETIRED {
            place(&mut many, number.to_string());
        }
        many.retire_unused();
        let mut none = Counters::continue_from(Some(&many));
        none.retire_unused();
        // The counters that the latest reload retired are always kept.
        assert_eq!(none.ids().count(), MOST_RETIRED + 1);
        let mut none = Counters::continue_from(Some(&none));
        none.retire_unused();
        assert_eq!(none.ids().count(), MOST_RETIRED);
        assert!(none.ids().all(|id| id != oldest));
        let mut again = Counters::continue_from(Some(&none));
        assert_eq!(place(&mut again, "0".to_owned()), oldest + 1);
        assert!(place(&mut again, "oldest".to_owned()) > oldest + 1);
    }

    #[test]
    fn a_limit_is_called_by_its_period_whatever_stands_before_it() {
        let ordinals = |limits: &[&str]| {
            let mut counters = Counters::continue_from(None);
            let placed = counters.assign_counters("rule/a", Sharing::Alone, &rates(limits));
            let ordinal = |limit: &Limit| limit.counter().ordinal;
            placed.unwrap().iter().map(ordinal).collect::<Vec<_>>()
        };
        assert_eq!(ordinals(&["5/h"]), [0]);
        assert_eq!(ordinals(&["100/s", "5/h"]), [0, 0]);
        assert_eq!(ordinals(&["9/d", "5/h", "100/s", "7/h"]), [0, 0, 0, 1]);
        // Numbered from the strictest, whatever the order.
        assert_eq!(ordinals(&["10/h", "1000/h"]), [0, 1]);
        assert_eq!(ordinals(&["2000/h", "1000/h", "10/h"]), [2, 1, 0]);
        assert_eq!(ordinals(&["5/h burst 9", "5/h", "5/h"]), [2, 0, 1]);
    }
}
