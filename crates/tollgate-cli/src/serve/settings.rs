//! The settings of `tollgate serve`. Precedence: flag, environment, `--config` file, default. An error in a setting
//! is one line, with the origin of the value.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};
use tollgate_engine::document::{self, Format, Value};
use tollgate_redis::Address;

use super::ServeOptions;

/// Options that only the command line may set, because they are about the settings themselves.
const COMMAND_LINE_ONLY: [&str; 6] = [
    "config",
    "check",
    "print-config",
    "print-policy",
    "help",
    "color",
];

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag.
    Flag,
    /// An environment variable.
    Environment,
    /// The `--config` file, as its name and line.
    File(String),
    /// The default.
    Default,
}

/// One setting, as `--print-config` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name of the setting, as its flag.
    pub name: String,
    /// The effective value. `None` if the setting isn't set.
    pub value: Option<String>,
    /// The origin of the value.
    pub origin: Origin,
}

impl Setting {
    /// A line that is readable both by people and as a settings file.
    pub(crate) fn line(&self) -> String {
        let name = &self.name;
        let Some(value) = &self.value else {
            return format!("# {name} is not set\n");
        };
        let from = match &self.origin {
            Origin::Flag => "flag".to_owned(),
            Origin::Environment => format!("environment {}", env_variable(name)),
            Origin::File(place) => format!("file {place}"),
            Origin::Default => "default".to_owned(),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@,:".contains(&byte);
        let value = match value.as_str() {
            text if text.bytes().all(is_plain) && !text.is_empty() && !text.ends_with(':') => {
                value.clone()
            }
            text => format!("{text:?}"),
        };
        format!("{name}: {value}  # {from}\n")
    }
}

/// Parses a command line of any command, and the origin of each setting. `serve` also reads the environment and a
/// settings file.
///
/// # Errors
/// The arguments are invalid, or they ask for help or the version, which clap treats as an error.
pub(crate) fn read_command_line(
    all: &Command,
    mut args: Vec<OsString>,
) -> Result<(ArgMatches, Vec<Setting>), clap::Error> {
    let read = |args: &[OsString]| {
        let matches = all.clone().try_get_matches_from(args);
        matches.map_err(|error| in_one_line(error, args))
    };
    let matches = read(&args)?;
    let Some(serve) = matches.subcommand_matches("serve") else {
        return Ok((matches, Vec::new()));
    };
    let mut from_file = Vec::new();
    if let Some(path) = serve.get_one::<std::path::PathBuf>("config") {
        for entry in read_file(path).map_err(usage_error)? {
            let argument = to_arguments(&entry).map_err(usage_error)?;
            let id = entry.name.replace('-', "_");
            let source = serve.value_source(&id);
            if matches!(source, None | Some(ValueSource::DefaultValue)) {
                args.extend(argument);
                from_file.push((id, entry.place));
            }
        }
    }
    let matches = read(&args)?;
    let serve = matches.subcommand_matches("serve");
    let origins = serve.map_or_else(Vec::new, |serve| collect_settings(serve, &from_file));
    Ok((matches, origins))
}

fn usage_error(why: String) -> clap::Error {
    clap::Error::raw(ErrorKind::InvalidValue, format!("{why}\n"))
}

/// The environment variable of a setting.
pub(super) fn env_variable(name: &str) -> String {
    format!("TOLLGATE_{}", name.to_uppercase().replace('-', "_"))
}

/// The command `serve`, for parsing settings by themselves.
pub(super) fn serve_cli() -> Command {
    let serve = ServeOptions::augment_args(Command::new("serve"));
    Command::new("tollgate").subcommand(serve)
}

fn built_serve_command() -> Command {
    let mut command = serve_cli();
    command.build();
    let serve = command.find_subcommand("serve").cloned();
    serve.unwrap_or_default()
}

/// An error in the arguments of `serve` without the usage below it. Help and version output stay as they are.
fn in_one_line(error: clap::Error, args: &[OsString]) -> clap::Error {
    if !error.use_stderr() || args.get(1).is_none_or(|name| name != "serve") {
        return error;
    }
    let mut what = error_summary(&error.render().to_string());
    if let Some((argument, name)) = error_argument(&error)
        && !args.iter().any(|arg| is_flag(arg, &name))
        && std::env::var_os(env_variable(&name)).is_some()
    {
        let place = format!("{} in the environment", env_variable(&name));
        what = what.replace(&format!("'{argument}'"), &place);
    }
    clap::Error::raw(error.kind(), format!("{what}; see tollgate serve --help\n"))
}

/// The summary of a clap error: its first lines and its tips. The tip to pass a flag as a value doesn't apply here.
fn error_summary(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let mut parts = text.split("\n\n");
    let joined = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = joined(parts.next().unwrap_or_default());
    let tips = parts.filter_map(|part| part.trim_start().strip_prefix("tip: "));
    let tips = tips.filter(|tip| !tip.starts_with("to pass "));
    tips.fold(first, |said, tip| format!("{said}; {}", joined(tip)))
}

/// The argument of an error, as the error shows it, and its name.
fn error_argument(error: &clap::Error) -> Option<(String, String)> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = shown.split([' ', '=']).next()?;
    let name = name.trim_start_matches("--").trim_matches(['[', ']']);
    Some((shown.clone(), name.to_lowercase()))
}

