//! The command line: which commands there are.

use std::ffi::OsString;
use std::io::Write;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::admin::{self, Admin};
use crate::ask::{self, AskOptions};
use crate::color::Color;
use crate::load::{self, LoadOptions};
use crate::manual::{self, CompletionsOptions, ManOptions};
use crate::outcome::{CliError, CommandOutcome};
use crate::output::{map_write_error, write_report};
use crate::pipe::{self, PipeOptions};
use crate::policy::{self, CheckArgs, ConvertArgs, DiffArgs, ExplainArgs};
use crate::serve::{self, ServeOptions};
use crate::simulate::{self, SimulateOptions};

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
        let (matches, origins) = serve::read_command_line(&Self::command(), args)?;
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
    Serve(Box<ServeOptions>),
    /// Ask a service that runs about one request: whether it passes, why, and what is left.
    Ask(AskOptions),
    /// Ask a service that runs, and change what it does: look, reset, block, reload.
    Admin(Box<Admin>),
    /// Run a traffic pattern through every algorithm on virtual time and compare them.
    Simulate(SimulateOptions),
    /// Say what is wrong with policy files: every error, and what may not be meant.
    Check(CheckArgs),
    /// Show what a policy does to a request: which rules are for it, and each decision.
    Explain(ExplainArgs),
    /// Show what another policy would change, and what becomes of what was counted.
    Diff(DiffArgs),
    /// Turn envoyproxy/ratelimit's YAML into ours.
    Convert(ConvertArgs),
    /// Ask one limit for as many decisions as a few tasks can, and say how long they took.
    Load(LoadOptions),
    /// Limit the lines of standard input: drop what is too much, or hold it back.
    Pipe(PipeOptions),
    /// Write the completions of this command line for a shell.
    Completions(CompletionsOptions),
    /// Write the manual: one page of all commands, or the page of one.
    Man(ManOptions),
}

impl Cli {
    /// Runs the command and writes what it has to say to `out`, and what is said beside it to `notes`. There are
    /// colours if they are always wanted: who knows that `out` is a terminal [says so](Color::on).
    ///
    /// # Errors
    /// Arguments that make no sense together, or output that can't be written. A reader that
    /// closed its end early, as `head` does, got what it wanted and is no error.
    pub fn run(
        &self,
        out: &mut impl Write,
        notes: &mut impl Write,
    ) -> Result<CommandOutcome, CliError> {
        let ended = self.carry_out(out, notes);
        map_write_error(out.flush())?;
        ended
    }

    fn carry_out(
        &self,
        out: &mut impl Write,
        notes: &mut impl Write,
    ) -> Result<CommandOutcome, CliError> {
        match &self.command {
            Command::Simulate(options) => simulate::run_simulation(options, out)?,
            Command::Check(options) => return policy::check(options, self.color, out),
            Command::Explain(options) => policy::explain(options, self.color, out)?,
            Command::Diff(options) => return policy::diff(options, out),
            Command::Convert(options) => policy::write_converted(options, out, notes)?,
            Command::Serve(options) => serve::run_service(options, out)?,
            Command::Ask(options) => return ask::ask(options, out),
            Command::Admin(options) => admin::admin(options, out, notes)?,
            Command::Pipe(options) => pipe::pipe_standard_input(options, out, notes)?,
            Command::Completions(options) => {
                map_write_error(manual::completions(options, &mut Self::command(), out))?;
            }
            Command::Man(options) => map_write_error(manual::man(options, Self::command(), out))?,
            Command::Load(options) => {
                let report = load::load(options)?;
                write_report(&report, options.json, out)?;
                if let Some(failure) = report.no_decision_error(options) {
                    return Err(failure);
                }
            }
        }
        Ok(CommandOutcome::Success)
    }
}
