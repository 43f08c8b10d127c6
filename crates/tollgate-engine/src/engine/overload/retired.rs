//! Gates of rules that the policy doesn't have: a rule that returns finds its own, with all who are inside.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::Kept;

/// So many are kept. Those that nobody is inside of go first, and of these the longest retired.
const MOST: usize = 1_024;

/// Gates by the names of their rules, from the longest retired.
#[derive(Debug, Default)]
pub(crate) struct RetiredGates(Vec<(Box<str>, Arc<Kept>)>);

/// The gates that rules of a policy may go on with.
#[derive(Debug)]
pub(crate) struct GatesBefore(HashMap<Box<str>, (usize, Arc<Kept>), FixedState>);

impl GatesBefore {
    /// Retired ones, and those of the policy before.
    pub(in crate::engine) fn new(
        retired: &RetiredGates,
        open: impl Iterator<Item = (Box<str>, Arc<Kept>)>,
    ) -> Self {
        let all = retired.0.iter().cloned().chain(open).enumerate();
        Self(all.map(|(age, (name, kept))| (name, (age, kept))).collect())
    }

    /// The gate of a rule that has this name.
    pub(in crate::engine) fn take(&mut self, rule: &str) -> Option<Arc<Kept>> {
        self.0.remove(rule).map(|(_, kept)| kept)
    }

    /// What no rule has taken.
    pub(in crate::engine) fn retire(self) -> RetiredGates {
        let mut rest: Vec<_> = self.0.into_iter().collect();
        rest.sort_unstable_by_key(|(_, (age, _))| *age);
        let mut rest: Vec<_> = rest
            .into_iter()
            .map(|(name, (_, kept))| (name, kept))
            .collect();
        while rest.len() > MOST {
            let is_idle = |(_, kept): &(_, Arc<Kept>)| kept.limiter.peek().in_use == 0;
            rest.remove(rest.iter().position(is_idle).unwrap_or(0));
        }
        RetiredGates(rest)
    }
}

#[cfg(test)]
mod tests {
    use tollgate::clock::Manual;

    use super::*;
    use crate::policy::Adaptive;

    #[test]
    fn no_more_are_kept_than_said_and_those_that_are_used_stay() {
        let kept = || {
            let own = Adaptive {
                law: "aimd".parse().unwrap(),
                min: 1,
                max: 10,
            };
            Arc::new(Kept::new(own, 0, Arc::new(Manual::new())).unwrap())
        };
        let gates: Vec<_> = (0..MOST + 2)
            .map(|number| (number.to_string().into_boxed_str(), kept()))
            .collect();
        let _inside = gates[0].1.limiter.try_acquire_owned().unwrap();
        let before = GatesBefore::new(&RetiredGates::default(), gates.into_iter());
        let retired = before.retire();
        assert_eq!(retired.0.len(), MOST);
        let mut again = GatesBefore::new(&retired, std::iter::empty());
        assert!(again.take("0").is_some());
        assert!(again.take("1").is_none() && again.take("2").is_none());
        assert!(again.take("3").is_some());
        assert_eq!(again.retire().0.len(), MOST - 2);
    }
}
