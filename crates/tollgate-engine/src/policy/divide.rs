//! The part of a policy that each of several processes enforces that count apart.

use std::time::Duration;

use tollgate::{Algorithm, Rate};

use super::{Cost, Counting, DescriptorRule, Limits, Policy};

/// No longer period is made of a shorter one.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The part of a policy for one of several that count apart: see [`Policy::divided`].
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let text = "limits: [{name: bulk, rate: 10/s, cost: 5}]";
/// let divided = Policy::from_text(text, Format::Yaml)?.policy.divided(5);
/// assert_eq!(divided.policy.rules[0].limits.rates[0].to_string(), "2/s");
/// assert_eq!(divided.notes, ["a request costs 5 of \"bulk\", more than the 2 of each replica: it never passes"]);
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Divided {
    /// What each of them enforces.
    pub policy: Policy,
    /// What can't be had in parts: limits below one each, and costs above a part, in words.
    pub notes: Vec<String>,
}

/// How many parts there are, and what was said of them.
struct Cut {
    by: u64,
    notes: Vec<String>,
}

/// What becomes of a rate whose count can't be divided.
#[derive(Clone, Copy)]
enum Periods {
    /// As many in a longer time.
    Grow,
    /// Fewer in the same.
    Stay,
}

impl Policy {
    /// What each of so many enforces that count apart, so that all of them together admit no more than the policy says.
    /// Buckets are divided exactly, by a longer period where the count can't be; windows, quotas and slots are rounded
    /// down, but never below one. What is counted [here](Counting::Local) alone stays as it is: that is said of each.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits: [{name: calls, rate: 10/s}, {name: jobs, concurrency: 2}]";
    /// let divided = Policy::from_text(text, Format::Yaml)?.policy.divided(3);
    /// let [calls, jobs] = &divided.policy.rules[..] else { panic!("two rules") };
    /// assert_eq!(calls.limits.rates[0].to_string(), "10 per 3s burst 3");
    /// assert_eq!(jobs.limits.concurrency, Some(1));
    /// assert_eq!(divided.notes, ["\"jobs\" allows 2 at once, fewer than 3 replicas: each lets 1 pass"]);
    /// # Ok::<(), tollgate_engine::Rejected>(())
    /// ```
    pub fn divided(&self, by: u32) -> Divided {
        let mut policy = self.clone();
        let mut cut = Cut {
            by: u64::from(by.max(1)),
            notes: Vec::new(),
        };
        if cut.by > 1 {
            for rule in &mut policy.rules {
                if rule.counting != Counting::Local {
                    let periods = Periods::of(rule.algorithm);
                    cut.limits(&rule.name, &mut rule.limits, periods, &rule.cost);
                }
            }
            for (name, tier) in &mut policy.tiers {
                if tier.counting != Counting::Local {
                    let periods = Periods::of(tier.algorithm);
                    cut.limits(name, &mut tier.limits, periods, &tier.cost);
                }
            }
            for (name, domain) in &mut policy.domains {
                cut.trees(name, &mut domain.descriptors);
            }
        }
        let notes = cut.notes;
        Divided { policy, notes }
    }
}

impl Cut {
    fn trees(&mut self, path: &str, descriptors: &mut [DescriptorRule]) {
        for rule in descriptors {
            let path = match &rule.value {
                Some(value) => format!("{path}/{}={value}", rule.key),
                None => format!("{path}/{}", rule.key),
            };
            let limit = rule.limit.as_mut();
            if let Some(limit) = limit.filter(|own| own.counting != Counting::Local) {
                // Proxies are told how many there are in a unit, so that stays.
                let periods = match limit.unit {
                    Some(_) => Periods::Stay,
                    None => Periods::of(limit.algorithm),
                };
                self.limits(&path, &mut limit.limits, periods, &Cost::default());
            }
            self.trees(&path, &mut rule.descriptors);
        }
    }

