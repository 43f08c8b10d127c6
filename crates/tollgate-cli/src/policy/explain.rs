//! `tollgate explain`: shows step by step, on virtual time, how a policy decides one request.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tollgate::Clock;
use tollgate::clock::Wall;
use tollgate_engine::explain;

use super::facts::{DescriptorArg, FactArg, HitsArg, PerDescriptor, RequestedLimit};
use super::request::{DescriptorOptions, ExplainedRequest, RunningRequests};
use super::simulated_engine::{SimulatedEngine, StoreState};
use super::time::{Moment, parse_duration};
use crate::color::Color;
use crate::outcome::CliError;
use crate::output::{map_write_error, write_json};

mod entries;
mod text;

use entries::{DescriptorEntry, RuleEntry};
use text::TextWriter;

/// Options of `tollgate explain`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Time begins at 0 and advances by --every. The date is today, or --at. Each request is shown with its outcome,
the remaining tokens, the time to retry after and the rule that decided, and in a domain that charges each
descriptor also with each charge.

With --json, first one object of the policy:
  at                                              the date at the beginning
  rules                                           [{rule, applies, why, key, mode, enforced_percent,
                                                  warm_up_ms, counting, on_store_failure, may_wait_ms,
                                                  limits, shed}]
  descriptors                                     in place of rules: [{descriptor, limit, why, limits,
                                                  on_store_failure, hidden_by}]
  hints                                           facts that may be misspelt: [{fact, near}]
and then one a request:
  at_ms outcome rule remaining retry_after_ms     the decision; null if it can never pass, or without a
                                                  limit. Denied with 0: no permit is free, and when one
                                                  will be is unknown
  limit                                           the limit of the rule that decided
  without_store                                   the failure mode that decided while the store is down
  waits                                           {longest_ms, passes}, where the rule lets requests wait
  left                                            for several limits: [{rule, limit, remaining}]
  too_much                                        the bound that it exceeds: no rule was checked
  shadow                                          shadow rules that would deny
  descriptors                                     if each is charged, or with --statuses:
                                                  {descriptor, status, limit, charged, remaining}

Exit code 0: explained; 1: the policy has errors; 2: the arguments are wrong.

Examples:
  tollgate explain policy.yaml user=42 path=/api/x
  tollgate explain policy.yaml user=42 --n 30 --every 10ms --json
  tollgate explain policy.yaml user=42 --n 9 --every 1s --hold 5s
  tollgate explain policy.yaml tenant=acme --at 2026-02-28T23:59:00Z --n 2 --every 1m
  tollgate explain policy.yaml user=42 --store down --only matching
  tollgate explain ratelimit.yaml --domain edge --descriptor path=/login,remote_address=10.0.0.1
  tollgate explain ratelimit.yaml --domain edge --descriptor 'agent=a\\,b' --hits 3 --limit 5/minute")]
pub struct ExplainArgs {
    /// The policy file, or a folder whose files are one policy, or - for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A fact of the request, as name=value, as for ask and admin.
    #[arg(value_name = "FACT=VALUE")]
    pub known: Vec<FactArg>,
    /// The same as a flag; repeat it for each fact.
    #[arg(long = "fact", value_name = "NAME=VALUE")]
    pub facts: Vec<FactArg>,
    /// The domain of the request, for a file in envoyproxy/ratelimit's form.
    #[arg(long, value_name = "NAME", requires = "descriptors")]
    pub domain: Option<String>,
    /// A descriptor of the request, as key=value,key2=value2, with \, for a comma in a value; repeat it for each.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,…", requires = "domain")]
    pub descriptors: Vec<DescriptorArg>,
    /// The cost of the request (hits_addend): 1 by default; 2=3 is for the second descriptor alone.
    #[arg(long, value_name = "[N=]NUMBER", requires = "domain")]
    pub hits: Vec<PerDescriptor<HitsArg>>,
    /// A limit that the proxy requests in place of the configured one, such as 5/minute; 2=5/minute is for the second
    /// descriptor alone.
    #[arg(long, value_name = "[N=]NUMBER/UNIT", requires = "domain")]
    pub limit: Vec<PerDescriptor<RequestedLimit>>,
    /// Show the status of each descriptor, with its charge and its remaining tokens.
    #[arg(long, requires = "domain")]
    pub statuses: bool,
    /// The number of requests.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub n: u32,
    /// The time between two requests, such as 10ms or 1s.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration)]
    pub every: Duration,
    /// How long each request that passes runs and holds its permits; 0ms ends it immediately.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration)]
    pub hold: Duration,
    /// The date of the first request, for quotas and windows that follow the calendar. The default is now.
    /// 2026-03-01, 2026-03-01T12:00:00Z or 2026-03-01T12:00[Europe/Zurich].
    #[arg(long, value_name = "DATE")]
    pub at: Option<Moment>,
    /// Whether the store is reachable.
    #[arg(long, value_enum, value_name = "STATE", default_value_t)]
    pub store: StoreState,
    /// The rules to show.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    pub only: RuleFilter,
    /// Print JSON, one object a line, instead of text.
    #[arg(long)]
    pub json: bool,
}

