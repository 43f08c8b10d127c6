//! Project chores, one word each: `cargo xtask <TASK>`.

mod book;
mod lines;
mod protos;

use std::env;
use std::io::{self, Write};
use std::process::{Command, ExitCode};

use protos::OutputAction;
use xtask::pages;
use xtask::words::Dictionary;

const HELP: &str = "\
Project chores: cargo xtask <TASK>

  bench [GROUP] [--json]  ratios against the floor and other limiters, from one run that takes
                          turns; without GROUP all of them, with --json one line a case and peer
  protos [--check]        compiles what the service tells by reflection from its .proto files, or
                          says whether that was done
  lines                   lines of code, comments and tests by crate
  book                    builds the book of docs/ into target/book
  words                   adds the words of all pages to the list of known ones: read what it adds
  help                    this list
";

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    match arguments.next().as_deref() {
        None | Some("help" | "--help" | "-h") => {
            // The pipe may be closed, and there is no other output.
            let _ = io::stdout().write_all(HELP.as_bytes());
            ExitCode::SUCCESS
        }
        Some("bench") => bench(arguments),
        Some("lines") => match lines::run(&mut io::stdout().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("can't count lines: {error}")),
        },
        Some("protos") => protos(arguments.next().as_deref()),
        Some("book") => match book::run() {
            Ok(page) => say(&format!("the book is at {}", page.display())),
            Err(why) => fail(&why),
        },
        Some("words") => match add_words() {
            Ok(added) => say(&added.join("\n")),
            Err(error) => fail(&format!("can't read or write words: {error}")),
        },
        Some(unknown) => fail(&format!(
            "unknown task {unknown:?}; `cargo xtask help` lists the tasks"
        )),
    }
}

/// Runs the benchmark with a user's optimization, and returns its exit code.
fn bench(arguments: impl Iterator<Item = String>) -> ExitCode {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "-q", "-p", "tollgate-bench", "--"])
        .args(arguments)
        .status();
    match status {
        // No code means that a signal ended it.
        Ok(status) => status.code().map_or(ExitCode::FAILURE, |code| {
            u8::try_from(code).unwrap_or(1).into()
        }),
        Err(error) => fail(&format!("can't start cargo: {error}")),
    }
}

fn protos(option: Option<&str>) -> ExitCode {
    let then = match option {
        None => OutputAction::Write,
        Some("--check") => OutputAction::Compare,
        Some(unknown) => return fail(&format!("protos has --check, and not {unknown:?}")),
    };
    match protos::run(then) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why),
    }
}

/// Adds all words of all pages to the dictionary, and returns the new ones.
fn add_words() -> io::Result<Vec<String>> {
    let mut dictionary = Dictionary::load()?;
    let mut added = Vec::new();
    for page in pages::all()? {
        for (line, word) in dictionary.unknown(&page) {
            added.push(format!("{}:{line}: {word}", page.path));
            dictionary.add(word);
        }
    }
    dictionary.save(&Dictionary::path())?;
    Ok(added)
}

fn say(text: &str) -> ExitCode {
    let _ = writeln!(io::stdout(), "{text}");
    ExitCode::SUCCESS
}

fn fail(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "error: {message}");
    ExitCode::from(2)
}
