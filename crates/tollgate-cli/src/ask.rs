//! `tollgate ask`: sends one request to a running service and prints the decision as text.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use crate::outcome::{CliError, CommandOutcome};
use crate::output::map_write_error;
use crate::policy::{FactArg, facts_object};
use crate::service_client::{
    HttpRequest, HttpResponse, ServiceAddress, connect, invalid_response, read_secret_line,
};

mod grpc;
mod resp;

/// Options of `tollgate ask`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The request is decided and charged as any other; with --peek it is not charged. A fact is name=value,
in quotes where the shell needs them ('path=/a b').

Over gRPC the facts are the entries of one descriptor, in their order, in the domain of --domain.

Exit code 0: the request is allowed; 3: it is denied; 1: the service is unreachable, or couldn't decide;
2: wrong usage.

Examples:
  tollgate ask user=ada
  tollgate ask user=ada path=/export --cost 5 --via resp
  tollgate ask user=ada --via grpc --domain example
  for i in $(seq 11); do tollgate ask user=ada; done")]
pub struct AskOptions {
    /// A fact of the request, as name=value.
    #[arg(value_name = "FACT=VALUE", required = true)]
    pub facts: Vec<FactArg>,
    /// What the request costs.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub cost: u64,
    /// The protocol of the request.
    #[arg(long = "via", value_enum, value_name = "PROTOCOL", default_value_t)]
    pub protocol: Protocol,
    /// The listener: an address, a port, or unix:PATH. The default is where tollgate serve listens.
    #[arg(long, value_name = "ADDR")]
    pub to: Option<ServiceAddress>,
    /// Decide without charging anything; not available over gRPC.
    #[arg(long)]
    pub peek: bool,
    /// The domain of a request over gRPC.
    #[arg(long, value_name = "NAME", default_value = "example")]
    pub domain: String,
    /// A file whose first line is the token for HTTP, or the password for RESP.
    #[arg(long, env = "TOLLGATE_ASK_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A protocol of the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, derive_more::Display)]
pub enum Protocol {
    /// HTTP and JSON.
    #[default]
    #[display("HTTP")]
    Http,
    /// The Redis protocol.
    #[display("RESP")]
    Resp,
    /// gRPC, as Envoy uses it.
    #[display("gRPC")]
    Grpc,
}

impl Protocol {
    /// The default port of the protocol's listener.
    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 8080,
            Self::Resp => 6380,
            Self::Grpc => 8081,
        }
    }
}

/// The fields of a response: names and values as the service sent them.
type ServiceAnswer = Map<String, Value>;

impl AskOptions {
    fn service_address(&self) -> ServiceAddress {
        self.to.clone().unwrap_or_else(|| ServiceAddress::Tcp {
            host: "127.0.0.1".to_owned(),
            port: self.protocol.default_port(),
            is_https: false,
        })
    }

    /// The token or the password, if a file is given.
    fn read_secret(&self) -> Result<Option<String>, CliError> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let shown = file.display();
        let line = read_secret_line(file);
        let line = line.map_err(|error| CliError::usage(format_args!("{shown}: {error}")))?;
        let line = line.ok_or_else(|| CliError::usage(format_args!("{shown} is empty")))?;
        Ok(Some(line))
    }

    fn query_service(&self) -> Result<ServiceAnswer, CliError> {
        let place = self.service_address();
        if let ServiceAddress::Tcp { is_https: true, .. } = place {
            let why = "ask speaks no TLS: ask a listener without, or by curl";
            return Err(CliError::usage(why));
        }
        let secret = self.read_secret()?;
        let answer = match self.protocol {
            Protocol::Http => {
                let facts = facts_object(self.facts.iter().map(FactArg::pair));
                let body = json!({"facts": facts.map_err(CliError::usage)?, "cost": self.cost});
                self.query_http(&place, body.to_string(), secret)
            }
            Protocol::Resp => resp::query_resp(self, &place, secret.as_deref()),
            Protocol::Grpc if self.peek => {
                let why = "gRPC has no call that only looks: --peek is for HTTP and RESP";
                return Err(CliError::usage(why));
            }
            Protocol::Grpc => grpc::query_grpc(self, &place),
        };
        answer.map_err(|error| match error.kind() {
            io::ErrorKind::Other => CliError::failed(error),
            _ => CliError::failed(format_args!(
                "no answer by {} from {place}: {error}; is tollgate serve running there?",
                self.protocol,
            )),
        })
    }

    fn query_http(
        &self,
        place: &ServiceAddress,
        body: String,
        token: Option<String>,
    ) -> io::Result<ServiceAnswer> {
        let request = HttpRequest {
            method: "POST",
            path: if self.peek { "/v1/peek" } else { "/v1/check" }.to_owned(),
            token,
            body,
        };
        parse_decision(request.send(place, connect(place)?)?)
    }
}

/// The decision in an HTTP response, whatever its status.
fn parse_decision(HttpResponse { status, body }: HttpResponse) -> io::Result<ServiceAnswer> {
    let body: Value = serde_json::from_str(&body)
        .map_err(|error| invalid_response(&format!("its answer can't be read: {error}")))?;
    match body {
        Value::Object(told) if told.contains_key("allowed") => Ok(told),
        body => {
            let detail = body["detail"].as_str();
            let why = detail.map_or_else(|| format!("status {status}"), str::to_owned);
            Err(service_error(&why))
        }
    }
}

/// Sends one request to a service, and writes the decision.
///
/// # Errors
/// The arguments are invalid, the service is unreachable, or it couldn't decide.
pub fn ask(options: &AskOptions, out: &mut impl Write) -> Result<CommandOutcome, CliError> {
    let told = options.query_service()?;
    let ended = match told.get("allowed") {
        Some(Value::Bool(true)) => CommandOutcome::Success,
        Some(Value::Bool(false)) => CommandOutcome::Denied,
        _ => {
            let why = "what was answered doesn't say whether it is allowed";
            return Err(CliError::failed(why));
        }
    };
    map_write_error(if options.json {
        writeln!(out, "{}", Value::Object(told))
    } else {
        out.write_all(render_decision(ended, &told).as_bytes())
    })?;
    Ok(ended)
}

/// One line for the decision, and one for each field of the response.
fn render_decision(ended: CommandOutcome, told: &ServiceAnswer) -> String {
    let mut text = match ended {
        CommandOutcome::Denied => "denied".to_owned(),
        _ => "allowed".to_owned(),
    };
    let known = |name: &str| told.get(name).filter(|value| !value.is_null());
    match known("rule").and_then(Value::as_str) {
        Some(rule) => text.push_str(&format!(" by {rule}")),
        None if ended == CommandOutcome::Success => {
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
        // An allowed request has no `retry_after` to report.
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

/// An error that the service reported.
fn service_error(why: &str) -> io::Error {
    io::Error::other(format!("the service couldn't decide: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_read_whatever_its_status_and_all_else_is_a_failure() {
        let read = |status, body: &str| {
            let body = body.to_owned();
            parse_decision(HttpResponse { status, body })
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
