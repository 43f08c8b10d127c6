//! `tollgate admin`: queries and changes a running service through its admin listener.

use std::fmt::Write as _;
use std::io::Write;
use std::str::FromStr;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tollgate_engine::overrides::{
    FactPattern, KeyTextError, MAX_OVERRIDE_DURATION, Target, TargetKey,
};
use tollgate_server::Level;

use crate::outcome::CliError;
use crate::output::map_write_error;
use crate::policy::{DescriptorArg, facts_object, parse_duration};

mod connect;
mod render;

use crate::service_client::HttpRequest;
pub use crate::service_client::ServiceAddress;
pub use connect::ConnectOptions;

/// Options of `tollgate admin`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Name the limits by --rule, by facts as requests have them (user=ada), or by both, and the limits of a
descriptor tree by --domain and --descriptor. A key as top, overrides and logs show it works too, in single
quotes if it has a space: 'user=\"a b\" plan=free'. Blocks, bypasses and overrides may be for a network
(ip=198.51.100.0/24) or a glob (path=/api/**). They expire after --for, by default 10 minutes. The service
logs each change.

Exit code 0: success; 1: the service rejected the command, or is unreachable; 2: wrong usage.

Examples:
  tollgate admin rules
  tollgate admin key user=ada
  tollgate admin reset --rule per-user user=ada
  tollgate admin block ip=203.0.113.7 --for 1h --why 'ticket 12'
  tollgate admin override --rule per-user user=ada --rate '100/s burst 200' --for 2h
  tollgate admin reload --dry-run")]
pub struct Admin {
    /// How to reach the service.
    #[command(flatten)]
    pub connect: ConnectOptions,
    /// Print the service's response: one JSON object.
    #[arg(long, global = true)]
    pub json: bool,
    /// The query or the change.
    #[command(subcommand)]
    pub command: AdminCommand,
}

/// The queries and changes of an admin listener.
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum AdminCommand {
    /// Show all rules, with the number of decisions of each since the service started.
    Rules,
    /// Show the keys that are denied most.
    Top,
    /// Show what a key has remaining of its limits, and its overrides.
    Key(KeySelector),
    /// Deny all requests of a key, or of a rule, for a while.
    Block(OverrideOptions),
    /// End a block before it expires.
    Unblock(KeySelector),
    /// Forget what a key has spent of its rates, and with --quotas of its quotas.
    Reset {
        /// The limits to reset.
        #[command(flatten)]
        whose: KeySelector,
        /// Also forget what was used of quotas (daily, monthly), not only of rates.
        #[arg(long)]
        quotas: bool,
    },
    /// Replace the limit of a key, or of a whole rule, for a while.
    Override(LimitOverrideOptions),
    /// Exempt requests from a rule, or from all rules, for a while: they are neither counted nor denied.
    Bypass(BypassOptions),
    /// Show all blocks, limit overrides and bypasses, or end one.
    Overrides {
        /// End the override with this number.
        #[arg(long, value_name = "ID")]
        end: Option<u64>,
    },
    /// Read the policy's file again and put it in force.
    Reload {
        /// Only show what the reload would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the limits in force.
    Limiters,
    /// Show the log level, or change it.
    Log {
        /// The least severe level that is logged: error, warning, info or debug.
        level: Option<Level>,
    },
}

/// The limits and keys that a command is about.
#[derive(Args, Clone, Debug)]
pub struct KeySelector {
    /// Facts that make the key, as requests have them: user=ada; or the key as top shows it.
    #[arg(value_name = "FACT=VALUE")]
    pub facts: Vec<KeyArgument>,
    /// The name of a rule, a tier, or a limit of a descriptor tree.
    #[arg(long, value_name = "NAME")]
    pub rule: Option<String>,
    /// The domain of --descriptor.
    #[arg(long, value_name = "NAME", requires = "descriptor")]
    pub domain: Option<String>,
    /// A counter of a descriptor tree: key=value,key2=value2.
    #[arg(long, value_name = "ENTRIES", requires = "domain", conflicts_with_all = ["facts", "rule"])]
    pub descriptor: Option<DescriptorArg>,
}

/// The target of an override, and its duration.
#[derive(Args, Clone, Debug)]
pub struct OverrideOptions {
    /// The target of the override.
    #[command(flatten)]
    pub whose: KeySelector,
    /// How long the override lasts, up to 30d.
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = parse_duration_seconds)]
    pub duration_seconds: u64,
    /// The reason, for operators who see the override later.
    #[arg(long = "why", value_name = "TEXT")]
    pub reason: Option<String>,
    /// Accept facts that the policy doesn't use. Requests may have them all the same.
    #[arg(long)]
    pub any_fact: bool,
}

/// An override of limits.
#[derive(Args, Clone, Debug)]
pub struct LimitOverrideOptions {
    /// The target, and the duration.
    #[command(flatten)]
    pub order: OverrideOptions,
    /// The rate: '100/s', '100/s burst 200'. For a rule with several rates, repeat it for each rate to replace.
    #[arg(long)]
    pub rate: Vec<String>,
    /// The quota: a number in the rule's own period, which stays.
    #[arg(long, value_name = "N", value_parser = parse_quota)]
    pub quota: Option<u64>,
    /// The concurrency limit.
    #[arg(long, value_name = "N")]
    pub concurrency: Option<u32>,
}

/// An override that exempts requests.
#[derive(Args, Clone, Debug)]
pub struct BypassOptions {
    /// The target, and the duration.
    #[command(flatten)]
    pub order: OverrideOptions,
    /// Exempt all requests from all limits.
    #[arg(long, conflicts_with_all = ["rule", "facts", "descriptor"])]
    pub all: bool,
}

/// A duration in whole seconds, rounded up.
fn parse_duration_seconds(text: &str) -> Result<u64, String> {
    let lasts = parse_duration(text)?;
    if lasts.is_zero() || lasts > MAX_OVERRIDE_DURATION {
        return Err("it should be at least 1s, and at most 30d".to_owned());
    }
    Ok(lasts.as_secs() + u64::from(lasts.subsec_nanos() > 0))
}

/// A number alone, because the quota's period is the rule's.
fn parse_quota(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        "it should be a whole number, as 1000: an override leaves the period as it is".to_owned()
    })
}

type JsonObject = Map<String, Value>;

/// The fields of an object that aren't null.
fn without_nulls(fields: Value) -> JsonObject {
    let Value::Object(mut fields) = fields else {
        return JsonObject::new();
    };
    fields.retain(|_, value| !value.is_null());
    fields
}

impl KeySelector {
    fn body(&self) -> Result<JsonObject, CliError> {
        let entries = self.descriptor.iter().flat_map(DescriptorArg::pairs);
        let entries = entries.map(|(key, value)| json!({"key": key, "value": value}));
        let entries: Vec<_> = entries.collect();
        let descriptor = self.descriptor.is_some().then_some(entries);
        let mut body = without_nulls(json!({
            "rule": self.rule,
            "domain": self.domain,
            "descriptor": descriptor,
        }));
        add_key_facts(&mut body, &self.facts).map_err(CliError::usage)?;
        Ok(body)
    }

    /// The target of the command. An empty target is an error.
    fn require_target(&self) -> Result<JsonObject, CliError> {
        let why = "say whose limits are meant: --rule NAME, facts as user=ada, or both";
        let body = Some(self.body()?).filter(|body| !body.is_empty());
        body.ok_or_else(|| CliError::usage(why))
    }
}

impl OverrideOptions {
    /// Adds the fields of an override to those of its target.
    fn with_override_fields(&self, mut body: JsonObject) -> JsonObject {
        body.extend(without_nulls(json!({
            "for": format!("{}s", self.duration_seconds),
            "why": self.reason,
            "any_fact": self.any_fact.then_some(true),
        })));
        body
    }
}

impl LimitOverrideOptions {
    fn body(&self) -> Result<JsonObject, CliError> {
        let rate = match self.rate.as_slice() {
            [] => Value::Null,
            [rate] => json!(rate),
            rates => json!(rates),
        };
        let mut body = self
            .order
            .with_override_fields(self.order.whose.require_target()?);
        body.extend(without_nulls(
            json!({"rate": rate, "quota": self.quota, "concurrency": self.concurrency}),
        ));
        Ok(body)
    }
}

impl BypassOptions {
    fn body(&self) -> Result<JsonObject, CliError> {
        if self.all {
            return Ok(self
                .order
                .with_override_fields(without_nulls(json!({"all": true}))));
        }
        let body = self.order.whose.body()?;
        if body.is_empty() {
            let why = "say which rule doesn't count: --rule NAME, facts as user=ada, or --all";
            return Err(CliError::usage(why));
        }
        Ok(self.order.with_override_fields(body))
    }
}

impl AdminCommand {
    /// The request to the service.
    fn request(&self) -> Result<HttpRequest, CliError> {
        let request = |method, path: &str, body: String| {
            Ok(HttpRequest {
                method,
                path: path.to_owned(),
                token: None,
                body,
            })
        };
        let with =
            |method, path: &str, body| request(method, path, Value::Object(body).to_string());
        let post = |path: &str, body| with("POST", path, body);
        let get = |path: &str| request("GET", path, String::new());
        match self {
            Self::Rules => get("/admin/rules"),
            Self::Top => get("/admin/top"),
            Self::Limiters => get("/debug/limiters"),
            Self::Key(whose) => post("/admin/key", whose.require_target()?),
            Self::Unblock(whose) => post("/admin/unblock", whose.require_target()?),
            Self::Reset { whose, quotas } => {
                let mut body = whose.require_target()?;
                body.extend(without_nulls(json!({"quotas": quotas.then_some(true)})));
                post("/admin/reset", body)
            }
            Self::Block(order) => post(
                "/admin/block",
                order.with_override_fields(order.whose.require_target()?),
            ),
            Self::Override(asked) => post("/admin/override", asked.body()?),
            Self::Bypass(bypass) => post("/admin/bypass", bypass.body()?),
            Self::Overrides { end: None } => get("/admin/overrides"),
            Self::Overrides { end: Some(id) } => with(
                "DELETE",
                &format!("/admin/overrides/{id}"),
                JsonObject::new(),
            ),
            Self::Reload { dry_run: true } => get("/admin/reload"),
            Self::Reload { dry_run: false } => post("/admin/reload", JsonObject::new()),
            Self::Log { level: None } => get("/admin/log"),
            Self::Log { level: Some(level) } => {
                let body = without_nulls(json!({"level": level.to_string()}));
                with("PUT", "/admin/log", body)
            }
        }
    }
}

/// Sends a command to a service and writes the response to `out`. Warnings go to `notes`.
///
/// # Errors
/// The arguments are invalid, the service is unreachable, or it rejects the command.
pub fn admin(
    options: &Admin,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> Result<(), CliError> {
    let answer = options.connect.send(options.command.request()?, notes)?;
    if options.json {
        return map_write_error(writeln!(out, "{answer}"));
    }
    let answer: Value = serde_json::from_str(&answer).map_err(|error| {
        CliError::failed(format_args!("what was answered can't be read: {error}"))
    })?;
    map_write_error(out.write_all(render::render_response(&options.command, &answer).as_bytes()))
}

/// An argument that names a key: one fact (`user=ada`), or a whole key as lists and logs show it (`user="a b"
/// plan=free`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyArgument {
    text: String,
    /// Whether the argument is a whole key as a list shows it.
    is_list_text: bool,
}

impl FromStr for KeyArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let own = |is_shown| {
            let text = text.to_owned();
            Ok(Self {
                text,
                is_list_text: is_shown,
            })
        };
        let no_fact = || format!("{text:?} is no fact; write it as name=value");
        let (name, value) = text.split_once('=').ok_or_else(no_fact)?;
        if name.is_empty() {
            return Err(no_fact());
        }
        match Target::from_text(None, text) {
            Err(error @ KeyTextError::Cut) => Err(error.to_string()),
            // A shell removes the quotes of `user="a b"`. The value then has a space without quotes, which no list
            // shows.
            Ok(_) if value.contains(['"', ' ']) => own(true),
            _ => own(false),
        }
    }
}

/// Adds the key to the request: as facts, or as one text if an argument was copied from a list.
///
/// # Errors
/// A fact has two values, and one of them would be lost.
fn add_key_facts(body: &mut Map<String, Value>, args: &[KeyArgument]) -> Result<(), String> {
    if args.is_empty() {
        return Ok(());
    }
    if args.iter().any(|arg| arg.is_list_text) {
        let text = args.iter().map(shown_key).collect::<Vec<_>>().join(" ");
        body.insert("key".to_owned(), json!(text));
        return Ok(());
    }
    let facts = facts_object(args.iter().filter_map(|arg| arg.text.split_once('=')))?;
    body.insert("facts".to_owned(), facts.into());
    Ok(())
}

/// An argument in the form that lists show.
fn shown_key(arg: &KeyArgument) -> String {
    if arg.is_list_text {
        return arg.text.clone();
    }
    let pairs = arg.text.split_once('=');
    let target = Target::parse_facts(None, pairs);
    let mut text = String::new();
    // Writing to a string can't fail. A glob stays unquoted where it can: in quotes it would be a literal value.
    let _ = match target.target_key() {
        TargetKey::Patterns(facts) => facts.iter().try_for_each(|(name, pattern)| match pattern {
            FactPattern::Exact(value) => write!(text, "{name}={value:?}"),
            other => write!(text, "{name}={other}"),
        }),
        whose => write!(text, "{whose}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(args: &[&str]) -> Value {
        let args = args.iter().map(|arg| arg.parse::<KeyArgument>());
        let args: Vec<_> = args.collect::<Result<_, _>>().expect("arguments");
        let mut body = Map::new();
        add_key_facts(&mut body, &args).expect("one value each");
        body.into()
    }

    #[test]
    fn facts_are_sent_as_they_are_and_what_a_list_shows_as_text() {
        for (args, expect) in [
            (&["user=ada"][..], json!({"facts": {"user": "ada"}})),
            (
                &["ip=2001:db8::/64"],
                json!({"facts": {"ip": "2001:db8::/64"}}),
            ),
            (
                &["path=/api/**", "user=a"],
                json!({"facts": {"path": "/api/**", "user": "a"}}),
            ),
            // The shell has removed the quotes.
            (&["user=a b"], json!({"facts": {"user": "a b"}})),
            (
                &["user=\"a b\" plan=free"],
                json!({"key": "user=\"a b\" plan=free"}),
            ),
            (
                &["user=ada plan=free"],
                json!({"key": "user=ada plan=free"}),
            ),
            (
                &["user=\"a*\"", "plan=two words"],
                json!({"key": "user=\"a*\" plan=\"two words\""}),
            ),
            (
                &["user=\"a\"", "path=/x/*"],
                json!({"key": "user=\"a\" path=/x/*"}),
            ),
        ] {
            assert_eq!(sent(args), expect, "{args:?}");
        }
    }

    #[test]
    fn what_is_no_key_is_said() {
        let wrong = |arg: &str| arg.parse::<KeyArgument>().expect_err("no key");
        assert_eq!(wrong("ada"), "\"ada\" is no fact; write it as name=value");
        assert_eq!(wrong("=ada"), "\"=ada\" is no fact; write it as name=value");
        assert!(wrong("user=aaaa…").starts_with("the key ends with …"));
    }
}
