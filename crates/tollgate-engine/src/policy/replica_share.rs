//! Divides a policy among several processes that count separately.

use std::time::Duration;

use tollgate::{Algorithm, Rate};

use super::{Cost, Counting, DescriptorRule, Limits, Policy, is_bucket};

/// The longest period to which a period may grow.
const MAX_PERIOD: Duration = Duration::from_secs(100 * 365 * 86_400);

/// One process's share of a policy: see [`Policy::share_for_replicas`].
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let text = "limits: [{name: bulk, rate: 10/s, cost: 5}]";
/// let divided = Policy::from_text(text, Format::Yaml)?.policy.share_for_replicas(5);
/// assert_eq!(divided.policy.rules[0].limits.rates[0].to_string(), "2/s");
/// assert_eq!(divided.notes, ["a request costs 5 of \"bulk\", more than the 2 of each replica: it never passes"]);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReplicaShare {
    /// The policy for each process.
    pub policy: Policy,
    /// The differences from the whole, as texts: limits whose shares add up to more than the whole, or to less by
    /// more than a hundredth, and costs above a share.
    pub notes: Vec<String>,
}

/// The number of shares, and the notes so far.
struct Divider {
    by: u64,
    notes: Vec<String>,
}

/// How to divide a rate whose count isn't divisible.
#[derive(Clone, Copy)]
enum PeriodRule {
    /// Keep the count and lengthen the period.
    Grow,
    /// Reduce the count and keep the period.
    Stay,
}

impl Policy {
    /// The share of each of `by` processes that count separately, so that all of them together admit no more than the
    /// policy allows. The rate of a bucket is divided exactly, by a longer period if its count isn't divisible. Its
    /// burst, windows, quotas and permits are rounded down, but never below one: with more replicas than permits,
    /// each replica admits one, and together they exceed the policy. The [notes](ReplicaShare::notes) list the
    /// differences. A limit that is [counted in each process](Counting::Local) anyway stays as it is.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits: [{name: calls, rate: 10/s}, {name: jobs, concurrency: 2}]";
    /// let divided = Policy::from_text(text, Format::Yaml)?.policy.share_for_replicas(3);
    /// let [calls, jobs] = &divided.policy.rules[..] else { panic!("two rules") };
    /// assert_eq!(calls.limits.rates[0].to_string(), "10 per 3s burst 3");
    /// assert_eq!(jobs.limits.concurrency, Some(1));
    /// assert_eq!(
    ///     divided.notes,
    ///     [
    ///         "\"calls\": a burst of 10 over 3 replicas is 3 each: 9 in all instead of 10; a multiple of 3 can be divided",
    ///         "\"jobs\": 2 concurrent over 3 replicas is 1 each: 3 in all instead of 2; a multiple of 3 can be divided",
    ///     ]
    /// );
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn share_for_replicas(&self, by: u32) -> ReplicaShare {
        let mut policy = self.clone();
        let mut cut = Divider {
            by: u64::from(by.max(1)),
            notes: Vec::new(),
        };
        if cut.by > 1 {
            for rule in &mut policy.rules {
                if rule.counting != Counting::Local {
                    let periods = PeriodRule::of(rule.algorithm);
                    cut.divide_limits(&rule.name, &mut rule.limits, periods, &rule.cost);
                }
            }
            for (name, tier) in &mut policy.tiers {
                if tier.counting != Counting::Local {
                    let periods = PeriodRule::of(tier.algorithm);
                    cut.divide_limits(name, &mut tier.limits, periods, &tier.cost);
                }
            }
            for (name, domain) in &mut policy.domains {
                cut.divide_descriptors(name, &mut domain.descriptors);
            }
        }
        let notes = cut.notes;
        ReplicaShare { policy, notes }
    }
}

impl Divider {
    fn divide_descriptors(&mut self, path: &str, descriptors: &mut [DescriptorRule]) {
        for rule in descriptors {
            let path = match &rule.value {
                Some(value) => format!("{path}/{}={value}", rule.key),
                None => format!("{path}/{}", rule.key),
            };
            let limit = rule.limit.as_mut();
            if let Some(limit) = limit.filter(|own| own.counting != Counting::Local) {
                // Responses report requests per unit to proxies, so the unit must stay.
                let periods = match limit.unit {
                    Some(_) => PeriodRule::Stay,
                    None => PeriodRule::of(limit.algorithm),
                };
                self.divide_limits(&path, &mut limit.limits, periods, &Cost::default());
            }
            self.divide_descriptors(&path, &mut rule.descriptors);
        }
    }

    fn divide_limits(&mut self, name: &str, own: &mut Limits, periods: PeriodRule, cost: &Cost) {
        let mut least = u64::MAX;
        for rate in &mut own.rates {
            if let Some(period) = rate.period().filter(|_| !rate.is_unlimited()) {
                *rate = self.divide_rate(name, *rate, period, periods);
                least = least.min(rate.burst_size());
            }
        }
        if let Some(quota) = &mut own.quota {
            let whole = quota.to_string();
            let count = self.divide_count(name, quota.count(), &whole);
            *quota = quota.with_count(count);
            least = least.min(count);
        }
        if let Some(slots) = &mut own.concurrency {
            let count = self.divide_count(name, u64::from(*slots), &format!("{slots} concurrent"));
            // A share never exceeds the whole.
            *slots = u32::try_from(count).unwrap_or(*slots);
        }
        let cost = cost.default;
        if cost > least {
            self.notes.push(format!(
                "a request costs {cost} of {name:?}, more than the {least} of each replica: it never passes"
            ));
        }
    }

