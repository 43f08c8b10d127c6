//! The engine equals a slow oracle: rules matched one by one, keys as lists of text, and every limit computed from the
//! list of all admissions.

mod inputs;

use std::collections::HashMap;
use std::time::Duration;

use inputs::{policy, request};
use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Algorithm, Outcome, Timestamp};
use tollgate_engine::backend::Memory;
use tollgate_engine::matcher::explain;
use tollgate_engine::policy::{KeyPart, MatchConditions, Mode, OnMissingKey, Policy, Rule};
use tollgate_engine::verdict::{AllowedRequest, Cause, Permits};
use tollgate_engine::{Engine, Facts};
use tollgate_testkit::oracle::{Oracle, OracleKind};

const HOUR: u64 = 3_600_000_000_000;

/// The state of one key of one limit.
enum State {
    Rate(Box<dyn Oracle>),
    /// Used in each hour.
    Quota(u64, HashMap<u64, u64>),
    /// The requests that hold a permit.
    Slots(u64, Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    outcome: Outcome,
    remaining: u64,
    retry_after: Duration,
}

impl State {
    fn look(&self, now: Timestamp, cost: u64) -> Said {
        let (limit, left, wait) = match self {
            Self::Rate(oracle) => {
                let remaining = oracle.remaining(now);
                let (outcome, retry_after) = match oracle.earliest(now, cost) {
                    None => (Outcome::Never, Duration::MAX),
                    Some(at) if at <= now => (Outcome::Allowed, Duration::ZERO),
                    Some(at) => (Outcome::Denied, at - now),
                };
                return Said {
                    outcome,
                    remaining,
                    retry_after,
                };
            }
            Self::Quota(limit, used) => {
                let hour = now.as_nanos() / HOUR;
                let left = limit - used.get(&hour).copied().unwrap_or(0);
                let wait = Duration::from_nanos((hour + 1) * HOUR - now.as_nanos());
                (*limit, left, wait)
            }
            Self::Slots(limit, held) => (*limit, limit - held.len() as u64, Duration::ZERO),
        };
        let (outcome, retry_after) = match () {
            () if cost <= left => (Outcome::Allowed, Duration::ZERO),
            () if cost > limit => (Outcome::Never, Duration::MAX),
            () => (Outcome::Denied, wait),
        };
        Said {
            outcome,
            remaining: left,
            retry_after,
        }
    }

    fn charge(&mut self, now: Timestamp, cost: u64, request: usize) {
        match self {
            Self::Rate(oracle) if cost > 0 => oracle.record(now, cost),
            Self::Rate(_) => {}
            Self::Quota(_, used) => *used.entry(now.as_nanos() / HOUR).or_default() += cost,
            Self::Slots(_, held) => held.push(request),
        }
    }
}

type StateName = (String, usize, Vec<String>);

#[derive(Default)]
struct Slow {
    states: HashMap<StateName, State>,
}

impl Slow {
    /// All or none of these limits; the deciding one, and its decision.
    fn ask(
        &mut self,
        checks: &[(StateName, u64)],
        now: Timestamp,
        request: usize,
    ) -> Option<(usize, Said)> {
        let said = |states: &HashMap<StateName, State>, peek: bool| -> Vec<Said> {
            let costs = checks
                .iter()
                .map(|(place, cost)| (place, if peek { 0 } else { *cost }));
            costs
                .map(|(place, cost)| states[place].look(now, cost))
                .collect()
        };
        let before = said(&self.states, false);
        let refused = before
            .iter()
            .enumerate()
            .filter(|(_, said)| said.outcome != Outcome::Allowed);
        // The first of those that take longest.
        let worst = refused.rev().max_by_key(|(_, said)| said.retry_after);
        if let Some((number, said)) = worst {
            return Some((number, *said));
        }
        for (place, cost) in checks {
            self.states
                .get_mut(place)
                .expect("looked at before")
                .charge(now, *cost, request);
        }
        let after = said(&self.states, true).into_iter().enumerate();
        after.min_by_key(|(number, said)| said.remaining / checks[*number].1.max(1))
    }

    fn end(&mut self, request: usize) {
        for state in self.states.values_mut() {
            if let State::Slots(_, held) = state {
                held.retain(|own| *own != request);
            }
        }
    }

