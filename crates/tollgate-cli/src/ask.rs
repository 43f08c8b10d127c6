//! `tollgate ask`: what a running service answers to one request, as people read it.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::admin::Place;
use crate::policy::{Fact, one_value_each};

mod grpc;
mod http;
mod resp;
mod stream;

/// How long the service may take, to connect and for each part of its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The request, and how the service is asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The request is decided and charged as any other; --peek only looks. Facts are written as everywhere:
name=value, in quotes where the shell needs them ('path=/a b').

By gRPC the facts are the entries of one descriptor, in their order, of the domain --domain.

Exit code 0: it is allowed; 3: it is denied; 1: the service can't be reached, or couldn't decide;
2: wrong usage.

Examples:
  tollgate ask user=ada
  tollgate ask user=ada path=/export --cost 5 --via resp
  tollgate ask user=ada --via grpc --domain example
  for i in $(seq 11); do tollgate ask user=ada; done")]
pub struct Ask {
    /// What is known of the request, as name=value.
    #[arg(value_name = "FACT=VALUE", required = true)]
    pub facts: Vec<Fact>,
    /// What the request costs.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub cost: u64,
    /// The protocol that the service is asked by.
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t)]
    pub via: Via,
    /// Where the listener is: an address, a port, or unix:PATH. By default where `tollgate serve` listens.
    #[arg(long, value_name = "ADDR")]
    pub to: Option<Place>,
    /// Look without charging anything; not by gRPC.
    #[arg(long)]
    pub peek: bool,
    /// The domain of a request by gRPC.
    #[arg(long, value_name = "NAME", default_value = "example")]
    pub domain: String,
    /// A file whose first line is the token of HTTP, or the password of RESP.
    #[arg(long, env = "TOLLGATE_ASK_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A protocol of the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// HTTP and JSON.
    #[default]
    Http,
    /// The protocol of Redis.
    Resp,
    /// gRPC, as Envoy asks.
    Grpc,
}

impl Via {
    /// Where `tollgate serve` listens unless told otherwise.
    const fn port(self) -> u16 {
        match self {
            Self::Http => 8080,
            Self::Resp => 6380,
            Self::Grpc => 8081,
        }
    }
}

/// What the service decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The request may pass.
    Allowed,
    /// The request is denied.
    Denied,
}

/// Why there is no decision.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskFailure {
    /// The arguments are at fault.
    Usage(String),
    /// The service wasn't reached, or had no answer.
    NoAnswer(String),
}

/// What is known of a decision: names and values as the service told them.
type Told = Map<String, Value>;

impl Ask {
    fn place(&self) -> Place {
        self.to.clone().unwrap_or_else(|| Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port: self.via.port(),
            is_https: false,
        })
    }

    /// The first line of the file with the secret.
    fn secret(&self) -> Result<Option<String>, AskFailure> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(file)
            .map_err(|error| AskFailure::Usage(format!("{}: {error}", file.display())))?;
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        match line {
            Some(line) => Ok(Some(line.to_owned())),
            None => Err(AskFailure::Usage(format!("{} is empty", file.display()))),
        }
    }

    fn answer(&self) -> Result<Told, AskFailure> {
        let place = self.place();
        let unanswered = |error: &io::Error| {
            AskFailure::NoAnswer(format!(
                "no answer by {} from {}: {error}; is tollgate serve running there?",
                self.via,
                stream::shown(&place)
            ))
        };
        if let Place::Tcp { is_https: true, .. } = place {
            return Err(AskFailure::Usage(
                "ask speaks no TLS: ask a listener without, or by curl".to_owned(),
            ));
        }
        let secret = self.secret()?;
        let answer = match self.via {
            Via::Http => {
                let facts = one_value_each(self.facts.iter().map(Fact::pair));
                let facts = facts.map_err(AskFailure::Usage)?;
                http::ask(self, (&place, facts), secret.as_deref())
            }
            Via::Resp => resp::ask(self, &place, secret.as_deref()),
            Via::Grpc if self.peek => {
                return Err(AskFailure::Usage(
                    "gRPC has no call that only looks: --peek is for HTTP and RESP".to_owned(),
                ));
            }
            Via::Grpc => grpc::ask(self, &place),
        };
        answer.map_err(|error| match error.kind() {
            io::ErrorKind::Other => AskFailure::NoAnswer(error.to_string()),
            _ => unanswered(&error),
        })
    }
}

/// Asks a service, and writes what it decided.
///
/// # Errors
/// Arguments that make no sense, a service that can't be reached, or one that couldn't decide.
pub fn ask(options: &Ask, out: &mut impl Write) -> Result<(Asked, io::Result<()>), AskFailure> {
    let told = options.answer()?;
    let asked = match told.get("allowed") {
        Some(Value::Bool(true)) => Asked::Allowed,
        Some(Value::Bool(false)) => Asked::Denied,
        _ => {
            return Err(AskFailure::NoAnswer(
                "what was answered doesn't say whether it is allowed".to_owned(),
            ));
        }
    };
    let written = if options.json {
        writeln!(out, "{}", Value::Object(told))
    } else {
        out.write_all(shown(asked, &told).as_bytes())
    };
    Ok((asked, written))
}

/// One line for the decision, and one for each thing that is known of it.
fn shown(asked: Asked, told: &Told) -> String {
    let mut text = match asked {
        Asked::Allowed => "allowed".to_owned(),
        Asked::Denied => "denied".to_owned(),
    };
    let known = |name: &str| told.get(name).filter(|value| !value.is_null());
    match known("rule").and_then(Value::as_str) {
        Some(rule) => text.push_str(&format!(" by {rule}")),
        None if asked == Asked::Allowed => {
            text.push_str(": no limit is for these facts, or they are exempt or bypassed")
        }
        None => {}
    }
    text.push('\n');
    for (name, value) in told {
        if matches!(name.as_str(), "allowed" | "rule") || value.is_null() {
            continue;
        }
        let is_time = name.ends_with("_after");
        let is_now = value.as_f64() == Some(0.0);
        // Nobody waits for what is allowed.
        if name == "retry_after" && is_now {
            continue;
        }
        let unit = if is_time { " s" } else { "" };
        match value {
            Value::Array(each) => {
                text.push_str(&format!("  {name}\n"));
                for one in each {
                    text.push_str(&format!("    {one}\n"));
                }
            }
            Value::String(value) => text.push_str(&format!("  {name} {value}{unit}\n")),
            value => text.push_str(&format!("  {name} {value}{unit}\n")),
        }
    }
    text
}

/// A failure that the service told of.
fn told_by_service(why: &str) -> io::Error {
    io::Error::other(format!("the service couldn't decide: {why}"))
}

impl AskFailure {
    /// Whether the arguments are at fault.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_))
    }
}

impl fmt::Display for AskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::NoAnswer(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "HTTP",
            Self::Resp => "RESP",
            Self::Grpc => "gRPC",
        })
    }
}