    fn divide_rate(
        &mut self,
        name: &str,
        whole: Rate,
        period: Duration,
        periods: PeriodRule,
    ) -> Rate {
        let (count, burst) = (whole.count(), whole.burst_size());
        let longer = match periods {
            PeriodRule::Grow => self.longer_period(period),
            PeriodRule::Stay => None,
        };
        let part = match longer {
            _ if count % self.by == 0 => Rate::new(count / self.by, period),
            Some(longer) => Rate::new(count, longer),
            None => Rate::new(self.divide_count(name, count, &whole.to_string()), period),
        };
        // A window has no burst besides its count, so the count is divided once.
        let burst = match periods {
            PeriodRule::Grow => self.divide_count(name, burst, &format!("a burst of {burst}")),
            PeriodRule::Stay => self.part_of(burst),
        };
        part.burst(burst)
    }

    /// The period in which a share admits as many requests as the whole in `period`. `None` beyond the longest
    /// period.
    fn longer_period(&self, period: Duration) -> Option<Duration> {
        let longer = period.checked_mul(u32::try_from(self.by).ok()?)?;
        (longer <= MAX_PERIOD).then_some(longer)
    }

    /// A count divided by the number of shares, rounded down, but at least 1 if the count is.
    fn part_of(&self, count: u64) -> u64 {
        (count / self.by).max(count.min(1))
    }

    /// Like [`part_of`](Self::part_of). Adds a note if the shares don't add up to nearly the whole.
    fn divide_count(&mut self, name: &str, count: u64, whole: &str) -> u64 {
        let (by, part) = (self.by, self.part_of(count));
        let all = part.saturating_mul(by);
        // A difference of up to a hundredth needs no note.
        let is_near = all <= count && (count - all).saturating_mul(100) <= count;
        if !is_near {
            self.notes.push(format!(
                "{name:?}: {whole} over {by} replicas is {part} each: {all} in all instead of {count}; \
                 a multiple of {by} can be divided"
            ));
        }
        part
    }
}

impl PeriodRule {
    const fn of(algorithm: Algorithm) -> Self {
        if is_bucket(algorithm) {
            Self::Grow
        } else {
            Self::Stay
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Format;

    /// The limits of the first rule or descriptor as text, and the notes.
    fn parts(text: &str, by: u32) -> (String, Vec<String>) {
        let divided = Policy::from_text(text, Format::Yaml)
            .unwrap()
            .policy
            .share_for_replicas(by);
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
            assert_eq!(parts(&text, by).0, part, "{limit}");
        }
        let tree = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10}}]";
        assert_eq!(parts(tree, 3).0, "3/h");
    }

    #[test]
    fn what_cant_be_had_in_parts_is_told() {
        let rounded = "a multiple of 4 can be divided";
        for (limit, note) in [
            (
                "rate: 2/s, algorithm: fixed-window",
                format!("\"a\": 2/s over 4 replicas is 1 each: 4 in all instead of 2; {rounded}"),
            ),
            (
                "rate: 7/m, algorithm: sliding-log",
                format!("\"a\": 7/m over 4 replicas is 1 each: 4 in all instead of 7; {rounded}"),
            ),
            (
                "rate: 8/s burst 3",
                format!(
                    "\"a\": a burst of 3 over 4 replicas is 1 each: 4 in all instead of 3; {rounded}"
                ),
            ),
            (
                "quota: 10/day",
                format!(
                    "\"a\": 10/day over 4 replicas is 2 each: 8 in all instead of 10; {rounded}"
                ),
            ),
            (
                "concurrency: 7",
                format!(
                    "\"a\": 7 concurrent over 4 replicas is 1 each: 4 in all instead of 7; {rounded}"
                ),
            ),
            (
                "rate: 8/s, cost: 5",
                "a request costs 5 of \"a\", more than the 2 of each replica: it never passes"
                    .to_owned(),
            ),
        ] {
            let text = format!("limits: [{{name: a, {limit}}}]");
            assert_eq!(parts(&text, 4).1, [note]);
        }
    }

    #[test]
    fn every_limit_of_a_rule_is_told_of() {
        let text = "limits: [{name: a, rate: 5/m, algorithm: sliding-log, concurrency: 4}]";
        assert_eq!(parts(text, 3).1.len(), 2);
        let tree = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10}}]";
        assert_eq!(
            parts(tree, 3).1,
            [
                "\"edge/user\": 10/h over 3 replicas is 3 each: 9 in all instead of 10; a multiple of 3 can be divided"
            ]
        );
        let tier = "tiers: {free: {rate: 5/m, algorithm: sliding-window}}\ndefault_tier: free";
        let divided = Policy::from_text(tier, Format::Yaml)
            .unwrap()
            .policy
            .share_for_replicas(3);
        assert_eq!(divided.notes.len(), 1);
    }

    #[test]
    fn what_is_divided_without_a_loss_or_with_little_is_nobodys_concern() {
        for (limit, by) in [
            ("rate: 9/m, algorithm: sliding-log", 3),
            ("rate: 9/m", 3),
            ("rate: 100/m, algorithm: sliding-log", 3),
            ("quota: 1000/day", 3),
            ("concurrency: 5", 1),
            ("rate: 0/s", 3),
            ("concurrency: 5, rate: 5/m, counting: local", 3),
        ] {
            let text = format!("limits: [{{name: a, {limit}}}]");
            assert_eq!(parts(&text, by).1, Vec::<String>::new(), "{limit}");
        }
    }

    #[test]
    fn a_period_that_would_be_too_long_isnt_longer() {
        let text = "limits: [{name: a, rate: 1001 per 365d}]";
        assert_eq!(parts(text, 1_000_000).0, "1 per 365d");
        assert_eq!(parts(text, 2).0, "1001 per 730d burst 500");
    }
}
