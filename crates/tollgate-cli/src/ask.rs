//! `tollgate ask`: what a running service answers to one request, as people read it.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::outcome::{CliError, Ended};
use crate::output::written;
use crate::policy::{Fact, one_value_each};
use crate::service_client::{HttpResponse, Place, Request, connect, first_line, garbled};

mod grpc;
mod resp;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, derive_more::Display)]
pub enum Via {
    /// HTTP and JSON.
    #[default]
    #[display("HTTP")]
    Http,
    /// The protocol of Redis.
    #[display("RESP")]
    Resp,
    /// gRPC, as Envoy asks.
    #[display("gRPC")]
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

/// What is known of a decision: names and values as the service told them.
type ServiceAnswer = Map<String, Value>;

impl Ask {
    fn place(&self) -> Place {
        self.to.clone().unwrap_or_else(|| Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port: self.via.port(),
            is_https: false,
        })
    }

    /// The token or the password, if there is a file with one.
    fn secret(&self) -> Result<Option<String>, CliError> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let shown = file.display();
        let line = first_line(file);
        let line = line.map_err(|error| CliError::usage(format_args!("{shown}: {error}")))?;
        let line = line.ok_or_else(|| CliError::usage(format_args!("{shown} is empty")))?;
        Ok(Some(line))
    }

    fn answer(&self) -> Result<ServiceAnswer, CliError> {
        let place = self.place();
        if let Place::Tcp { is_https: true, .. } = place {
            let why = "ask speaks no TLS: ask a listener without, or by curl";
            return Err(CliError::usage(why));
        }
        let secret = self.secret()?;
        let answer = match self.via {
            Via::Http => {
                let facts = one_value_each(self.facts.iter().map(Fact::pair));
                let body = json!({"facts": facts.map_err(CliError::usage)?, "cost": self.cost});
                self.ask_http(&place, body.to_string(), secret)
            }
            Via::Resp => resp::ask(self, &place, secret.as_deref()),
            Via::Grpc if self.peek => {
                let why = "gRPC has no call that only looks: --peek is for HTTP and RESP";
                return Err(CliError::usage(why));
            }
            Via::Grpc => grpc::ask(self, &place),
        };
        answer.map_err(|error| match error.kind() {
            io::ErrorKind::Other => CliError::failed(error),
            _ => CliError::failed(format_args!(
                "no answer by {} from {place}: {error}; is tollgate serve running there?",
                self.via,
            )),
        })
    }

    fn ask_http(
        &self,
        place: &Place,
        body: String,
        token: Option<String>,
    ) -> io::Result<ServiceAnswer> {
        let request = Request {
            method: "POST",
            path: if self.peek { "/v1/peek" } else { "/v1/check" }.to_owned(),
            token,
            body,
        };
        decision(request.send(place, connect(place)?)?)
    }
}

/// The decision that was answered by HTTP, whatever its status.
fn decision(HttpResponse { status, body }: HttpResponse) -> io::Result<ServiceAnswer> {
    let body: Value = serde_json::from_str(&body)
        .map_err(|error| garbled(&format!("its answer can't be read: {error}")))?;
    match body {
        Value::Object(told) if told.contains_key("allowed") => Ok(told),
        body => {
            let detail = body["detail"].as_str();
            let why = detail.map_or_else(|| format!("status {status}"), str::to_owned);
            Err(told_by_service(&why))
        }
    }
}

/// Asks a service for one decision, and writes what it says.
///
/// # Errors
/// The arguments make no sense, the service can't be reached, or it couldn't decide.
pub fn ask(options: &Ask, out: &mut impl Write) -> Result<Ended, CliError> {
    let told = options.answer()?;
    let ended = match told.get("allowed") {
        Some(Value::Bool(true)) => Ended::Well,
        Some(Value::Bool(false)) => Ended::Denied,
        _ => {
            let why = "what was answered doesn't say whether it is allowed";
            return Err(CliError::failed(why));
        }
    };
    written(if options.json {
        writeln!(out, "{}", Value::Object(told))
    } else {
        out.write_all(shown(ended, &told).as_bytes())
    })?;
    Ok(ended)
}

/// One line for the decision, and one for each thing that is known of it.
fn shown(ended: Ended, told: &ServiceAnswer) -> String {
    let mut text = match ended {
        Ended::Denied => "denied".to_owned(),
        _ => "allowed".to_owned(),
    };
    let known = |name: &str| told.get(name).filter(|value| !value.is_null());
    match known("rule").and_then(Value::as_str) {
        Some(rule) => text.push_str(&format!(" by {rule}")),
        None if ended == Ended::Well => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_read_whatever_its_status_and_all_else_is_a_failure() {
        let read = |status, body: &str| {
            let body = body.to_owned();
            decision(HttpResponse { status, body })
        };
        let denied = read(429, "{\"allowed\":false,\"rule\":\"a\"}").unwrap();
        assert_eq!(denied["allowed"], false);
        let told = read(400, "{\"detail\":\"no facts\"}")
            .unwrap_err()
            .to_string();
        assert_eq!(told, "the service couldn't decide: no facts");
        let kind = read(200, "OK").unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::InvalidData);
    }
}
