//! `tollgate explain`: what a policy does to one request, step by step on virtual time.

use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tollgate::clock::Manual;
use tollgate::{Outcome, Timestamp};
use tollgate_engine::backend::Memory;
use tollgate_engine::engine::{DescriptorStatus, DescriptorVerdict};
use tollgate_engine::envoy::{self, Lookup, StatusCode};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts, Policy, Verdict, matcher};

use super::PolicyFailure;
use super::facts::{Fact, facts};

/// The policy, and the request to explain.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Examples:
  tollgate explain policy.yaml --fact user=42 --fact path=/api/x
  tollgate explain policy.yaml --fact user=42 --n 30 --every 10ms --json
  tollgate explain ratelimit.yaml --domain edge --descriptor path=/login,remote_address=10.0.0.1")]
pub struct Explain {
    /// The policy file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What is known of the request, as name=value; again for each fact.
    #[arg(long = "fact", value_name = "NAME=VALUE")]
    pub facts: Vec<Fact>,
    /// The domain of the request, for a file in envoyproxy/ratelimit's form.
    #[arg(long, value_name = "NAME", requires = "descriptors")]
    pub domain: Option<String>,
    /// A descriptor of the request, as key=value,key2=value2; again for each.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,…", requires = "domain")]
    pub descriptors: Vec<Entries>,
    /// How often it comes.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub n: u32,
    /// The time between two of them, such as 10ms or 1s.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pub every: Duration,
    /// Print one JSON object a request instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A length of time: a whole number and its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len()
        - text
            .trim_start_matches(|sign: char| sign.is_ascii_digit())
            .len();
    let (number, unit) = text.split_at(digits);
    let nanos: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => 0,
    };
    let length = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(nanos));
    match length {
        Some(length) if nanos > 0 => Ok(Duration::from_nanos(length)),
        _ => Err(format!(
            "{text:?} is no length of time; write it as 10ms, 2s or 1m"
        )),
    }
}

/// One request, decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Step {
    at_ms: f64,
    outcome: &'static str,
    rule: Option<String>,
    remaining: Option<u64>,
    retry_after_ms: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadow: Vec<String>,
}

impl Step {
    pub(crate) fn new(at: Duration, verdict: &Verdict<'_>) -> Self {
        let decision = verdict.decision();
        let retry_after = match (verdict.is_allowed(), decision.outcome) {
            (true, _) => Some(Duration::ZERO),
            (false, Outcome::Never) => None,
            (false, _) => Some(decision.retry_after),
        };
        Self {
            at_ms: millis(at),
            outcome: if verdict.is_allowed() {
                "allowed"
            } else {
                "denied"
            },
            rule: cause_name(verdict.cause()),
            remaining: (decision.limit < u64::MAX).then_some(decision.remaining),
            retry_after_ms: retry_after.map(millis),
            shadow: verdict
                .shadow_refusals()
                .filter_map(|refusal| cause_name(refusal.cause))
                .collect(),
        }
    }
}

impl Step {
    /// A request of descriptors: what is told is of the one that refuses, or has the least left.
    fn of(at: Duration, verdict: &DescriptorVerdict) -> Self {
        let over = |status: &&DescriptorStatus| status.code == StatusCode::OverLimit;
        let limited = verdict.statuses.iter().filter(|it| it.decision.is_some());
        let least = limited.min_by_key(|it| it.decision.map(|decision| decision.remaining));
        let told = match verdict.is_allowed() {
            true => least,
            false => verdict.statuses.iter().find(over),
        };
        let shadow = verdict.statuses.iter().filter(|status| status.would_refuse);
        Self {
            at_ms: millis(at),
            outcome: match verdict.is_allowed() {
                true => "allowed",
                false => "denied",
            },
            rule: told.and_then(|status| status.limit.clone()),
            remaining: told
                .and_then(|status| status.decision)
                .map(|it| it.remaining),
            retry_after_ms: Some(millis(verdict.retry_after)),
            shadow: shadow.filter_map(|status| status.limit.clone()).collect(),
        }
    }
}

/// What to call what decided; nothing if no rule did.
pub(crate) fn cause_name(cause: Cause<'_>) -> Option<String> {
    match cause {
        Cause::Nothing => None,
        Cause::Rule(name) => Some(name.to_owned()),
        other => Some(other.to_string()),
    }
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1e3
}

/// An engine on virtual time that begins at the origin.
pub(crate) fn engine(
    policy: Policy,
) -> Result<(Engine<Memory<Manual, Manual>>, Manual), PolicyFailure> {
    let clock = Manual::new();
    let memory = Memory::builder()
        .clock(clock.clone())
        .wall(clock.clone())
        .build();
    Ok((Engine::new(policy, memory)?, clock))
}

