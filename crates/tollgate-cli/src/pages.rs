//! What shells and manuals know of the command line, made of what the command line itself knows.

use std::io::{self, Write};

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

/// Which shell.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Examples:
  tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Which page.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Examples:
  tollgate man | man -l -
  tollgate man check > tollgate-check.1")]
pub struct Man {
    /// The command; without one, the page that lists them all.
    #[arg(value_enum)]
    pub command: Option<Page>,
}

/// A command that has a page of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Page {
    /// `tollgate serve`.
    Serve,
    /// `tollgate admin`.
    Admin,
    /// `tollgate simulate`.
    Simulate,
    /// `tollgate check`.
    Check,
    /// `tollgate explain`.
    Explain,
    /// `tollgate diff`.
    Diff,
    /// `tollgate convert`.
    Convert,
    /// `tollgate load`.
    Load,
    /// `tollgate pipe`.
    Pipe,
}

pub(crate) fn completions(
    options: &Completions,
    all: &mut Command,
    out: &mut impl Write,
) -> io::Result<()> {
    // Into memory first: the generator panics where a pipe is closed.
    let mut text = Vec::new();
    clap_complete::generate(options.shell, all, "tollgate", &mut text);
    out.write_all(&text)
}

pub(crate) fn man(options: &Man, all: Command, out: &mut impl Write) -> io::Result<()> {
    let page = options.command.and_then(|page| page.to_possible_value());
    let page = page.and_then(|page| all.find_subcommand(page.get_name()).cloned());
    let command = match page {
        Some(page) => {
            let name = page.get_name().to_owned();
            page.display_name(format!("tollgate-{name}"))
                .bin_name(format!("tollgate {name}"))
        }
        None => all,
    };
    clap_mangen::Man::new(command).render(out)
}
