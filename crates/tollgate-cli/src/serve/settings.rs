//! Where the settings of `tollgate serve` come from: flags, then the environment, then a file, then defaults.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use tollgate_engine::document::{self, Format, Value};

use crate::Cli;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag.
    Flag,
    /// The environment.
    Environment,
    /// The file that `--config` names.
    File,
    /// Nobody said anything.
    Default,
}

impl Origin {
    const fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        }
    }
}

/// One setting, as `--print-config` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As its flag is called.
    pub name: String,
    /// What it is in the end.
    pub value: String,
    /// Who said so.
    pub origin: Origin,
}

impl Setting {
    /// A line for people.
    pub(crate) fn line(&self) -> String {
        format!("{} = {}  # {}\n", self.name, self.value, self.origin.name())
    }
}

impl Cli {
    /// Reads a command line. What `tollgate serve` has a file for is read from that where neither a flag nor the
    /// environment says it.
    ///
    /// # Errors
    /// What is wrong with the arguments, or with what the file says.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut args: Vec<OsString> = args.into_iter().collect();
        let matches = Self::command().try_get_matches_from(&args)?;
        let Some(serve) = matches.subcommand_matches("serve") else {
            return Self::from_arg_matches(&matches);
        };
        let mut from_file = Vec::new();
        if let Some(path) = serve.get_one::<std::path::PathBuf>("config") {
            for (name, value) in file(path).map_err(wrong)? {
                let id = name.replace('-', "_");
                // A name that there isn't is told by the command line, which knows what is alike.
                let is_known = serve.try_contains_id(&id).is_ok();
                let is_said = is_known
                    && !matches!(
                        serve.value_source(&id),
                        None | Some(ValueSource::DefaultValue)
                    );
                if !is_said {
                    args.extend(value.argument(&name).map(OsString::from));
                    from_file.push(id);
                }
            }
        }
        let matches = Self::command().try_get_matches_from(&args)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let (crate::Command::Serve(options), Some(serve)) =
            (&mut cli.command, matches.subcommand_matches("serve"))
        {
            options.origins = settings(serve, &from_file);
        }
        Ok(cli)
    }
}

fn wrong(why: String) -> clap::Error {
    Cli::command().error(clap::error::ErrorKind::InvalidValue, why)
}

/// All settings that have a value, by their names.
fn settings(matches: &ArgMatches, from_file: &[String]) -> Vec<Setting> {
    let command = Cli::command();
    let serve = command
        .find_subcommand("serve")
        .cloned()
        .unwrap_or_default();
    let arguments = serve.get_arguments().filter(|one| one.get_long().is_some());
    arguments
        .filter_map(|argument| {
            let id = argument.get_id().as_str();
            let values: Vec<_> = matches
                .get_raw(id)?
                .map(|value| value.to_string_lossy())
                .collect();
            let origin = match matches.value_source(id)? {
                _ if from_file.iter().any(|own| own == id) => Origin::File,
                ValueSource::EnvVariable => Origin::Environment,
                ValueSource::CommandLine => Origin::Flag,
                _ => Origin::Default,
            };
            Some(Setting {
                name: argument.get_long()?.to_owned(),
                value: values.join(","),
                origin,
            })
        })
        .collect()
}

/// A value of a file.
enum Said {
    /// A flag that has none.
    Switch(bool),
    Text(String),
}

impl Said {
    /// As it is said on a command line.
    fn argument(&self, name: &str) -> Option<String> {
        match self {
            Self::Switch(is_on) => is_on.then(|| format!("--{name}")),
            Self::Text(text) => Some(format!("--{name}={text}")),
        }
    }

    fn of(value: &Value) -> Option<Self> {
        let text = match value {
            Value::Bool(is_on) => return Some(Self::Switch(*is_on)),
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            Value::List(items) => {
                let texts: Option<Vec<_>> = items
                    .iter()
                    .map(|item| Self::of(&item.value)?.text())
                    .collect();
                texts?.join(",")
            }
            Value::Null | Value::Float(_) | Value::Map(_) => return None,
        };
        Some(Self::Text(text))
    }

    fn text(self) -> Option<String> {
        match self {
            Self::Switch(_) => None,
            Self::Text(text) => Some(text),
        }
    }
}

/// The settings of a file: names as of the flags, and values.
fn file(path: &Path) -> Result<Vec<(String, Said)>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    let format = match path.extension().and_then(|ending| ending.to_str()) {
        Some("toml") => Format::Toml,
        _ => Format::Yaml,
    };
    let node = document::parse(&text, format, 0);
    let node = node.map_err(|errors| {
        let first = errors.first().map(|error| error.message.clone());
        format!("{shown}: {}", first.unwrap_or_default())
    })?;
    let Value::Map(entries) = node.value else {
        return Err(format!(
            "{shown}: it holds names and values, as http: 127.0.0.1:8080"
        ));
    };
    let one = |(name, value): (document::Node, document::Node)| {
        let Value::Text(name) = name.value else {
            return Err(format!("{shown}: a name isn't text"));
        };
        let said = Said::of(&value.value);
        let said = said.ok_or_else(|| {
            format!(
                "{shown}: {name} is {}, and should be text, a whole number, or true",
                value.value.kind()
            )
        })?;
        Ok((name, said))
    };
    entries.into_iter().map(one).collect()
}
