//! The command line: which commands there are.

use std::ffi::OsString;
use std::io::Write;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::admin::{self, Admin};
use crate::ask::{self, Ask};
use crate::color::Color;
use crate::load::{self, Load};
use crate::outcome::{CliError, Ended};
use crate::output::{show, written};
use crate::pages::{self, Completions, Man};
use crate::pipe::{self, Pipe};
use crate::policy::{self, Check, Convert, Diff, Explain};
use crate::serve::{self, Serve};
use crate::simulate::{self, Options};

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

impl Cli {
    /// Runs the command and writes what it has to say to `out`, and what is said beside it to `notes`. There are
    /// colours if they are always wanted: who knows that `out` is a terminal [says so](Color::on).
    ///
    /// # Errors
    /// Arguments that make no sense together, or output that can't be written. A reader that
    /// closed its end early, as `head` does, got what it wanted and is no error.
    pub fn run(&self, out: &mut impl Write, notes: &mut impl Write) -> Result<Ended, CliError> {
        let ended = self.carry_out(out, notes);
        written(out.flush())?;
        ended
    }

    fn carry_out(&self, out: &mut impl Write, notes: &mut impl Write) -> Result<Ended, CliError> {
        match &self.command {
            Command::Simulate(options) => simulate::run(options, out)?,
            Command::Check(options) => return policy::check(options, self.color, out),
            Command::Explain(options) => policy::explain(options, self.color, out)?,
            Command::Diff(options) => return policy::diff(options, out),
            Command::Convert(options) => policy::write_converted(options, out, notes)?,
            Command::Serve(options) => serve::serve(options, out)?,
            Command::Ask(options) => return ask::ask(options, out),
            Command::Admin(options) => admin::admin(options, out, notes)?,
            Command::Pipe(options) => pipe::pipe_standard_input(options, out, notes)?,
            Command::Completions(options) => {
                written(pages::completions(options, &mut Self::command(), out))?;
            }
            Command::Man(options) => written(pages::man(options, Self::command(), out))?,
            Command::Load(options) => {
                let report = load::load(options)?;
                show(&report, options.json, out)?;
                if let Some(failure) = report.undecided(options) {
                    return Err(failure);
                }
            }
        }
        Ok(Ended::Well)
    }
}