    fn limits(&mut self, name: &str, own: &mut Limits, periods: Periods, cost: &Cost) {
        let before = self.notes.len();
        let mut least = u64::MAX;
        for rate in &mut own.rates {
            let Some(period) = rate.period().filter(|_| !rate.is_unlimited()) else {
                continue;
            };
            let burst = self.count(name, rate.burst_size(), "in a burst");
            *rate = match (rate.count(), periods) {
                (count, _) if count % self.by == 0 => Rate::new(count / self.by, period),
                (count, Periods::Grow) => self.slower(count, period),
                (count, Periods::Stay) => Rate::new(self.count(name, count, "in a period"), period),
            }
            .burst(burst);
            least = least.min(burst);
        }
        if let Some(quota) = &mut own.quota {
            let count = self.count(name, quota.count(), "in a period");
            *quota = quota.with_count(count);
            least = least.min(count);
        }
        if let Some(slots) = &mut own.concurrency {
            let count = self.count(name, u64::from(*slots), "at once");
            // Never more than it was.
            *slots = u32::try_from(count).unwrap_or(*slots);
        }
        // One limit is told of once.
        self.notes.truncate(before + 1);
        let cost = cost.default;
        if cost > least {
            self.notes.push(format!(
                "a request costs {cost} of {name:?}, more than the {least} of each replica: it never passes"
            ));
        }
    }

    /// The same count in a longer time; if that is longer than there is, fewer in the same.
    fn slower(&self, count: u64, period: Duration) -> Rate {
        let by = u32::try_from(self.by).ok();
        match by.and_then(|by| period.checked_mul(by)) {
            Some(longer) if longer <= LONGEST => Rate::new(count, longer),
            _ => Rate::new((count / self.by).max(1), period),
        }
    }

    fn count(&mut self, name: &str, count: u64, what: &str) -> u64 {
        let by = self.by;
        if (1..by).contains(&count) {
            self.notes.push(format!(
                "{name:?} allows {count} {what}, fewer than {by} replicas: each lets 1 pass"
            ));
        }
        (count / by).max(count.min(1))
    }
}

impl Periods {
    const fn of(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Grow,
            _ => Self::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Format;

    /// The limits of the first rule or descriptor, as text, and what was noted.
    fn parts(text: &str, by: u32) -> (String, Vec<String>) {
        let divided = Policy::from_text(text, Format::Yaml)
            .unwrap()
            .policy
            .divided(by);
        let rules = divided.policy.rules.iter().map(|rule| &rule.limits);
        let trees = divided.policy.domains.values();
        let trees = trees.flat_map(|domain| &domain.descriptors);
        let trees = trees.filter_map(|one| Some(&one.limit.as_ref()?.limits));
        let own = rules.chain(trees).next().unwrap();
        let rates = own.rates.iter().map(ToString::to_string);
        let quota = own.quota.iter().map(ToString::to_string);
        let slots = own.concurrency.iter().map(ToString::to_string);
        let all: Vec<_> = rates.chain(quota).chain(slots).collect();
        (all.join(", "), divided.notes)
    }

    #[test]
    fn all_parts_together_admit_no_more_than_the_whole() {
        for (limit, by, part) in [
            ("rate: 10/s", 1, "10/s"),
            ("rate: 10/s", 2, "5/s"),
            ("rate: 10/s burst 21", 2, "5/s burst 10"),
            ("rate: 10/s", 3, "10 per 3s burst 3"),
            ("rate: 10/s, algorithm: fixed-window", 3, "3/s"),
            ("rate: [10/s, 100/m]", 5, "2/s, 20/m"),
            ("quota: 100/day", 3, "33/day"),
            ("concurrency: 7", 2, "3"),
            ("rate: 10/s, counting: local", 2, "10/s"),
            ("rate: 0/s", 2, "zero"),
        ] {
            let text = format!("limits: [{{name: a, {limit}}}]");
            assert_eq!(parts(&text, by), (part.to_owned(), Vec::new()), "{limit}");
        }
        let tree = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10}}]";
        assert_eq!(parts(tree, 3), ("3/h".to_owned(), Vec::new()));
    }

    #[test]
    fn what_cant_be_had_in_parts_is_told() {
        for (limit, note) in [
            (
                "rate: 2/s, algorithm: fixed-window",
                "\"a\" allows 2 in a burst, fewer than 4 replicas: each lets 1 pass",
            ),
            (
                "rate: 10/s, cost: 5",
                "a request costs 5 of \"a\", more than the 2 of each replica: it never passes",
            ),
        ] {
            let text = format!("limits: [{{name: a, {limit}}}]");
            assert_eq!(parts(&text, 4).1, [note]);
        }
    }

    #[test]
    fn a_period_that_would_be_too_long_isnt_longer() {
        let text = "limits: [{name: a, rate: 1001 per 365d}]";
        assert_eq!(parts(text, 1_000_000).0, "1 per 365d");
        assert_eq!(parts(text, 2).0, "1001 per 730d burst 500");
    }
}
