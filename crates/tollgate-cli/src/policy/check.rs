//! `tollgate check`: every error and warning of policy files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Serialize, Serializer};
use tollgate_engine::policy::{Counting, Mode, OnStoreFailure, Policy, Rule};
use tollgate_engine::source::policy_files_in;
use tollgate_engine::{LoadError, LoadedPolicy, envoy, render};

use super::policy_input::{is_stdin, parse_any_format, read_stdin};
use super::{adaptive_note, lease_note};
use crate::color::Color;
use crate::outcome::{CliError, CommandOutcome};
use crate::output::{map_write_error, pluralize, write_json};

/// Options of `tollgate check`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Exit code 0: all files are valid, perhaps with warnings; 1: one has errors, or warnings with --strict;
2: the arguments are wrong.

Two files in envoyproxy/ratelimit's form can't have the same domain.

Examples:
  tollgate check policy.yaml
  tollgate check --json policies/*.yaml
  tollgate check ratelimit/config
  generate-policy | tollgate check -")]
pub struct CheckArgs {
    /// Policy files: YAML or TOML, native or in envoyproxy/ratelimit's form; or folders, each file of which is
    /// checked by itself; or - for standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Treat warnings as errors.
    #[arg(long)]
    pub strict: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct FileReport<'a> {
    file: String,
    valid: bool,
    diagnostics: Vec<render::DiagnosticReport<'a>>,
    limits: Vec<LimitReport>,
    /// What a store outage means for the requests of each limit.
    store_outage: Option<String>,
    /// Notes for operators, which are neither errors nor warnings.
    notes: Vec<Note>,
}

#[derive(Serialize)]
struct Note {
    code: &'static str,
    message: String,
}

#[derive(Serialize)]
struct LimitReport {
    /// `rule`, `tier` or `descriptor`.
    kind: &'static str,
    name: String,
    /// The rule's own mode, or the weaker mode of the whole policy.
    mode: &'static str,
    /// The percentage of keys for which the limit is enforced.
    enforced_percent: u8,
    #[serde(serialize_with = "serialize_name")]
    counting: Counting,
    on_store_failure: String,
    #[serde(skip)]
    failures: Vec<(&'static str, OnStoreFailure)>,
    #[serde(skip)]
    has_quota: bool,
    #[serde(skip)]
    is_unlimited: bool,
}

fn serialize_name<S: Serializer>(counting: &Counting, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(counting.name())
}

/// Checks all files, and writes their errors and warnings. Returns whether all files are valid.
///
/// # Errors
/// Standard input can't be read, or the output can't be written.
pub fn check(
    options: &CheckArgs,
    color: Color,
    out: &mut impl Write,
) -> Result<CommandOutcome, CliError> {
    let files = read_files(&options.files)?;
    map_write_error(write_report(options, &files, color, out))?;
    let is_well = |read: &Result<LoadedPolicy, LoadError>| match read {
        Ok(checked) => checked.warnings.is_empty() || !options.strict,
        Err(_) => false,
    };
    Ok(if files.iter().all(|(_, read)| is_well(read)) {
        CommandOutcome::Success
    } else {
        CommandOutcome::InvalidPolicy
    })
}

type NamedResult = (String, Result<LoadedPolicy, LoadError>);

/// All files by name. Standard input comes first.
fn read_files(files: &[PathBuf]) -> Result<Vec<NamedResult>, CliError> {
    let mut read = Vec::new();
    if files.iter().any(|file| is_stdin(file)) {
        read.push(("-".to_owned(), parse_any_format(&read_stdin()?)));
    }
    let files = files.iter().filter(|file| !is_stdin(file));
    let paths: Vec<_> = files.flat_map(|path| files_of(path)).collect();
    let names = paths.iter().map(|path| path.display().to_string());
    read.extend(names.zip(Policy::from_paths(&paths)));
    Ok(read)
}

fn write_report(
    options: &CheckArgs,
    files: &[NamedResult],
    color: Color,
    out: &mut impl Write,
) -> io::Result<()> {
    if options.json {
        let reports = files.iter().map(|(name, read)| file_report(name, read));
        let reports: Vec<_> = reports.collect();
        return write_json(&serde_json::json!({ "files": reports }), out);
    }
    for (name, read) in files {
        write_file_text(name, read, color, out)?;
    }
    let warned = files.iter().filter_map(|(_, read)| read.as_ref().ok());
    let warnings = warned.map(|checked| checked.warnings.len()).sum();
    if options.strict && warnings > 0 {
        writeln!(
            out,
            "refused by --strict: {}",
            pluralize(warnings, "warning")
        )?;
    }
    Ok(())
}

/// A file, or the files in a folder. A folder without policy files stands for itself, so that it is reported.
pub(super) fn files_of(path: &Path) -> Vec<PathBuf> {
    let files = policy_files_in(path);
    if files.is_empty() {
        vec![path.to_owned()]
    } else {
        files
    }
}

fn file_report<'a>(name: &str, read: &'a Result<LoadedPolicy, LoadError>) -> FileReport<'a> {
    let (diagnostics, limits, notes) = match read {
        Ok(checked) => {
            let limits = limit_reports(&checked.policy);
            let notes = notes(&checked.policy, &limits);
            let warnings = render::to_reports(&checked.warnings, &checked.sources);
            (warnings, limits, notes)
        }
        Err(rejected) => {
            let errors = render::to_reports(&rejected.errors, &rejected.sources);
            (errors, Vec::new(), Vec::new())
        }
    };
    FileReport {
        file: name.to_owned(),
        valid: read.is_ok(),
        diagnostics,
        store_outage: store_outage_text(&limits),
        notes,
        limits,
    }
}

/// Notes for operators, which are neither errors nor warnings.
fn notes(policy: &Policy, limits: &[LimitReport]) -> Vec<Note> {
    let notes = [
        ("quotas-in-memory", quotas_in_memory_note(limits)),
        ("slots-are-leases", lease_note(policy)),
        ("adaptive-untold", adaptive_note(policy)),
    ];
    let known = notes.into_iter().filter_map(|(code, message)| {
        let message = message?;
        Some(Note { code, message })
    });
    known.collect()
}

/// The note that quotas in memory don't survive a restart. The policy doesn't name the backend, so the operator has
/// to choose it.
fn quotas_in_memory_note(limits: &[LimitReport]) -> Option<String> {
    let quotas = limits.iter().filter(|limit| limit.has_quota).count();
    let whose = pluralize(quotas, "limit");
    (quotas > 0).then(|| {
        format!(
            "the quotas of {whose} are kept in memory, and a restart forgets what was used, unless the program \
             keeps its limits in Redis or Valkey (tollgate serve --backend), or gives its memory a file for quotas (tollgate serve --state, `quota_file`)"
        )
    })
}

/// All limits with their effective settings.
fn limit_reports(policy: &Policy) -> Vec<LimitReport> {
    let report = |(kind, rule): (&'static str, Rule)| {
        let mode = rule.mode.max(policy.mode);
        LimitReport {
            kind,
            mode: mode.name(),
            enforced_percent: match mode {
                Mode::Enforce => rule.enforced_percent,
                Mode::Shadow | Mode::Off => 0,
            },
            counting: rule.counting,
            on_store_failure: rule.on_store_failure.to_text(&rule.limits),
            failures: rule.on_store_failure.modes_for(&rule.limits).collect(),
            has_quota: rule.limits.quota.is_some(),
            is_unlimited: rule.limits.unlimited,
            name: rule.name,
        }
    };
    all_as_rules(policy).into_iter().map(report).collect()
}

/// All limits as rules, with their kind: rules, and the equivalent rules of tiers and descriptors.
pub(super) fn all_as_rules(policy: &Policy) -> Vec<(&'static str, Rule)> {
    let rules = policy.rules.iter().map(|rule| ("rule", rule.clone()));
    let tiers = policy.tiers.iter();
    let tiers = tiers.map(|(name, tier)| ("tier", tier.as_rule(name)));
    let compiled = envoy::DescriptorIndex::new(&policy.domains);
    let leaves = compiled.leaves().iter().map(|leaf| {
        let shadow = leaf.limit.shadow.then_some(Mode::Shadow);
        let rule = Rule {
            mode: shadow.unwrap_or_default(),
            counting: leaf.limit.counting,
            on_store_failure: leaf.limit.on_store_failure,
            ..Rule::new(&leaf.to_string(), leaf.limit.limits.clone())
        };
        ("descriptor", rule)
    });
    rules.chain(tiers).chain(leaves).collect()
}

fn write_file_text(
    name: &str,
    read: &Result<LoadedPolicy, LoadError>,
    color: Color,
    out: &mut impl Write,
) -> io::Result<()> {
    let checked = match read {
        Ok(checked) => checked,
        Err(rejected) => {
            let shown = color.paint_diagnostics(&rejected.errors, &rejected.sources);
            write!(out, "{shown}")?;
            let errors = pluralize(rejected.errors.len(), "error");
            return writeln!(out, "{}: {errors}", render::escaped(name));
        }
    };
    if !checked.warnings.is_empty() {
        let shown = color.paint_diagnostics(&checked.warnings, &checked.sources);
        write!(out, "{shown}")?;
    }
    let policy = &checked.policy;
    write!(out, "{}: valid, ", render::escaped(name))?;
    if policy.domains.is_empty() {
        write!(out, "{}", pluralize(policy.rules.len(), "limit"))?;
    } else {
        write!(out, "{}", pluralize(policy.domains.len(), "domain"))?;
    }
    writeln!(out, ", {}", pluralize(checked.warnings.len(), "warning"))?;
    let limits = limit_reports(policy);
    let (notes, outage) = (notes(policy, &limits), store_outage_text(&limits));
    for limit in limits {
        let tier = if limit.kind == "tier" { "tier " } else { "" };
        let LimitReport { name, mode, .. } = &limit;
        let (failure, name) = (&limit.on_store_failure, render::escaped(name));
        write!(out, "  {tier}{name}: {mode}")?;
        if let percent @ 1..100 = limit.enforced_percent {
            write!(out, " for {percent}% of its keys")?;
        }
        if limit.is_unlimited {
            writeln!(out, ", unlimited")?;
            continue;
        }
        match counting_text(limit.counting) {
            Some(COUNTED_LOCALLY) => writeln!(out, ", {COUNTED_LOCALLY}")?,
            Some(counted) => writeln!(out, ", {counted}, {failure} if the store fails")?,
            None => writeln!(out, ", {failure} if the store fails")?,
        }
    }
    if let Some(outage) = outage {
        writeln!(out, "  store outage: {}", render::escaped(&outage))?;
    }
    for Note { message, .. } in notes {
        writeln!(out, "  note: {message}")?;
    }
    Ok(())
}

const COUNTED_LOCALLY: &str = "counted in this process";

/// The counting in words. `None` for the default.
pub(super) fn counting_text(counting: Counting) -> Option<&'static str> {
    match counting {
        Counting::Exact => None,
        Counting::Leased => Some("leased"),
        Counting::Local => Some(COUNTED_LOCALLY),
    }
}

/// Most limits that a line lists. Further limits are only counted.
const MAX_LISTED_LIMITS: usize = 8;

/// What each limit does while the store is unreachable. `None` if no limit uses a store.
fn store_outage_text(limits: &[LimitReport]) -> Option<String> {
    let asks = |limit: &&LimitReport| {
        limit.counting != Counting::Local
            && !limit.is_unlimited
            && limit.mode != "off"
            && !limit.failures.is_empty()
    };
    let asking: Vec<&LimitReport> = limits.iter().filter(asks).collect();
    // Limits that deny come first: they decide what an outage costs.
    let (denying, others): (Vec<_>, Vec<_>) = asking.into_iter().partition(|limit| {
        let mut modes = limit.failures.iter();
        modes.any(|(_, mode)| *mode == OnStoreFailure::Closed)
    });
    let all: Vec<_> = denying.into_iter().chain(others).collect();
    let mut words: Vec<String> = all
        .iter()
        .take(MAX_LISTED_LIMITS)
        .map(|limit| limit_outage_text(limit))
        .collect();
    if let Some(more) = all
        .len()
        .checked_sub(MAX_LISTED_LIMITS)
        .filter(|more| *more > 0)
    {
        words.push(format!("and {more} more"));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

fn limit_outage_text(limit: &LimitReport) -> String {
    let name = match limit.kind {
        "tier" => format!("tier {}", limit.name),
        _ => limit.name.clone(),
    };
    let denies = match limit.mode {
        "shadow" => "would deny",
        _ => "denies",
    };
    let verb = |mode: OnStoreFailure| match mode {
        OnStoreFailure::Open => "lets all pass",
        OnStoreFailure::Closed => denies,
        OnStoreFailure::Local | OnStoreFailure::CircuitBreak => "counts in each process",
    };
    let failures = limit.failures.iter();
    let (closed, rest): (Vec<_>, Vec<_>) =
        failures.partition(|(_, mode)| *mode == OnStoreFailure::Closed);
    let kinds = |list: &[&(&'static str, OnStoreFailure)]| {
        let kinds: Vec<_> = list.iter().map(|(kind, _)| *kind).collect();
        kinds.join(" and ")
    };
    let same = |list: &[&(&'static str, OnStoreFailure)]| {
        let first = list.first().map(|(_, mode)| verb(*mode));
        first.filter(|first| list.iter().all(|(_, mode)| verb(*mode) == *first))
    };
    match (closed.as_slice(), rest.as_slice()) {
        ([], rest) => match same(rest) {
            Some(verb) => format!("{name} {verb}"),
            None => {
                let each = rest.iter();
                let each = each.map(|(kind, mode)| format!("its {kind} {}", verb(*mode)));
                let each: Vec<_> = each.collect();
                format!("{name}: {}", each.join(", "))
            }
        },
        (_, []) => format!("{name} {denies}"),
        (closed, _) => format!("{name} {denies}, by its {}", kinds(closed)),
    }
}
