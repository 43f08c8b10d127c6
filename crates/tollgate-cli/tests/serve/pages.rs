//! The pages about the service are true: their commands run, their output matches, and every setting is documented.
//!
//! A block of `yaml file=NAME` is a file. Each line of a block of `sh` is run; a line that starts the service is run
//! with `--print-config`, unless the block is `sh start`: that service answers the following blocks. A block of
//! `console` has commands after `$ ` and their output; `…` stands for any text.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use clap::CommandFactory;
use tollgate_testkit::external_programs::buf;
use tollgate_testkit::redis::Server;
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{ANY, Service};

/// What a block is, and its lines.
struct Block {
    info: String,
    lines: Vec<String>,
    /// The line of the page that it begins on.
    at: usize,
}

/// A page that is gone through from top to bottom.
struct Reading {
    page: &'static str,
    scratch: TempFolder,
    service: Option<Service>,
    store: Option<Server>,
}

/// How lines of a page start the service.
const STARTS: [&str; 2] = ["tollgate serve", "cargo run --release -- serve"];

/// The addresses on the page, by the names of the listeners.
const SHOWN: [(&str, &str); 4] = [
    ("http", "127.0.0.1:8080"),
    ("grpc", "127.0.0.1:8081"),
    ("resp", "127.0.0.1:6380"),
    ("admin", "127.0.0.1:6070"),
];

fn text(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(page);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{page}: {error}"))
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    // A block of a list is as far to the right as that is.
    let mut indent = 0;
    for (number, line) in text(page).lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(info) => {
                is_open = true;
                indent = line.len() - line.trim_start().len();
                blocks.push(Block {
                    info: info.to_owned(),
                    lines: Vec::new(),
                    at: number + 1,
                });
            }
            None if is_open => {
                let last = blocks.last_mut().expect("an open block");
                last.lines
                    .push(line.get(indent..).unwrap_or_default().to_owned());
            }
            None => {}
        }
    }
    blocks
}

impl Reading {
    /// Runs the commands of a page; returns their number.
    fn run(page: &'static str) -> usize {
        let name = page.replace('/', "-");
        let mut reading = Self {
            page,
            scratch: TempFolder::new(&name),
            service: None,
            store: None,
        };
        blocks(page).iter().map(|block| reading.block(block)).sum()
    }

    fn block(&mut self, block: &Block) -> usize {
        let whole = block.lines.join("\n") + "\n";
        if let Some(name) = block.info.split_once(" file=").map(|(_, name)| name) {
            fs::write(self.scratch.path(name), whole).expect("a file");
            return 0;
        }
        match block.info.as_str() {
            "sh" | "sh start" => self.shell(block),
            "console" => self.console(block),
            _ => 0,
        }
    }

    fn shell(&mut self, block: &Block) -> usize {
        let lines = block.lines.iter();
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines.clone() {
            let start = STARTS.iter().find_map(|start| line.strip_prefix(start));
            match start {
                Some(options) if block.info == "sh start" => self.start(options),
                Some(options) => {
                    let tollgate = env!("CARGO_BIN_EXE_tollgate");
                    let options = options.split('#').next().unwrap_or_default();
                    self.sh(&format!("{tollgate} serve {options} --print-config"), block);
                }
                None => drop(self.sh(line, block)),
            }
        }
        lines.count()
    }

    /// Starts the service with these options, and with ports that are free in place of the usual ones.
    fn start(&mut self, options: &str) {
        let options = options.split('#').next().unwrap_or_default();
        let mut options: Vec<_> = options.split_whitespace().map(str::to_owned).collect();
        for option in &mut options {
            if option.starts_with("redis://") {
                let store = self.store.get_or_insert_with(Server::start);
                *option = store.url();
            }
        }
        let mut all: Vec<_> = options.iter().map(String::as_str).collect();
        all.extend(ANY);
        self.service = None;
        self.service = Some(Service::with(&all, |command| {
            command.current_dir(self.scratch.folder());
        }));
    }