/// The rules to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RuleFilter {
    /// All rules, with the reason why a rule doesn't apply.
    #[default]
    All,
    /// Only rules that apply.
    Matching,
}

/// The explanation before the first request.
#[derive(Serialize)]
struct ExplainHeader<'a> {
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<RuleEntry<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptors: Option<Vec<DescriptorEntry>>,
    hints: Vec<MisspelledFact<'a>>,
}

/// A fact whose name may be misspelt.
#[derive(Serialize)]
struct MisspelledFact<'a> {
    fact: &'a str,
    near: &'a str,
}

/// Explains the request, and writes the explanation.
///
/// # Errors
/// The policy is invalid, or the output can't be written.
pub fn explain(options: &ExplainArgs, color: Color, out: &mut impl Write) -> Result<(), CliError> {
    let policy = super::read_policy(&options.file)?;
    let extras = DescriptorOptions {
        hits: &options.hits,
        limits: &options.limit,
        shows_statuses: options.statuses,
    };
    let domain = options.domain.as_deref();
    let facts = [&options.known[..], &options.facts].concat();
    let request = ExplainedRequest::new(&policy, &facts, domain, &options.descriptors, extras)?;
    let began = options.at.unwrap_or_else(|| Moment::of(Wall.now()));
    let stage = SimulatedEngine::new(policy.clone(), began.timestamp(), options.store)?;
    let mut running = RunningRequests::new(options.hold);
    let steps = (0..options.n).map(|number| {
        let at = options.every * number;
        stage.advance_to(at);
        let step = request.decide(&stage, at, &mut running);
        step.add_wait_outcome(&policy)
    });
    let steps: Vec<_> = steps.collect();
    let (rules, descriptors, hints) = match &request {
        ExplainedRequest::Facts(facts) => {
            let entries = explain::explain(&policy, facts);
            let applies = |entry: &explain::Entry<'_>| entry.standing.applies();
            let shown = entries.into_iter();
            let shown = shown.filter(|entry| options.only == RuleFilter::All || applies(entry));
            let hints = explain::misspelled_facts(&policy, facts).into_iter();
            let hints = hints.map(|(fact, near)| MisspelledFact { fact, near });
            (
                Some(shown.map(RuleEntry::of).collect()),
                None,
                hints.collect(),
            )
        }
        ExplainedRequest::Descriptors(request) => {
            let found = DescriptorEntry::match_descriptors(&policy, request).into_iter();
            let shown =
                found.filter(|found| options.only == RuleFilter::All || found.limit.is_some());
            (None, Some(shown.collect()), Vec::new())
        }
    };
    let head = ExplainHeader {
        at: began.to_string(),
        rules,
        descriptors,
        hints,
    };
    let text = TextWriter {
        color,
        store: options.store,
    };
    map_write_error(if options.json {
        let mut steps = steps.iter();
        write_json(&head, out).and_then(|()| steps.try_for_each(|step| write_json(step, out)))
    } else {
        text.write(&head, &steps, out)
    })
}