    fn checks(&mut self, rule: &Rule, facts: &Facts<'_>) -> Vec<(StateName, u64)> {
        let key = key_of(rule, facts).unwrap_or_else(|| vec!["no key".to_owned()]);
        let cost = rule
            .cost
            .fact
            .as_ref()
            .and_then(|fact| facts.get(fact)?.parse().ok());
        let cost = cost.unwrap_or(rule.cost.default);
        let limits = &rule.limits;
        let mut made: Vec<(State, u64)> = Vec::new();
        for rate in &limits.rates {
            made.push((State::Rate(kind(rule.algorithm).oracle(*rate)), cost));
        }
        if let Some(quota) = &limits.quota {
            made.push((State::Quota(quota.count(), HashMap::new()), cost));
        }
        if let Some(limit) = limits.concurrency {
            made.push((State::Slots(u64::from(limit), Vec::new()), 1));
        }
        let placed = made
            .into_iter()
            .enumerate()
            .map(|(ordinal, (state, cost))| {
                let place = (rule.name.clone(), ordinal, key.clone());
                self.states.entry(place.clone()).or_insert(state);
                (place, cost)
            });
        placed.collect()
    }
}

fn kind(algorithm: Algorithm) -> OracleKind {
    match algorithm {
        Algorithm::TokenBucket => OracleKind::TokenBucket,
        Algorithm::LeakyBucket => OracleKind::LeakyBucket,
        Algorithm::FixedWindow(align) => OracleKind::FixedWindow(align),
        Algorithm::SlidingLog => OracleKind::SlidingLog,
        Algorithm::SlidingCounter => OracleKind::SlidingCounter,
        _ => OracleKind::Gcra,
    }
}

/// Of `ip/30`, the first 30 bits of these addresses are in the text.
fn part_of(part: &KeyPart, facts: &Facts<'_>) -> Option<String> {
    match part {
        KeyPart::Fact(fact) => facts.get(fact).map(str::to_owned),
        KeyPart::Network { fact, .. } => facts.get(fact).map(|ip| {
            let network = if ip.starts_with("10.0.0.") {
                "10.0.0.0/30"
            } else {
                "2001:db8::/30"
            };
            network.to_owned()
        }),
    }
}

/// The key that a request has: the number of the first of which it has every part, and their values.
fn key_of(rule: &Rule, facts: &Facts<'_>) -> Option<Vec<String>> {
    if rule.key.is_empty() {
        return Some(Vec::new());
    }
    rule.keys().enumerate().find_map(|(number, key)| {
        let values: Option<Vec<_>> = key.iter().map(|part| part_of(part, facts)).collect();
        let mut values = values?;
        values.push(format!("of key {number}"));
        Some(values)
    })
}

/// What the engine should say: whether it passes, by which rule, and that rule's decision; and which
/// rules in shadow refuse.
type Expected = (bool, String, Option<Said>, Vec<String>);

fn expected(
    slow: &mut Slow,
    policy: &Policy,
    facts: &Facts<'_>,
    now: Timestamp,
    request: usize,
) -> Expected {
    let position =
        |list: &[MatchConditions]| list.iter().position(|one| explain(one, facts).matches());
    let mut shadows = Vec::new();
    if let Some(entry) = position(&policy.block) {
        if policy.mode == Mode::Enforce {
            return (false, Cause::Block(entry).to_string(), None, Vec::new());
        }
        shadows.push(Cause::Block(entry).to_string());
    }
    if let Some(entry) = position(&policy.exempt) {
        return (true, Cause::Exempt(entry).to_string(), None, shadows);
    }
    let mode = |rule: &Rule| rule.mode.max(policy.mode);
    let applies = |rule: &&Rule| {
        let passes = matches!(rule.on_missing_key, None | Some(OnMissingKey::Pass));
        let has_key = key_of(rule, facts).is_some();
        rule.mode != Mode::Off && explain(&rule.matches, facts).matches() && (has_key || !passes)
    };
    let met: Vec<&Rule> = policy.rules.iter().filter(applies).collect();
    let stays = |rule: &&&Rule| {
        !met.iter()
            .any(|other| mode(other) <= mode(rule) && other.replaces.contains(&rule.name))
    };
    let staying: Vec<&Rule> = met.iter().filter(stays).copied().collect();
    let is_denied = |rule: &&Rule| {
        rule.on_missing_key == Some(OnMissingKey::Deny) && key_of(rule, facts).is_none()
    };
    let (denying, staying): (Vec<&Rule>, Vec<&Rule>) = staying.into_iter().partition(is_denied);
    let cause_of = |rule: &&&Rule| Cause::Rule(&rule.name).to_string();
    let mut enforced = denying.iter().filter(|rule| mode(rule) == Mode::Enforce);
    if let Some(rule) = enforced.next() {
        return (false, cause_of(&rule), None, shadows);
    }
    shadows.extend(denying.iter().map(|rule| cause_of(&rule)));
    let enforced: Vec<_> = staying
        .iter()
        .filter(|rule| mode(rule) == Mode::Enforce)
        .collect();
    let checks: Vec<_> = enforced
        .iter()
        .flat_map(|rule| slow.checks(rule, facts))
        .collect();
    let decided = slow.ask(&checks, now, request);
    let allowed = decided.is_none_or(|(_, said)| said.outcome == Outcome::Allowed);
    let name = match &decided {
        Some((number, _)) => Some(checks[*number].0.0.clone()),
        None => staying.first().map(|rule| rule.name.clone()),
    };
    let cause = name.map_or_else(
        || Cause::Nothing.to_string(),
        |name| Cause::Rule(&name).to_string(),
    );
    if allowed {
        for rule in staying.iter().filter(|rule| mode(rule) == Mode::Shadow) {
            let checks = slow.checks(rule, facts);
            let said = slow.ask(&checks, now, request);
            if said.is_some_and(|(_, said)| said.outcome != Outcome::Allowed) {
                shadows.push(Cause::Rule(&rule.name).to_string());
            }
        }
    }
    (allowed, cause, decided.map(|(_, said)| said), shadows)
}

fn is_possible(policy: &Policy) -> bool {
    // Windows take no rate of zero in some algorithms: such a policy is refused as a whole.
    Engine::new(policy.clone(), Memory::builder().capacity(100).build()).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_engine_equals_a_slow_oracle(
        policy in policy().prop_filter("can be put in force", is_possible),
        requests in prop::collection::vec(request(), 1..100),
        deny_cache in any::<bool>(),
    ) {
        let start = Timestamp::from_secs(7_200);
        let clock = Manual::starting_at(start);
        let memory = Memory::builder().capacity(1_000).clock(clock.clone()).wall(clock.clone()).build();
        let mut engine = Engine::new(policy.clone(), memory).unwrap();
        if deny_cache {
            engine = engine.with_deny_cache(64);
        }
        let mut slow = Slow::default();
        let mut now = start;
        let mut running: Vec<(usize, usize, Permits)> = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            now += Duration::from_millis(request.after_millis);
            clock.set(now);
            running.retain(|(own, until, _)| {
                let ends = *until <= number;
                if ends {
                    slow.end(*own);
                }
                !ends
            });
            let facts: Facts<'_> = request.facts.iter().copied().collect();
            let (allowed, cause, said, shadows) = expected(&mut slow, &policy, &facts, now, number);
            let verdict = engine.decide(&facts);
            prop_assert_eq!(verdict.denied().is_none(), allowed, "{} {:?} {:?}", number, verdict, said);
            let told: Vec<_> = verdict.shadow_denials().map(|one| one.cause.to_string()).collect();
            prop_assert_eq!(told, shadows);
            // A refusal that is remembered may leave out a limit that takes longer.
            if allowed || !deny_cache {
                prop_assert_eq!(verdict.cause().to_string(), cause, "{}", number);
                if let Some(said) = said {
                    let decision = verdict.decision();
                    let told = Said {
                        outcome: decision.outcome,
                        remaining: decision.remaining,
                        retry_after: decision.wait_or_max(),
                    };
                    prop_assert_eq!(told, said, "{} {:?}", number, verdict);
                }
            }
            running.push((number, number + 1 + request.runs, verdict.allowed().map(AllowedRequest::into_permits).unwrap_or_default()));
        }
        drop(running);
        prop_assert_eq!(engine.backend().keys_in_flight(), 0);
        prop_assert_eq!(engine.backend().lost_races(), 0);
    }
}
