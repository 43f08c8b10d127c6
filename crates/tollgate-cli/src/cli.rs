//! The command line: which commands there are, and what becomes of their errors.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::admin::{self, Admin, AdminFailure};
use crate::ask::{self, Ask, AskFailure, Asked};
use crate::color::Color;
use crate::load::{self, Load, LoadFailure};
use crate::pages::{self, Completions, Man};
use crate::pipe::{self, Pipe, PipeFailure};
use crate::policy::{self, Check, Convert, Diff, Explain, HAS_ERRORS, PolicyFailure};
use crate::serve::{self, Serve, ServeFailure};
use crate::simulate::{self, Options, PatternError};

/// Exact rate limits: tools to choose one and to see what it does.
#[derive(Clone, Debug, Parser)]
#[command(name = "tollgate", version)]
pub struct Cli {
    /// Whether what people read has colours.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, global = true)]
    pub color: Color,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads a command line. `serve` reads the environment and a file beside it, too.
    ///
    /// # Errors
    /// What is wrong with it, or what was asked about it.
    pub fn read(args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, clap::Error> {
        let args = args.into_iter().map(Into::into).collect();
        let (matches, origins) = serve::read(&Self::command(), args)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let Command::Serve(options) = &mut cli.command {
            options.origins = origins;
        }
        Ok(cli)
    }
}

/// The commands of `tollgate`.
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Answer Envoy, Redis clients and HTTP, by one policy.
    Serve(Box<Serve>),
    /// Ask a service that runs about one request: whether it passes, why, and what is left.
    Ask(Ask),
    /// Ask a service that runs, and change what it does: look, reset, block, reload.
    Admin(Box<Admin>),
    /// Run a traffic pattern through every algorithm on virtual time and compare them.
    Simulate(Options),
    /// Say what is wrong with policy files: every error, and what may not be meant.
    Check(Check),
    /// Show what a policy does to a request: which rules are for it, and each decision.
    Explain(Explain),
    /// Show what another policy would change, and what becomes of what was counted.
    Diff(Diff),
    /// Turn envoyproxy/ratelimit's YAML into ours.
    Convert(Convert),
    /// Ask one limit for as many decisions as a few tasks can, and say how long they took.
    Load(Load),
    /// Limit the lines of standard input: drop what is too much, or hold it back.
    Pipe(Pipe),
    /// Write the completions of this command line for a shell.
    Completions(Completions),
    /// Write the manual: one page of all commands, or the page of one.
    Man(Man),
}

/// How a command that ran ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All is well.
    Well,
    /// A file that was to be checked has errors.
    Invalid,
    /// Two that were compared aren't the same.
    Different,
    /// A service that was asked denies the request.
    Denied,
}

/// Why a command failed after its arguments were parsed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CliError {
    /// The pattern can't be played at the rate that was asked for.
    Pattern(PatternError),
    /// The policy can't be used.
    Policy(PolicyFailure),
    /// Policies can't be compared.
    Diff(PolicyFailure),
    /// The limit can't be driven.
    Load(LoadFailure),
    /// Lines can't be limited.
    Pipe(PipeFailure),
    /// The service can't run.
    Serve(ServeFailure),
    /// The service wasn't asked, or said no.
    Admin(AdminFailure),
    /// The service didn't decide.
    Ask(AskFailure),
    /// The output could not be written.
    Write(io::Error),
}

impl Cli {
    /// Runs the command and writes what it has to say to `out`, and what is said beside it to `notes`. There are
    /// colours if they are always wanted: who knows that `out` is a terminal [says so](Color::on).
    ///
    /// # Errors
    /// Arguments that make no sense together, or output that can't be written. A reader that
    /// closed its end early, as `head` does, got what it wanted and is no error.
    pub fn run(&self, out: &mut impl Write, notes: &mut impl Write) -> Result<Ended, CliError> {
        let mut ended = Ended::Well;
        let mut failed = None;
        let written = match &self.command {
            Command::Simulate(options) => simulated(options, out)?,
            Command::Check(options) => policy::check(options, self.color, out)
                .map_err(CliError::Policy)?
                .map(|valid| {
                    if !valid {
                        ended = Ended::Invalid;
                    }
                }),
            Command::Explain(options) => {
                policy::explain(options, self.color, out).map_err(CliError::Policy)?
            }
            Command::Diff(options) => {
                policy::diff(options, out)
                    .map_err(CliError::Diff)?
                    .map(|same| {
                        if !same {
                            ended = Ended::Different;
                        }
                    })
            }
            Command::Convert(options) => {
                let converted = policy::convert(options).map_err(CliError::Policy)?;
                failed = converted.failure().map(CliError::Policy);
                if options.json {
                    converted.write_json(out)
                } else if let Some(text) = &converted.text {
                    let noted = notes.write_all(converted.lost().as_bytes());
                    noted.and_then(|()| out.write_all(text.as_bytes()))
                } else {
                    Ok(())
                }
            }
            Command::Serve(options) => {
                serve::serve(options, out).map_err(CliError::Serve)?;
                Ok(())
            }
            Command::Ask(options) => asked(options, out, &mut ended)?,
            Command::Admin(options) => {
                admin::admin(options, out, notes).map_err(CliError::Admin)?
            }
            Command::Pipe(options) => piped(options, out, notes)?,
            Command::Completions(options) => pages::completions(options, &mut Self::command(), out),
            Command::Man(options) => pages::man(options, Self::command(), out),
            Command::Load(options) => {
                let report = load::load(options).map_err(CliError::Load)?;
                failed = report.undecided(options).map(CliError::Load);
                if options.json {
                    report.write_json(out)
                } else {
                    write!(out, "{report}")
                }
            }
        };
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Write(error)),
            _ => failed.map_or(Ok(ended), Err),
        }
    }
}