fn is_flag(arg: &OsStr, name: &str) -> bool {
    let text = arg.to_string_lossy();
    let flag = text.strip_prefix("--");
    flag.and_then(|flag| flag.strip_prefix(name))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// All settings by name.
fn collect_settings(matches: &ArgMatches, from_file: &[(String, String)]) -> Vec<Setting> {
    let serve = built_serve_command();
    let arguments = serve.get_arguments();
    let setting = |argument: &clap::Arg| {
        let id = argument.get_id().as_str();
        let name = id.replace('_', "-");
        if COMMAND_LINE_ONLY.contains(&name.as_str()) {
            return None;
        }
        let values = matches.try_get_raw(id).ok()?.into_iter().flatten();
        let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        let place = from_file.iter().find(|(own, _)| own == id);
        let origin = match (place, matches.value_source(id)) {
            (Some((_, place)), _) => Origin::File(place.clone()),
            (None, Some(ValueSource::EnvVariable)) => Origin::Environment,
            (None, Some(ValueSource::CommandLine)) => Origin::Flag,
            (None, _) => Origin::Default,
        };
        let mut value = (!values.is_empty()).then(|| values.join(","));
        if name == "backend" {
            value = value.map(|url| Address::without_login(&url));
        }
        Some(Setting {
            name,
            value,
            origin,
        })
    };
    arguments.filter_map(setting).collect()
}

/// A setting in a file.
struct FileSetting {
    name: String,
    value: Value,
    /// The value in the notation of the command line.
    text: String,
    place: String,
}

fn value_text(value: &Value) -> Option<String> {
    match value {
        Value::Bool(is_on) => Some(is_on.to_string()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Text(text) => Some(text.clone()),
        Value::List(items) => {
            let items = items.iter().map(|item| match item.value {
                Value::Bool(_) => None,
                ref value => value_text(value),
            });
            Some(items.collect::<Option<Vec<_>>>()?.join(","))
        }
        Value::Null | Value::Float(_) | Value::Map(_) => None,
    }
}

fn is_switch(name: &str) -> bool {
    let serve = built_serve_command();
    let mut arguments = serve.get_arguments();
    let found = arguments.find(|argument| argument.get_long() == Some(name));
    found.is_some_and(|argument| !argument.get_action().takes_values())
}

/// A setting of a file as command-line arguments, if it is valid by itself.
fn to_arguments(entry: &FileSetting) -> Result<Vec<OsString>, String> {
    let FileSetting {
        name, text, place, ..
    } = entry;
    let words: Vec<_> = match &entry.value {
        _ if COMMAND_LINE_ONLY.contains(&name.as_str()) => {
            return Err(format!(
                "{place}: {name} is for the command line, and no setting of a file"
            ));
        }
        Value::Bool(is_on) if is_switch(name) => {
            let flag = is_on.then(|| format!("--{name}"));
            flag.into_iter().collect()
        }
        _ if is_switch(name) => return Err(format!("{place}: {name} should be true or false")),
        Value::Bool(_) => vec![format!("--{name}={text}")],
        _ if name == "policy" => vec![text.clone()],
        _ => vec![format!("--{name}={text}")],
    };
    let alone = ["tollgate", "serve"].map(str::to_owned);
    let read = serve_cli().try_get_matches_from(alone.iter().chain(&words));
    if let Err(error) = read {
        let flag = format!("--{name}");
        return Err(match (error.kind(), error.get(ContextKind::SuggestedArg)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(other))) => {
                let other = other.trim_start_matches("--");
                format!("{place}: there is no setting {name:?}: did you mean {other}?")
            }
            (ErrorKind::UnknownArgument, _) => format!(
                "{place}: there is no setting {name:?}: tollgate serve --print-config shows all"
            ),
            _ => {
                let why = error_summary(&error.render().to_string());
                let why = why.replace(&format!("'{flag} "), &format!("'{name} "));
                format!("{place}: {why}")
            }
        });
    }
    Ok(words.into_iter().map(OsString::from).collect())
}

/// Reads the settings of a file. Their names are those of the flags.
fn read_file(path: &Path) -> Result<Vec<FileSetting>, String> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("--config {shown}: {error}"))?;
    let format = match path.extension().and_then(OsStr::to_str) {
        Some("toml") => Format::Toml,
        _ => Format::Yaml,
    };
    let node = document::parse(&text, format, 0);
    let node = node.map_err(|errors| match errors.first() {
        Some(first) => format!("{shown}:{}: {}", first.span.start.line, first.message),
        None => format!("{shown}: it can't be read"),
    })?;
    let entries = match node.value {
        Value::Map(entries) => entries,
        Value::Null => Vec::new(),
        _ => {
            let why = "it holds names and values, as http: 127.0.0.1:8080";
            return Err(format!("{shown}: {why}"));
        }
    };
    let one = |(name, value): (document::Node, document::Node)| {
        let place = format!("{shown}:{}", name.span.start.line);
        let Value::Text(name) = name.value else {
            return Err(format!("{place}: a name should be text, as http"));
        };
        let text = value_text(&value.value).ok_or_else(|| {
            let kind = value.value.kind();
            format!("{place}: {name} is {kind}, and should be text, a whole number, or true")
        })?;
        Ok(FileSetting {
            name,
            value: value.value,
            text,
            place,
        })
    };
    entries.into_iter().map(one).collect()
}