/// Explains the request and writes what there is to say.
///
/// # Errors
/// The file is no policy, or the output can't be written.
pub fn explain(options: &Explain, out: &mut impl Write) -> Result<io::Result<()>, PolicyFailure> {
    let policy = Policy::from_path(&options.file)?.policy;
    let (engine, clock) = engine(policy.clone())?;
    let facts = facts(&options.facts);
    let entries: Vec<_> = options.descriptors.iter().map(Entries::pairs).collect();
    let descriptors: Vec<_> = entries.iter().map(|pairs| Descriptor::new(pairs)).collect();
    if policy.domains.is_empty() != options.domain.is_none() {
        let message = match options.domain {
            None => {
                "the file has domains: say which with --domain, and what the proxy sends with --descriptor"
            }
            Some(_) => "the file has no domains: say what is known of the request with --fact",
        };
        return Err(PolicyFailure::Usage(message.to_owned()));
    }
    let mut steps = Vec::new();
    for number in 0..options.n {
        let at = options.every * number;
        clock.set(Timestamp::ZERO + at);
        steps.push(match &options.domain {
            None => Step::new(at, &engine.decide(&facts)),
            Some(domain) => Step::of(at, &engine.decide_descriptors(domain, &descriptors, 1)),
        });
    }
    if options.json {
        return Ok(write_json(&steps, out));
    }
    let rules = match &options.domain {
        None => write_rules(&policy, &facts, out),
        Some(domain) => write_descriptors(&policy, domain, &descriptors, out),
    };
    Ok(rules.and_then(|()| write_steps(&steps, out)))
}

/// The entries of a descriptor, as an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries(Vec<(String, String)>);

impl FromStr for Entries {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = |part: &str| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (key, value) = (key.trim(), value.trim());
            match key {
                "" => Err(format!(
                    "{text:?} is no descriptor; write it as key=value,key2=value2"
                )),
                _ => Ok((key.to_owned(), value.to_owned())),
            }
        };
        text.split(',')
            .map(entry)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Entries {
    fn pairs(&self) -> Vec<(&str, &str)> {
        let pairs = self.0.iter();
        pairs
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }
}

fn write_descriptors(
    policy: &Policy,
    domain: &str,
    descriptors: &[Descriptor<'_>],
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "descriptors")?;
    let compiled = envoy::Compiled::new(&policy.domains);
    let mut found: Vec<_> = descriptors
        .iter()
        .map(|descriptor| compiled.lookup(domain, descriptor))
        .collect();
    envoy::drop_replaced(&mut found);
    for (descriptor, lookup) in descriptors.iter().zip(found) {
        let entries = descriptor.entries.iter();
        let entries: Vec<_> = entries
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        write!(out, "  {}: ", entries.join(","))?;
        match lookup {
            Lookup::Limited(leaf) => writeln!(out, "{leaf}")?,
            Lookup::Replaced(leaf) => writeln!(out, "{leaf}, replaced by another")?,
            _ => writeln!(out, "no limit: none has these keys at this depth")?,
        }
    }
    Ok(())
}

fn write_json(steps: &[Step], out: &mut impl Write) -> io::Result<()> {
    for step in steps {
        serde_json::to_writer(&mut *out, step)?;
        writeln!(out)?;
    }
    Ok(())
}

fn write_rules(policy: &Policy, facts: &Facts<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "rules")?;
    let lists = [("exempt", &policy.exempt), ("block", &policy.block)];
    for (list, entries) in lists {
        for (number, entry) in entries.iter().enumerate() {
            let explained = matcher::explain(entry, facts);
            let applies = if explained.matches() { "yes" } else { "no " };
            writeln!(out, "  {applies}  {list}[{number}]: {explained}")?;
        }
    }
    for rule in &policy.rules {
        let explained = matcher::explain(&rule.matches, facts);
        let applies = if explained.matches() { "yes" } else { "no " };
        writeln!(out, "  {applies}  {}: {explained}", rule.name)?;
    }
    Ok(())
}

fn write_steps(steps: &[Step], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nrequests")?;
    writeln!(
        out,
        "  {:>12}  {:7}  {:>9}  {:>14}  rule",
        "at", "outcome", "remaining", "retry after"
    )?;
    for step in steps {
        let remaining = step
            .remaining
            .map_or("-".to_owned(), |left| left.to_string());
        let retry = match step.retry_after_ms {
            Some(0.0) => "-".to_owned(),
            Some(wait) => format!("{wait}ms"),
            None => "never".to_owned(),
        };
        let rule = step.rule.as_deref().unwrap_or("-");
        write!(
            out,
            "  {:>10}ms  {:7}  {remaining:>9}  {retry:>14}  {rule}",
            step.at_ms, step.outcome
        )?;
        for shadow in &step.shadow {
            write!(out, " (in shadow {shadow} would refuse)")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
