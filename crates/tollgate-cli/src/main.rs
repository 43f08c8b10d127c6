//! The `tollgate` command: parses the arguments, runs the command, chooses the exit code.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use tollgate_cli::{Cli, CommandOutcome};

fn main() -> ExitCode {
    // Clap prints usage errors itself and exits with 2.
    let mut cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let on_errors = cli.color.resolve_for(&io::stderr());
    cli.color = cli.color.resolve_for(&io::stdout());
    match cli.run(&mut BufWriter::new(io::stdout().lock()), &mut io::stderr()) {
        Ok(CommandOutcome::Success) => ExitCode::SUCCESS,
        Ok(CommandOutcome::InvalidPolicy | CommandOutcome::PoliciesDiffer) => ExitCode::FAILURE,
        Ok(CommandOutcome::Denied) => ExitCode::from(3),
        Err(error) => {
            // Standard error may be closed too, and then there is nowhere to report the error.
            let _ = writeln!(io::stderr(), "{}", error.rendered(on_errors));
            ExitCode::from(error.exit_code())
        }
    }
}
