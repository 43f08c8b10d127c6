//! `cargo xtask book`: builds the book with mdBook, which it installs beside the other tools if it is missing.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use xtask::pages::root;

/// The version that the book is built with.
const VERSION: &str = "0.5.4";

/// Builds the book into `target/book`, and returns its first page.
pub(crate) fn run() -> Result<PathBuf, String> {
    let mdbook = installed()?;
    let mut build = Command::new(mdbook);
    succeed(build.arg("build").arg(root().join("docs")))?;
    Ok(root().join("target/book/index.html"))
}

/// The program, installed if it is missing or has another version.
fn installed() -> Result<PathBuf, String> {
    let tools = root().join("target/tools");
    let program = tools.join("bin/mdbook");
    let shown = Command::new(&program).arg("--version").output();
    let is_there = shown.is_ok_and(|shown| {
        let version = String::from_utf8_lossy(&shown.stdout);
        version.trim().trim_start_matches("mdbook v") == VERSION
    });
    if !is_there {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut install = Command::new(cargo);
        install.args(["install", "--quiet", "--locked", "mdbook"]);
        install.args(["--version", VERSION, "--force"]);
        // Building the book needs no server.
        install.args(["--no-default-features", "--features", "search"]);
        succeed(install.arg("--root").arg(&tools))?;
    }
    Ok(program)
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(error) => Err(format!("{program}: {error}")),
    }
}
