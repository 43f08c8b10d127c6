//! `tollgate simulate CONFIG_FILE`: runs a traffic pattern through a policy, on virtual time.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tollgate::Timestamp;
use tollgate_engine::render;

use super::SimulateOptions;
use crate::outcome::CliError;
use crate::policy::{
    DescriptorOptions, ExplainedRequest, RunningRequests, SimulatedEngine, StoreState,
};

/// The result of a policy for a pattern.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PolicyReport {
    /// The traffic in words.
    pub traffic: String,
    /// The number of requests.
    pub offered: usize,
    /// The number of allowed requests.
    pub admitted: usize,
    /// The number of allowed requests without any limit.
    pub unlimited: usize,
    /// The number of denials by each rule.
    pub denied: BTreeMap<String, usize>,
    /// The number of requests that exceeded a bound, so that no rule was checked, by bound.
    pub bound_exceeded: BTreeMap<String, usize>,
    /// The number of requests that each rule in shadow mode would have denied.
    pub shadow: BTreeMap<String, usize>,
    /// The most requests that passed in any second.
    pub peak_1s: usize,
}

/// Runs the traffic of these options through the policy in their file.
///
/// # Errors
/// The policy is invalid, or the pattern can't be played.
pub fn simulate_policy(options: &SimulateOptions) -> Result<PolicyReport, CliError> {
    let Some(file) = &options.file else {
        return Err(CliError::usage("no policy file is given"));
    };
    let traffic = options
        .pattern
        .traffic(options.rate, options.seed)
        .map_err(CliError::usage)?;
    let policy = crate::policy::read_policy(file)?;
    let (domain, extras) = (options.domain.as_deref(), DescriptorOptions::default());
    let request = ExplainedRequest::new(
        &policy,
        &options.facts,
        domain,
        &options.descriptors,
        extras,
    )?;
    let stage = SimulatedEngine::new(policy.clone(), Timestamp::ZERO, StoreState::Up)?;
    let mut running = RunningRequests::new(options.hold);
    let mut report = PolicyReport {
        traffic: traffic.description,
        offered: traffic.arrivals.len(),
        ..PolicyReport::default()
    };
    let mut passed = Vec::new();
    for &at in &traffic.arrivals {
        let at = at - Timestamp::ZERO;
        stage.advance_to(at);
        let step = request.decide(&stage, at, &mut running);
        report.unlimited += usize::from(step.is_allowed() && step.rule.is_none());
        if step.is_allowed() {
            passed.push(Timestamp::ZERO + at);
        } else if let Some(bound) = step.too_much {
            *report.bound_exceeded.entry(bound).or_default() += 1;
        } else {
            let rule = step.rule.unwrap_or_default();
            *report.denied.entry(rule).or_default() += 1;
        }
        for rule in step.shadow {
            *report.shadow.entry(rule).or_default() += 1;
        }
    }
    report.admitted = passed.len();
    report.peak_1s = super::tally::peak_in_window(&passed, std::time::Duration::from_secs(1));
    Ok(report)
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
        for (rule, count) in &self.denied {
            writeln!(f, "refused   {count} by {}", render::escaped(rule))?;
        }
        for (bound, count) in &self.bound_exceeded {
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