    fn console(&mut self, block: &Block) -> usize {
        let mut lines = block.lines.iter().peekable();
        let mut commands = 0;
        while let Some(line) = lines.next() {
            let mut command = line
                .strip_prefix("$ ")
                .unwrap_or_else(|| panic!("{}:{}: a command after $", self.page, block.at))
                .to_owned();
            while command.ends_with('\\') {
                command.push('\n');
                command.push_str(lines.next().expect("the rest of a command"));
            }
            let mut expect = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
                expect.push(line.as_str());
            }
            let ran = self.sh(&command, block);
            let said = String::from_utf8(ran.stdout).expect("text");
            let said = self.as_shown(&said);
            let found: Vec<_> = said.lines().collect();
            let fit = found.len() == expect.len()
                && expect
                    .iter()
                    .zip(&found)
                    .all(|(shown, line)| fits(shown, line));
            let (page, at) = (self.page, block.at);
            assert!(
                fit,
                "{page}:{at}: {command}\nprints\n{said}\nand not\n{}",
                expect.join("\n")
            );
            commands += 1;
        }
        commands
    }

    /// Runs a line in the folder of the page's files; it must succeed.
    fn sh(&self, line: &str, block: &Block) -> Output {
        let line = self.as_real(line);
        let buf = buf().canonicalize().expect("buf");
        let buf = buf.parent().expect("a folder").display();
        let own = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent();
        let own = own.expect("a folder").display();
        let path = std::env::var("PATH").expect("a path");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &line])
            .current_dir(self.scratch.folder())
            .env("PATH", format!("{own}:{buf}:{path}"));
        if let Some(service) = self
            .service
            .as_ref()
            .filter(|_| line.starts_with("tollgate admin"))
        {
            shell.env(
                "TOLLGATE_ADMIN",
                service.ready["admin"].as_str().expect("an address"),
            );
        }
        let ran = shell.output().expect("sh runs");
        let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
        let (page, at) = (self.page, block.at);
        assert!(
            ran.status.success(),
            "{page}:{at}: {line}: {}: {errors}",
            ran.status
        );
        ran
    }

    /// A line with the addresses of the running service.
    fn as_real(&self, line: &str) -> String {
        let Some(service) = &self.service else {
            return line.to_owned();
        };
        SHOWN.iter().fold(line.to_owned(), |line, (name, shown)| {
            let real = service.ready[name].as_str().expect("an address");
            let port = |address: &str| address.rsplit(':').next().expect("a port").to_owned();
            let line = line.replace(shown, real);
            line.replace(
                &format!("-p {}", port(shown)),
                &format!("-p {}", port(real)),
            )
        })
    }

    /// The other way around.
    fn as_shown(&self, text: &str) -> String {
        let Some(service) = &self.service else {
            return text.to_owned();
        };
        SHOWN.iter().fold(text.to_owned(), |text, (name, shown)| {
            text.replace(service.ready[name].as_str().expect("an address"), shown)
        })
    }
}

/// Whether a line is as shown, where `…` is any text.
fn fits(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        is_open = true;
        match rest.find(part) {
            Some(place) if !part.is_empty() => rest = &rest[place + part.len()..],
            Some(_) => {}
            None => return false,
        }
    }
    rest.is_empty() || (is_open && shown.ends_with('…'))
}

#[test]
fn what_is_shown_may_leave_things_out() {
    for (shown, line, fit) in [
        ("abc", "abc", true),
        ("abc", "abcd", false),
        ("a…c", "abbc", true),
        ("a…", "abbc", true),
        ("a…c", "abbd", false),
        ("a…c", "abcd", false),
        ("…", "", true),
    ] {
        assert_eq!(fits(shown, line), fit, "{shown} {line}");
    }
}

/// The pages that show what commands print, and how many commands each has at least.
static PAGES: [(&str, usize); 14] = [
    ("docs/start/service.md", 8),
    ("docs/start/redis.md", 3),
    ("docs/guides/choose-limits.md", 3),
    ("docs/guides/holds-and-reservations.md", 5),
    ("docs/guides/llm-tokens.md", 3),
    ("docs/guides/observability.md", 1),
    ("docs/guides/migrate/python.md", 2),
    ("docs/guides/migrate/redis-cell.md", 15),
    ("docs/reference/cli.md", 6),
    ("docs/reference/http.md", 20),
    ("docs/reference/resp.md", 20),
    ("docs/reference/grpc.md", 3),
    ("docs/reference/admin.md", 15),
    ("docs/reference/service.md", 1),
];

fn is_true(page: &str) {
    let known = PAGES.iter().find(|(known, _)| *known == page);
    let &(page, least) = known.expect("a page that is listed");
    let commands = Reading::run(page);
    assert!(commands >= least, "{page}: {commands} commands");
}

#[test]
fn the_first_pages_are_true() {
    is_true("docs/start/service.md");
    is_true("docs/start/redis.md");
}

#[test]
fn the_guides_are_true() {
    let guides = PAGES
        .iter()
        .filter(|(page, _)| page.starts_with("docs/guides/"));
    guides.for_each(|(page, _)| is_true(page));
}

#[test]
fn the_reference_of_commands_and_protocols_is_true() {
    for name in ["cli", "http", "resp", "grpc", "service"] {
        is_true(&format!("docs/reference/{name}.md"));
    }
}

#[test]
fn the_reference_of_operators_is_true() {
    is_true("docs/reference/admin.md");
}

/// All pages of the book, from the root.
fn book() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut folders, mut pages) = (vec![root.join("docs")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                let page = path.strip_prefix(&root).expect("below the root");
                pages.push(page.display().to_string());
            }
        }
    }
    pages
}

#[test]
fn every_page_that_shows_what_commands_print_is_run() {
    for page in book() {
        let shows = blocks(&page).iter().any(|block| block.info == "console");
        let is_run = PAGES.iter().any(|(known, _)| *known == page);
        assert!(is_run || !shows, "{page} isn't listed in PAGES");
    }
}

/// The rows of flags in a section of the page, by the command that it is about.
fn flags_of(page: &str, command: &str) -> Vec<String> {
    let title = format!("## `tollgate {command}`\n");
    let (_, section) = page.split_once(&title).unwrap_or_else(|| panic!("{title}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `--"));
    rows.map(str::to_owned).collect()
}