/// Asks a service about a request. A denial isn't an error, and has an end of its own.
fn asked(
    options: &Ask,
    out: &mut impl Write,
    ended: &mut Ended,
) -> Result<io::Result<()>, CliError> {
    let (asked, written) = ask::ask(options, out).map_err(CliError::Ask)?;
    if asked == Asked::Denied {
        *ended = Ended::Denied;
    }
    Ok(written)
}

/// Limits the lines of standard input. What can't be written is among its own failures.
fn piped(
    options: &Pipe,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> Result<io::Result<()>, CliError> {
    let ended = pipe::pipe_standard_input(options, out, notes);
    ended.map(Ok).map_err(CliError::Pipe)
}

/// Plays traffic, and writes what came of it.
fn simulated(options: &Options, out: &mut impl Write) -> Result<io::Result<()>, CliError> {
    if options.file.is_some() {
        let report = simulate::simulate_policy(options).map_err(CliError::Policy)?;
        return Ok(if options.json {
            report.write_json(out)
        } else {
            write!(out, "{report}")
        });
    }
    if options.adaptive {
        return simulated_laws(options, out);
    }
    let report = simulate::simulate(options).map_err(CliError::Pattern)?;
    Ok(if options.json {
        report.write_json(out)
    } else {
        write!(out, "{report}")
    })
}

/// Plays laws that find a limit, and writes what came of it.
fn simulated_laws(options: &Options, out: &mut impl Write) -> Result<io::Result<()>, CliError> {
    let wrong = |error: &dyn fmt::Display| CliError::Write(io::Error::other(error.to_string()));
    let report = simulate::simulate_adaptive(options).map_err(|error| wrong(&error))?;
    if let Some(file) = &options.svg {
        let written = std::fs::write(file, report.svg());
        written.map_err(|error| wrong(&format!("{}: {error}", file.display())))?;
    }
    Ok(if options.json {
        report.write_json(out)
    } else {
        write!(out, "{report}")
    })
}

impl CliError {
    /// The exit code of the process: 2 when the arguments are at fault, 3 when something would be lost that
    /// nobody said may be, otherwise 1.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Policy(PolicyFailure::Lossy(_)) => 3,
            // 1 is that they differ, as for diff(1).
            Self::Pattern(_) | Self::Policy(PolicyFailure::Usage(_)) | Self::Diff(_) => 2,
            Self::Load(failure) if failure.is_usage() => 2,
            Self::Serve(failure) if failure.is_usage() => 2,
            Self::Serve(ServeFailure::Cut(signal)) => signal.exit_code(),
            Self::Serve(ServeFailure::Preflight(failure)) => failure.exit_code(),
            Self::Admin(failure) if failure.is_usage() => 2,
            Self::Ask(failure) if failure.is_usage() => 2,
            Self::Pipe(failure) => failure.exit_code(),
            Self::Policy(_)
            | Self::Load(_)
            | Self::Serve(_)
            | Self::Admin(_)
            | Self::Ask(_)
            | Self::Write(_) => 1,
        }
    }
}

impl CliError {
    /// What people are told of it.
    pub fn shown(&self, color: Color) -> String {
        let error = color.error();
        match self {
            Self::Policy(PolicyFailure::Rejected(rejected))
            | Self::Diff(PolicyFailure::Rejected(rejected)) => {
                let shown = color.diagnostics(&rejected.errors, &rejected.sources);
                format!("{error} {HAS_ERRORS}\n{shown}")
            }
            other => format!("{error} {other}"),
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(error) => error.fmt(f),
            Self::Policy(error) | Self::Diff(error) => error.fmt(f),
            Self::Load(failure) => failure.fmt(f),
            Self::Pipe(failure) => failure.fmt(f),
            Self::Serve(failure) => failure.fmt(f),
            Self::Admin(failure) => failure.fmt(f),
            Self::Ask(failure) => failure.fmt(f),
            Self::Write(error) => write!(f, "can't write the output: {error}"),
        }
    }
}

impl std::error::Error for CliError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that fails in one way.
    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
        for arguments in [
            &["tollgate", "simulate"][..],
            &["tollgate", "simulate", "--json"],
        ] {
            let cli = Cli::try_parse_from(arguments).unwrap();
            let run = |kind| cli.run(&mut Broken(kind), &mut io::sink());
            assert!(run(io::ErrorKind::BrokenPipe).is_ok());
            let error = run(io::ErrorKind::StorageFull).unwrap_err();
            assert_eq!(error.exit_code(), 1);
            assert_eq!(
                error.to_string(),
                "can't write the output: no storage space"
            );
        }
    }
}
