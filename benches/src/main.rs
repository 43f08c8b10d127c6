//! The benchmark: the cost of a check and of a wait, relative to the floor and to other limiters, measured
//! alternately in one run. `cargo xtask bench [GROUP] [--json]` runs it.

use std::io::{self, Write};
use std::process::ExitCode;

mod adaptive;
mod alloc;
mod composition;
mod handmade;
mod instructions;
mod keyed;
mod limiter;
mod machine;
mod middleware;
mod peers;
mod policy;
mod redis;
mod report;
mod runner;
mod server;
mod shaping;
mod tail;
mod timing;
mod two_threads;
mod waiters;
mod waiting;

use report::Report;

/// A group's name, and its function.
type Group = (&'static str, fn(&mut Report));

/// Every group, in the order in which they run.
const GROUPS: [Group; 11] = [
    ("limiter", limiter::run),
    ("waiting", waiting::run),
    ("keyed", keyed::run),
    ("composition", composition::run),
    ("adaptive", adaptive::run),
    ("policy", policy::run),
    ("redis", redis::run),
    ("server", server::run),
    ("middleware", middleware::run),
    ("shaping", shaping::run),
    ("instructions", instructions::run),
];

fn main() -> ExitCode {
    let child = keyed::child(std::env::args().skip(1));
    let child = child.or_else(|| instructions::child(std::env::args().skip(1)));
    if let Some(code) = child {
        return code;
    }
    let chosen = match parse(std::env::args().skip(1)) {
        Ok(chosen) => chosen,
        Err(message) => {
            let _ = writeln!(io::stderr(), "error: {message}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::new(chosen.json);
    for (name, run) in GROUPS {
        if chosen.group.as_deref().is_none_or(|group| group == name) {
            report.start_group(name);
            run(&mut report);
        }
    }
    match report.finish() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: can't write the results: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Chosen {
    /// None means every group.
    group: Option<String>,
    json: bool,
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Chosen, String> {
    let mut chosen = Chosen {
        group: None,
        json: false,
    };
    let names = || GROUPS.map(|(name, _)| name).join(", ");
    for argument in arguments {
        match argument.as_str() {
            "--json" => chosen.json = true,
            flag if flag.starts_with('-') => {
                return Err(format!(
                    "unknown option {flag:?}; the only option is --json"
                ));
            }
            name if chosen.group.is_some() => {
                return Err(format!("one group at a time: {name:?} is one too many"));
            }
            name if GROUPS.iter().any(|(known, _)| *known == name) => {
                chosen.group = Some(argument);
            }
            name => {
                return Err(format!(
                    "unknown group {name:?}; the groups are {}",
                    names()
                ));
            }
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str], expect: Result<(Option<&str>, bool), &str>) {
        let parsed = parse(arguments.iter().map(ToString::to_string));
        let parsed = parsed.map(|chosen| (chosen.group, chosen.json));
        let expect = expect
            .map(|(group, json)| (group.map(str::to_owned), json))
            .map_err(str::to_owned);
        assert_eq!(parsed, expect, "{arguments:?}");
    }

    #[test]
    fn arguments_name_at_most_one_known_group() {
        check(&[], Ok((None, false)));
        check(&["--json", "limiter"], Ok((Some("limiter"), true)));
        check(&["waiting"], Ok((Some("waiting"), false)));
        check(
            &["fast"],
            Err(
                "unknown group \"fast\"; the groups are limiter, waiting, keyed, composition, adaptive, policy, redis, server, middleware, shaping, instructions",
            ),
        );
        check(
            &["limiter", "waiting"],
            Err("one group at a time: \"waiting\" is one too many"),
        );
        check(
            &["--fast"],
            Err("unknown option \"--fast\"; the only option is --json"),
        );
    }
}
