//! `tollgate explain`: what a policy does to one request, step by step on virtual time.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tollgate::Timestamp;
use tollgate_engine::envoy::{self, Lookup};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::{Counting, Mode};
use tollgate_engine::{Facts, Policy, explain, render};

use super::PolicyFailure;
use super::check::counted;
use super::facts::{Entries, Fact};
use super::length::readable;
use super::request::{Charged, LeftOf, Request, Running, Step, cause_name, engine, entries_text};

/// The policy, and the request to explain.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Time begins at 0 and passes by --every. Each request has its outcome, what is left, when it may come
again and which rule decided; where a domain charges each descriptor, also what each was charged.

With --json, one object a request:
  at_ms outcome rule remaining retry_after_ms     what was decided; null after never, and of no limit
  limit                                           which limit of the rule decided
  left                                            of several limits: [{rule, limit, remaining}]
  too_much                                        what it has more of than is taken: no rule was asked
  shadow                                          rules in shadow that would refuse
  descriptors                                     where each is charged: {descriptor, limit, charged,
                                                  remaining}

Exit code 0: it was explained; 1: the policy has errors; 2: the arguments are wrong.

Examples:
  tollgate explain policy.yaml --fact user=42 --fact path=/api/x
  tollgate explain policy.yaml --fact user=42 --n 30 --every 10ms --json
  tollgate explain policy.yaml --fact user=42 --n 9 --every 1s --hold 5s
  tollgate explain ratelimit.yaml --domain edge --descriptor path=/login,remote_address=10.0.0.1")]
pub struct Explain {
    /// The policy file, or a folder whose files are one policy, or - for standard input.
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
    /// How long each request that passes runs, and so holds its slots: 0ms lets it end at once.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pub hold: Duration,
    /// Print one JSON object a request instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A length of time: a whole number and its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
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
        "d" => 86_400_000_000_000,
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

/// Explains the request and writes what there is to say.
///
/// # Errors
/// The file is no policy, or the output can't be written.
pub fn explain(options: &Explain, out: &mut impl Write) -> Result<io::Result<()>, PolicyFailure> {
    let policy = super::policy(&options.file)?;
    let request = Request::new(
        &policy,
        &options.facts,
        options.domain.as_deref(),
        &options.descriptors,
    )?;
    let (engine, clock) = engine(policy.clone())?;
    let mut running = Running::new(options.hold);
    let steps: Vec<_> = (0..options.n)
        .map(|number| {
            let at = options.every * number;
            clock.set(Timestamp::ZERO + at);
            request.decide(&engine, at, &mut running)
        })
        .collect();
    if options.json {
        return Ok(write_json(&steps, out));
    }
    let rules = match &request {
        Request::Facts(facts) => write_rules(&policy, facts, out),
        Request::Descriptors {
            domain, entries, ..
        } => write_descriptors(&policy, domain, entries, out),
    };
    Ok(rules.and_then(|()| write_steps(&steps, out)))
}

fn write_descriptors(
    policy: &Policy,
    domain: &str,
    entries: &[Vec<(&str, &str)>],
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "descriptors")?;
    let compiled = envoy::Compiled::new(&policy.domains);
    let mut found: Vec<_> = entries
        .iter()
        .map(|entries| compiled.lookup(domain, &Descriptor::new(entries)))
        .collect();
    envoy::drop_replaced(&mut found);
    for (entries, lookup) in entries.iter().zip(found) {
        write!(out, "  {}: ", render::escaped(&entries_text(entries)))?;
        match lookup {
            Lookup::Limited(leaf) => {
                let shadow = leaf.limit.shadow.then_some("in shadow");
                let notes = notes(shadow, Some(leaf.limit.counting));
                let leaf = leaf.to_string();
                writeln!(out, "{}{notes}", render::escaped(&leaf))?;
            }
            Lookup::Replaced(leaf) => {
                let leaf = leaf.to_string();
                writeln!(out, "{}, replaced by another", render::escaped(&leaf))?;
            }
            _ if !policy.domains.contains_key(domain) => {
                let domains: Vec<_> = policy.domains.keys().map(String::as_str).collect();
                let domains = domains.join(", ");
                writeln!(
                    out,
                    "no limit: the file has no domain {domain:?}, but {}",
                    render::escaped(&domains)
                )?;
            }
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

/// What is said of a limit behind its name.
fn notes(shadow: Option<&str>, counting: Option<Counting>) -> String {
    let all: Vec<_> = shadow
        .into_iter()
        .chain(counting.and_then(counted))
        .collect();
    match all.is_empty() {
        true => String::new(),
        false => format!(" ({})", all.join(", ")),
    }
}

fn write_rules(policy: &Policy, facts: &Facts<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "rules")?;
    for entry in explain::explain(policy, facts) {
        let applies = if entry.standing.applies() {
            "yes"
        } else {
            "no "
        };
        let name = cause_name(entry.cause).unwrap_or_default();
        let shadow = (entry.mode == Mode::Shadow).then_some("in shadow");
        let notes = notes(shadow, entry.counting);
        let line = format!("  {applies}  {name}{notes}: {}", entry.standing);
        writeln!(out, "{}", render::escaped(&line))?;
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
        let retry = match step.retry_after {
            Some(Duration::ZERO) => "-".to_owned(),
            Some(wait) => readable(wait),
            None => "never".to_owned(),
        };
        let rule = render::escaped(step.rule.as_deref().unwrap_or("-"));
        let (at, outcome) = (readable(step.at), step.outcome);
        write!(
            out,
            "  {at:>12}  {outcome:7}  {remaining:>9}  {retry:>14}  {rule}"
        )?;
        if let Some(limit) = &step.limit {
            write!(out, ": {limit}")?;
        }
        if let Some(what) = &step.too_much {
            write!(out, " (no rule was asked: {})", render::escaped(what))?;
        }
        for shadow in &step.shadow {
            let shadow = render::escaped(shadow);
            write!(out, " (in shadow {shadow} would refuse)")?;
        }
        writeln!(out)?;
        for LeftOf {
            rule,
            limit,
            remaining,
        } in &step.left
        {
            let left = remaining.map_or("all".to_owned(), |left| left.to_string());
            let rule = render::escaped(rule);
            writeln!(out, "  {:>12}  {left} left of {rule}: {limit}", "")?;
        }
        for each in &step.descriptors {
            write_charged(each, out)?;
        }
    }
    Ok(())
}

/// What was charged for one descriptor, below its request.
fn write_charged(each: &Charged, out: &mut impl Write) -> io::Result<()> {
    let descriptor = render::escaped(&each.descriptor);
    write!(out, "  {:>12}  {descriptor}: ", "")?;
    match (&each.limit, each.remaining) {
        (None, _) => writeln!(out, "no limit"),
        (_, None) => writeln!(out, "unlimited"),
        (_, Some(left)) if each.charged > 0 => {
            writeln!(out, "charged {}, {left} left", each.charged)
        }
        (_, Some(left)) => writeln!(out, "not charged, {left} left"),
    }
}
