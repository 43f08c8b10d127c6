//! `tollgate admin`: asks a service that runs, and changes what it does, by its admin listener.

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

/// How a service is reached, and what it is asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Whose limits are meant is said by --rule, by facts as requests have them (user=ada), or both; those of
Envoy's trees by --domain and --descriptor. What top, orders and logs show for a key is taken, too, in single
quotes if it has a space: 'user=\"a b\" plan=free'. Blocks, bypasses and overrides may be for a network
(ip=198.51.100.0/24) or a glob (path=/api/**). What is changed ends by itself after --for, 10 minutes
unless told otherwise, and each change is in the log of the service.

Exit code 0: it is done; 1: the service refused it, or can't be reached; 2: wrong usage.

Examples:
  tollgate admin rules
  tollgate admin key user=ada
  tollgate admin reset --rule per-user user=ada
  tollgate admin block ip=203.0.113.7 --for 1h --why 'ticket 12'
  tollgate admin override --rule per-user user=ada --rate '100/s burst 200' --for 2h
  tollgate admin reload --dry-run")]
pub struct Admin {
    /// How the service is reached.
    #[command(flatten)]
    pub connect: ConnectOptions,
    /// Print what the service answers: one JSON object.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to ask or change.
    #[command(subcommand)]
    pub command: AdminCommand,
}

/// What can be asked and changed.
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum AdminCommand {
    /// Show all rules, and what each has decided since the service started.
    Rules,
    /// Show the keys that are refused most.
    Top,
    /// Show what a key has left of its limits, and what is ordered of it.
    Key(KeySelector),
    /// Refuse all requests of a key, or of a rule, for a while.
    Block(OverrideOptions),
    /// End such a block before its time.
    Unblock(KeySelector),
    /// Forget what a key has spent of its rates, and with --quotas of its quotas.
    Reset {
        /// Whose limits are meant.
        #[command(flatten)]
        whose: KeySelector,
        /// Forget what was used of quotas (daily, monthly), too, not of rates only.
        #[arg(long)]
        quotas: bool,
    },
    /// Give a key, or all of a rule, another limit for a while.
    Override(LimitOverrideOptions),
    /// Let requests pass one rule, or all, for a while: they are neither counted nor refused.
    Bypass(BypassOptions),
    /// Show all blocks, overrides and bypasses; or end one.
    Overrides {
        /// End the one with this number.
        #[arg(long, value_name = "ID")]
        end: Option<u64>,
    },
    /// Read the policy's file again and put it in force.
    Reload {
        /// Only show what it would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the limits in force.
    Limiters,
    /// Show how much is logged, or change it.
    Log {
        /// From which level on: error, warning, info or debug.
        level: Option<Level>,
    },
}

/// Whose limits are meant.
#[derive(Args, Clone, Debug)]
pub struct KeySelector {
    /// Facts that make the key, as requests have them: user=ada; or the key as top shows it.
    #[arg(value_name = "FACT=VALUE")]
    pub facts: Vec<KeyArgument>,
    /// A rule, a tier, or a limit of a tree, by name.
    #[arg(long, value_name = "NAME")]
    pub rule: Option<String>,
    /// The domain of --descriptor.
    #[arg(long, value_name = "NAME", requires = "descriptor")]
    pub domain: Option<String>,
    /// A counter of Envoy's trees: key=value,key2=value2.
    #[arg(long, value_name = "ENTRIES", requires = "domain", conflicts_with_all = ["facts", "rule"])]
    pub descriptor: Option<DescriptorArg>,
}

/// Whose, and for how long.
#[derive(Args, Clone, Debug)]
pub struct OverrideOptions {
    /// Whose limits are meant.
    #[command(flatten)]
    pub whose: KeySelector,
    /// How long it lasts, up to 30d.
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = parse_duration_seconds)]
    pub duration_seconds: u64,
    /// Why, for those who see it later.
    #[arg(long = "why", value_name = "TEXT")]
    pub reason: Option<String>,
    /// Take facts that the policy doesn't name: requests have them all the same.
    #[arg(long)]
    pub any_fact: bool,
}

/// Another limit.
#[derive(Args, Clone, Debug)]
pub struct LimitOverrideOptions {
    /// Whose, and for how long.
    #[command(flatten)]
    pub order: OverrideOptions,
    /// The rate: '100/s', '100/s burst 200'. Of a rule with several rates, give it once for each that is to be another.
    #[arg(long)]
    pub rate: Vec<String>,
    /// The quota: how many in the rule's own period, which stays.
    #[arg(long, value_name = "N", value_parser = parse_quota)]
    pub quota: Option<u64>,
    /// How many at once.
    #[arg(long, value_name = "N")]
    pub concurrency: Option<u32>,
}

/// Which limits don't count.
#[derive(Args, Clone, Debug)]
pub struct BypassOptions {
    /// Whose, and for how long.
    #[command(flatten)]
    pub order: OverrideOptions,
    /// All limits, for everybody.
    #[arg(long, conflicts_with_all = ["rule", "facts", "descriptor"])]
    pub all: bool,
}

/// Whole seconds of a length of time, and one more for what is left over.
fn parse_duration_seconds(text: &str) -> Result<u64, String> {
    let lasts = parse_duration(text)?;
    if lasts.is_zero() || lasts > MAX_OVERRIDE_DURATION {
        return Err("it should be at least 1s, and at most 30d".to_owned());
    }
    Ok(lasts.as_secs() + u64::from(lasts.subsec_nanos() > 0))
}

/// A number alone: the period of a quota is the rule's.
fn parse_quota(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        "it should be a whole number, as 1000: an override leaves the period as it is".to_owned()
    })
}

type JsonObject = Map<String, Value>;

/// An object with those fields of another that have a value.
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

    /// The same, which must name someone.
    fn require_target(&self) -> Result<JsonObject, CliError> {
        let why = "say whose limits are meant: --rule NAME, facts as user=ada, or both";
        let body = Some(self.body()?).filter(|body| !body.is_empty());
        body.ok_or_else(|| CliError::usage(why))
    }
}

impl OverrideOptions {
    /// The fields of an order, beside those of whose it is.
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
    /// What is sent to the service.
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
            Self::Overrides { end: Some(id) } => {
                with("DELETE", &format!("/admin/overrides/{id}"), JsonObject::new())
            }
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

/// Asks a service, and writes what it says to `out`; what may not be meant goes to `notes`.
///
/// # Errors
/// Arguments that make no sense, a service that can't be reached, or one that says no.
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

/// One argument of a key: `user=ada`; or a key as lists and logs show it, in one argument: `user="a b" plan=free`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyArgument {
    text: String,
    /// It stands for itself, as a list has shown it.
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
            // A shell takes the quotes of user="a b" away, and leaves a value with a space, which is no text of a list.
            Ok(_) if value.contains(['"', ' ']) => own(true),
            _ => own(false),
        }
    }
}

/// What is sent of them: facts as they are; or, if one was taken from a list, the text of all.
///
/// # Errors
/// A fact has two values, of which one would be left out.
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

/// An argument as lists show it.
fn shown_key(arg: &KeyArgument) -> String {
    if arg.is_list_text {
        return arg.text.clone();
    }
    let pairs = arg.text.split_once('=');
    let target = Target::parse_facts(None, pairs);
    let mut text = String::new();
    // Writing to a text doesn't fail. A glob stays one: only where it has to stand in quotes it is a text of its own.
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
            // The shell has taken the quotes away.
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
