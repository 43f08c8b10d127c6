//! Generates shell completions and manual pages from the command line's definition.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

/// Options of `tollgate completions`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Examples:
  tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
pub struct CompletionsOptions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Options of `tollgate man`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Examples:
  tollgate man | man -l -
  tollgate man check > tollgate-check.1")]
pub struct ManOptions {
    /// The command. Without a command, the page that lists all of them.
    #[arg(value_parser = PAGES)]
    pub command: Option<String>,
}

/// Commands with a page of their own: all but those about the command line itself.
const PAGES: [&str; 10] = [
    "serve", "ask", "admin", "simulate", "check", "explain", "diff", "convert", "load", "pipe",
];

pub(crate) fn completions(
    options: &CompletionsOptions,
    all: &mut Command,
    out: &mut impl Write,
) -> io::Result<()> {
    // The generator panics when it writes to a closed pipe, so it writes to memory first.
    let mut text = Vec::new();
    clap_complete::generate(options.shell, all, "tollgate", &mut text);
    out.write_all(&text)
}

pub(crate) fn man(options: &ManOptions, all: Command, out: &mut impl Write) -> io::Result<()> {
    let page = options.command.as_deref();
    let command = match page.and_then(|name| all.find_subcommand(name).cloned()) {
        Some(page) => {
            let name = page.get_name().to_owned();
            page.display_name(format!("tollgate-{name}"))
                .bin_name(format!("tollgate {name}"))
        }
        None => all,
    };
    clap_mangen::Man::new(command).render(out)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_has_a_page_but_those_about_the_command_line() {
        let all = crate::Cli::command();
        let names = all.get_subcommands().map(Command::get_name);
        let names = names.filter(|name| !matches!(*name, "completions" | "man"));
        assert_eq!(names.collect::<Vec<_>>(), PAGES);
    }
}
