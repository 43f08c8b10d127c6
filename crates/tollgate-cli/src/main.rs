//! The `tollgate` command: parses the arguments, runs the command, chooses the exit code.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use tollgate_cli::{Cli, Ended};

fn main() -> ExitCode {
    // Clap prints usage errors itself and exits with 2.
    let mut cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let on_errors = cli.color.on(&io::stderr());
    cli.color = cli.color.on(&io::stdout());
    match cli.run(&mut BufWriter::new(io::stdout().lock()), &mut io::stderr()) {
        Ok(Ended::Well) => ExitCode::SUCCESS,
        Ok(Ended::Invalid | Ended::Different) => ExitCode::FAILURE,
        Ok(Ended::Denied) => ExitCode::from(3),
        Err(error) => {
            // There is nobody left to tell when standard error is closed too.
            let _ = writeln!(io::stderr(), "{}", error.shown(on_errors));
            ExitCode::from(error.exit_code())
        }
    }
}
