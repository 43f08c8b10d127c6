//! `tollgate simulate FILE`: a policy over a traffic pattern, on virtual time.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tollgate::Timestamp;
use tollgate_engine::render;

use super::Options;
use crate::ended::CliError;
use crate::policy::{Extras, Request, Running, Stage, Store};

/// What a policy did to the requests of a pattern.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    /// The traffic in words.
    pub traffic: String,
    /// How many requests came.
    pub offered: usize,
    /// How many passed.
    pub admitted: usize,
    /// How many of these met no limit.
    pub unlimited: usize,
    /// How many each rule refused.
    pub refused: BTreeMap<String, usize>,
    /// How many had too much of something, so that no rule was asked.
    pub too_much: BTreeMap<String, usize>,
    /// How many each rule in shadow would have refused.
    pub shadow: BTreeMap<String, usize>,
    /// The most that passed in any second.
    pub peak_1s: usize,
}

/// Plays the traffic of these options against the policy in their file.
///
/// # Errors
/// The file is no policy, or the pattern can't be played.
pub fn simulate_policy(options: &Options) -> Result<PolicyReport, CliError> {
    let Some(file) = &options.file else {
        return Err(CliError::usage("no policy file is given"));
    };
    let traffic = options
        .pattern
        .traffic(options.rate, options.seed)
        .map_err(|error| CliError::usage(error))?;
    let policy = crate::policy::policy(file)?;
    let (domain, extras) = (options.domain.as_deref(), Extras::default());
    let request = Request::new(
        &policy,
        &options.facts,
        domain,
        &options.descriptors,
        extras,
    )?;
    let stage = Stage::new(policy.clone(), Timestamp::ZERO, Store::Up)?;
    let mut running = Running::new(options.hold);
    let (mut refused, mut shadow) = (BTreeMap::new(), BTreeMap::new());
    let mut too_much = BTreeMap::new();
    let mut passed = Vec::new();
    let mut unlimited = 0;
    for &at in &traffic.arrivals {
        let at = at - Timestamp::ZERO;
        stage.set(at);
        let step = request.decide(&stage, at, &mut running);
        unlimited += usize::from(step.is_allowed() && step.rule.is_none());
        if step.is_allowed() {
            passed.push(Timestamp::ZERO + at);
        } else if let Some(bound) = step.too_much {
            *too_much.entry(bound).or_insert(0) += 1;
        } else {
            *refused.entry(step.rule.unwrap_or_default()).or_insert(0) += 1;
        }
        for rule in step.shadow {
            *shadow.entry(rule).or_insert(0) += 1;
        }
    }
    Ok(PolicyReport {
        traffic: traffic.description,
        offered: traffic.arrivals.len(),
        admitted: passed.len(),
        unlimited,
        refused,
        too_much,
        shadow,
        peak_1s: super::tally::peak(&passed, std::time::Duration::from_secs(1)),
    })
}

impl fmt::Display for PolicyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "traffic   {}", self.traffic)?;
        writeln!(f, "offered   {}", self.offered)?;
        writeln!(f, "admitted  {}", self.admitted)?;
        writeln!(f, "peak      {} in any second", self.peak_1s)?;
        if self.unlimited > 0 {
            let count = self.unlimited;
            writeln!(f, "no limit  was met by {count}; tollgate explain says why")?;
        }
        for (rule, count) in &self.refused {
            writeln!(f, "refused   {count} by {}", render::escaped(rule))?;
        }
        for (bound, count) in &self.too_much {
            writeln!(f, "refused   {count}: {}", render::escaped(bound))?;
        }
        for (rule, count) in &self.shadow {
            writeln!(
                f,
                "shadow    {count} would be refused by {}",
                render::escaped(rule)
            )?;
        }
        Ok(())
    }
}