/// The flags of a command and of those below it, each once.
fn flags_in(command: &clap::Command, found: &mut BTreeMap<String, clap::Arg>) {
    for argument in command.get_arguments() {
        if let Some(name) = argument.get_long() {
            found.insert(name.to_owned(), argument.clone());
        }
    }
    for below in command
        .get_subcommands()
        .filter(|it| it.get_name() != "help")
    {
        flags_in(below, found);
    }
}

/// Whether a row documents this flag correctly.
fn check_row(row: &str, argument: &clap::Arg) {
    if let Some(variable) = argument.get_env() {
        let shown = format!("`{}`", variable.to_string_lossy());
        assert!(row.contains(&shown), "{shown}: {row}");
    }
    if argument.get_action().takes_values() {
        for value in argument.get_default_values() {
            let shown = format!("| `{}` |", value.to_string_lossy());
            assert!(row.contains(&shown), "{shown}: {row}");
        }
    }
}

#[test]
fn every_flag_is_on_the_page_with_its_variable_and_default() {
    let page = text("docs/reference/cli.md");
    let mut command = tollgate_cli::Cli::command();
    command.build();
    for below in command
        .get_subcommands()
        .filter(|it| it.get_name() != "help")
    {
        let name = below.get_name();
        let rows = flags_of(&page, name);
        let mut flags = BTreeMap::new();
        flags_in(below, &mut flags);
        for common in ["help", "color", "version"] {
            flags.remove(common);
        }
        for (flag, argument) in &flags {
            let start = format!("| `--{flag}");
            let row = rows.iter().find(|row| {
                let rest = row.strip_prefix(&start);
                rest.is_some_and(|rest| rest.starts_with(['`', ' ']))
            });
            let row = row.unwrap_or_else(|| panic!("{name} --{flag} isn't on the page"));
            check_row(row, argument);
        }
        assert_eq!(rows.len(), flags.len(), "{name}: flags that there aren't");
    }
}

#[test]
fn every_command_of_operators_is_on_their_page() {
    let page = text("docs/reference/admin.md");
    let (_, routes) = page.split_once("\n## Routes\n").expect("a table of routes");
    let mut command = tollgate_cli::Cli::command();
    command.build();
    let admin = command.find_subcommand("admin").expect("the command");
    let names = admin.get_subcommands().map(clap::Command::get_name);
    for name in names.filter(|name| *name != "help") {
        assert!(routes.contains(&format!("| `{name}")), "{name}");
    }
}

#[test]
fn every_command_of_redis_clients_is_on_their_page() {
    let service = Service::start(&ANY);
    let address = service.ready["resp"].as_str().expect("an address");
    let port = address.rsplit(':').next().expect("a port");
    let listed = Command::new("redis-cli")
        .args(["-p", port, "COMMAND", "LIST"])
        .output()
        .expect("redis-cli runs");
    let listed = String::from_utf8(listed.stdout)
        .expect("text")
        .to_uppercase();
    assert!(listed.lines().count() > 20, "{listed}");
    let page = text("docs/reference/resp.md");
    for name in listed.lines() {
        assert!(page.contains(&format!("`{name}")), "{name}");
    }
}

#[test]
fn the_front_page_shows_what_the_first_command_prints() {
    let (page, service) = (blocks("README.md"), Service::start(&ANY));
    let start = blocks("docs/start/service.md");
    let said = service.said("ShouldRateLimit\n");
    let reading = Reading {
        page: "README.md",
        scratch: TempFolder::new("front-page"),
        store: None,
        service: Some(service),
    };
    let shown = start.iter().find(|block| block.info == "text");
    let shown = shown.expect("what it prints").lines.join("\n");
    assert_eq!(reading.as_real(&shown) + "\n", said);
    let policy = page.iter().find(|block| block.info == "yaml");
    let policy = policy.expect("a policy").lines.join("\n");
    fs::write(reading.scratch.path("policy.yaml"), policy).expect("a file");
    reading.sh("tollgate check --strict policy.yaml", &page[0]);
}

#[test]
fn the_first_commands_of_the_front_page_work() {
    let first = blocks("README.md")
        .into_iter()
        .find(|block| block.info == "sh");
    let lines = first.expect("commands").lines;
    let commands: Vec<_> = lines
        .iter()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .collect();
    assert_eq!(commands, ["cargo run --release -- serve", "./test"]);
    // Of all that is built by default, one thing can be run.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let asked = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(&root)
        .output();
    let told: serde_json::Value =
        serde_json::from_slice(&asked.expect("cargo runs").stdout).expect("JSON");
    let members = told["workspace_default_members"]
        .as_array()
        .expect("a list");
    let packages = told["packages"].as_array().expect("a list").iter();
    let built = packages.filter(|package| members.contains(&package["id"]));
    let targets = built.flat_map(|package| package["targets"].as_array().expect("a list"));
    let programs = targets.filter(|target| target["kind"][0] == "bin");
    let names: Vec<_> = programs.map(|target| target["name"].as_str()).collect();
    assert_eq!(names, [Some("tollgate")]);
    assert!(root.join("test").is_file());
}
