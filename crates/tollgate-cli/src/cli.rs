//! The command line and its commands.

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

/// Exact rate limits: tools to choose a limit and to see its effect.
#[derive(Clone, Debug, Parser)]
#[command(name = "tollgate", version)]
pub struct Cli {
    /// Whether text for people has colors.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, global = true)]
    pub color: Color,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads a command line. `serve` also reads the environment and a settings file.
    ///
    /// # Errors
    /// The arguments are invalid, or they ask for help or the version, which clap treats as an error.
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
    /// Send one request to a running service: whether it passes, why, and what remains.
    Ask(AskOptions),
    /// Query and change a running service: rules, keys, resets, blocks, reloads.
    Admin(Box<Admin>),
    /// Run a traffic pattern through every algorithm on virtual time and compare them.
    Simulate(SimulateOptions),
    /// Check policy files: report every error and warning.
    Check(CheckArgs),
    /// Explain the decision of a policy on a request: the rules that apply, and each decision.
    Explain(ExplainArgs),
    /// Show what a new policy would change, and which counters it would keep.
    Diff(DiffArgs),
    /// Convert envoyproxy/ratelimit's YAML to the native form.
    Convert(ConvertArgs),
    /// Load test one limit from several concurrent tasks, and measure the latency of its decisions.
    Load(LoadOptions),
    /// Rate-limit the lines of standard input: drop the lines over the limit, or delay them.
    Pipe(PipeOptions),
    /// Print shell completions for this command line.
    Completions(CompletionsOptions),
    /// Print manual pages: one page of all commands, or the page of one.
    Man(ManOptions),
}

impl Cli {
    /// Runs the command. Its output goes to `out`, and its notes and warnings to `notes`. There are colors only for
    /// [`Color::Always`]: the caller [resolves](Color::resolve_for) the choice, because it knows whether `out` is a
    /// terminal.
    ///
    /// # Errors
    /// The arguments exclude one another, or the output can't be written. A reader that closed its end early, as
    /// `head` does, is no error.
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
