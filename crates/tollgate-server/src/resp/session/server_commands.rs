//! Commands of every Redis server: about the connection and the server.

use tollgate::clock::{Clock, Wall};

use super::{ClientInfo, CommandResult, RespSession, Role, commands};
use crate::address::Protocol;
use crate::decision_service::CounterStore;
use crate::resp::frame::Words;
use crate::resp::response::{ReplyWriter, Version};
use crate::service::Service;
use crate::throttle_keys::ThrottleKeys;

/// The version of Redis whose commands clients may expect, as far as they are implemented.
const REDIS: &str = "7.0.15";

/// A section of `INFO`: its name, and the function that writes its lines.
type Section<S> = (&'static str, fn(&S) -> String);

/// The only user name; the password decides the role.
pub(super) const DEFAULT_USER: &[u8] = b"default";

/// Redis' exact text, which clients may look for.
const NO_AUTH_IN_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";

const LACKS_VALUE: &str = "ERR syntax error in CLIENT";

impl<B: CounterStore> RespSession<B> {
    pub(super) fn answer_server_command(
        &mut self,
        name: &'static str,
        mut words: Words<'_>,
        out: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        match name {
            "ping" => match words.next() {
                Some(text) => out.bulk(text),
                None => out.simple("PONG"),
            },
            "echo" => out.bulk(words.next().unwrap_or_default()),
            "hello" => return self.hello(words, out),
            "auth" => return self.auth(words, out),
            "info" => out.text(&self.info(words)),
            "command" => return commands::describe(words, out),
            "client" => return self.client(words, out),
            "config" => return config(words, out),
            "select" if words.next() == Some(b"0") => out.simple("OK"),
            "select" => return Err("ERR DB index is out of range: there is only 0".to_owned()),
            "tg.rules" => self.rules(out),
            "time" => time(out),
            "multi" => {
                self.queue = Some(Box::default());
                out.simple("OK");
            }
            "exec" => return Err("ERR EXEC without MULTI".to_owned()),
            "discard" => return Err("ERR DISCARD without MULTI".to_owned()),
            "watch" | "unwatch" => out.simple("OK"),
            "quit" => {
                self.is_closing = true;
                out.simple("OK");
            }
            _ => {
                (self.version, self.role) = (Version::Two, Role::default());
                (self.named, self.queue) = (None, None);
                out.version = self.version;
                out.simple("RESET");
            }
        }
        Ok(())
    }

    /// `HELLO [2 | 3 [AUTH user password] [SETNAME name]]`: all options take effect, or none.
    fn hello(&mut self, mut words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
        let version = match words.next() {
            None => self.version,
            Some(b"2") => Version::Two,
            Some(b"3") => Version::Three,
            Some(_) => {
                return Err("NOPROTO unsupported protocol version: there are 2 and 3".to_owned());
            }
        };
        let (mut login, mut name) = (None, None);
        while let Some(option) = words.next() {
            if option.eq_ignore_ascii_case(b"AUTH") {
                let told = (words.next(), words.next());
                let (Some(user), Some(password)) = told else {
                    return Err("ERR HELLO … AUTH is followed by a user and a password".to_owned());
                };
                login = Some((user, password));
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                let told = words.next();
                name = Some(told.ok_or("ERR HELLO … SETNAME is followed by a name")?);
            } else {
                return Err(
                    "ERR syntax error in HELLO: its options are AUTH and SETNAME".to_owned(),
                );
            }
        }
        if let Some(name) = name {
            ClientInfo::check(name)?;
        }
        if let Some((user, password)) = login {
            self.authenticate(user, password)?;
        }
        self.authorize(b"")
            .map_err(|_| NO_AUTH_IN_HELLO.to_owned())?;
        if let Some(name) = name {
            self.named().name = name.to_vec();
        }
        (self.version, out.version) = (version, version);
        out.map(7);
        out.pair("server", "tollgate");
        out.pair("version", env!("CARGO_PKG_VERSION"));
        out.text("proto");
        out.integer(if version == Version::Three { 3 } else { 2 });
        out.text("id");
        out.count(self.id);
        out.pair("mode", "standalone");
        out.pair("role", "master");
        out.text("modules");
        out.array(0);
        Ok(())
    }

    /// `AUTH password` or `AUTH user password`.
    fn auth(&mut self, mut words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
        let (user, password) = match words.len() {
            1 => (DEFAULT_USER, words.next()),
            2 => (words.next().unwrap_or_default(), words.next()),
            _ => return Err("ERR syntax error".to_owned()),
        };
        self.authenticate(user, password.unwrap_or_default())?;
        out.simple("OK");
        Ok(())
    }

    fn client(&mut self, mut words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
        let what = words.next().unwrap_or_default();
        let is = |name: &[u8]| what.eq_ignore_ascii_case(name);
        let value = words.next();
        if is(b"SETINFO") {
            let told = words.next().ok_or(LACKS_VALUE)?;
            ClientInfo::check(told)?;
            if value.ok_or(LACKS_VALUE)?.eq_ignore_ascii_case(b"LIB-NAME") {
                self.named().library = told.to_vec();
            } else if value.ok_or(LACKS_VALUE)?.eq_ignore_ascii_case(b"LIB-VER") {
                self.named().library_version = told.to_vec();
            } else {
                return Err("ERR CLIENT SETINFO knows LIB-NAME and LIB-VER".to_owned());
            }
            out.simple("OK");
        } else if is(b"SETNAME") {
            let name = value.ok_or(LACKS_VALUE)?;
            ClientInfo::check(name)?;
            self.named().name = name.to_vec();
            out.simple("OK");
        } else if is(b"GETNAME") {
            match self.named.as_deref().map(|named| named.name.as_slice()) {
                None | Some([]) => out.null(),
                Some(name) => out.bulk(name),
            }
        } else if is(b"ID") {
            out.count(self.id);
        } else if is(b"INFO") || is(b"LIST") {
            out.text(&self.client_info());
        } else if is(b"NO-EVICT") || is(b"NO-TOUCH") {
            // Connections are never evicted, and reading a key changes nothing.
            let on_or_off = value.ok_or(LACKS_VALUE)?;
            if !on_or_off.eq_ignore_ascii_case(b"ON") && !on_or_off.eq_ignore_ascii_case(b"OFF") {
                return Err("ERR syntax error in CLIENT: say ON or OFF".to_owned());
            }
            out.simple("OK");
        } else {
            return Err(
                "ERR CLIENT knows SETINFO, SETNAME, GETNAME, ID, INFO, LIST, NO-EVICT and NO-TOUCH here"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// One line about this connection. Other connections aren't shown.
    fn client_info(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let nothing = ClientInfo::default();
        let named = self.named.as_deref().unwrap_or(&nothing);
        let multi = match &self.queue {
            Some(queue) => i64::try_from(queue.len()).unwrap_or(i64::MAX),
            None => -1,
        };
        format!(
            "id={} addr={} name={} db=0 multi={multi} user=default lib-name={} lib-ver={} resp={}\n",
            self.id,
            self.peer,
            text(&named.name),
            text(&named.library),
            text(&named.library_version),
            if self.version == Version::Three { 3 } else { 2 },
        )
    }

    /// The rules in force, each with its name and mode.
    fn rules(&self, out: &mut ReplyWriter<'_>) {
        let policy = self.service.decider.engine.policy();
        out.array(policy.rules.len());
        for rule in &policy.rules {
            out.map(2);
            out.pair("name", &rule.name);
            out.pair("mode", rule.mode.name());
        }
    }
}

/// `CONFIG GET name …`: the settings that redis-benchmark reads before it starts.
fn config(mut words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
    if !words
        .next()
        .is_some_and(|what| what.eq_ignore_ascii_case(b"GET"))
    {
        return Err("ERR CONFIG knows GET here".to_owned());
    }
    let known = [("save", ""), ("appendonly", "no")];
    let found = words.filter_map(|asked| {
        known
            .into_iter()
            .find(|(name, _)| asked.eq_ignore_ascii_case(name.as_bytes()))
    });
    let found: Vec<_> = found.collect();
    out.map(found.len());
    found.iter().for_each(|(name, value)| out.pair(name, value));
    Ok(())
}

fn time(out: &mut ReplyWriter<'_>) {
    let micros = Wall.now().as_nanos() / 1_000;
    out.array(2);
    out.text(&(micros / 1_000_000).to_string());
    out.text(&(micros % 1_000_000).to_string());
}

impl<B: CounterStore> RespSession<B> {
    /// The requested sections: all without a name, and for `all`, `default` and `everything`.
    fn info(&self, words: Words<'_>) -> String {
        let is_named = |section: &str| {
            let mut names = words.clone().peekable();
            names.peek().is_none()
                || names.any(|name| {
                    let all = ["all", "default", "everything", section];
                    all.iter()
                        .any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
                })
        };
        let sections = Self::SECTIONS.iter().filter(|(name, _)| is_named(name));
        let sections = sections.map(|(name, lines)| format!("# {name}\n{}", lines(self)));
        sections
            .collect::<Vec<_>>()
            .join("\n")
            .replace('\n', "\r\n")
    }

    /// The sections, in the order of Redis. Each is computed only if it is requested, because one counts all keys.
    const SECTIONS: [Section<Self>; 8] = [
        ("Server", |session| {
            let (version, os, bits) =
                (env!("CARGO_PKG_VERSION"), std::env::consts::OS, usize::BITS);
            let since = session.service.monitor.measured.started_at;
            let (process, up) = (std::process::id(), (Wall.now() - since).as_secs());
            let days = up / 86_400;
            format!(
                "redis_version:{REDIS}\nredis_mode:standalone\ntollgate_version:{version}\nos:{os}\n\
                 arch_bits:{bits}\nprocess_id:{process}\nuptime_in_seconds:{up}\nuptime_in_days:{days}\n"
            )
        }),
        ("Clients", |session| {
            let clients = session.service.monitor.measured.connections(Protocol::Resp);
            let most = session.service.decider.bounds.max_connections;
            format!("connected_clients:{clients}\nmaxclients:{most}\nblocked_clients:0\n")
        }),
        ("Memory", |_| {
            let used = resident_bytes();
            format!(
                "used_memory:{used}\nused_memory_rss:{used}\nmaxmemory:0\nmaxmemory_policy:noeviction\n"
            )
        }),
        ("Stats", |session| {
            format!(
                "total_commands_processed:{}\n",
                count_commands(&session.service)
            )
        }),
        ("Replication", |_| {
            "role:master\nconnected_slaves:0\n".to_owned()
        }),
        ("Cluster", |_| "cluster_enabled:0\n".to_owned()),
        ("Keyspace", |session| {
            let keys = session
                .service
                .decider
                .throttle_keys
                .active_keys()
                .filter(|keys| *keys > 0);
            let keys = keys.map(|keys| format!("db0:keys={keys},expires={keys},avg_ttl=0\n"));
            keys.unwrap_or_default()
        }),
        ("Tollgate", |session| {
            let decider = &session.service.decider;
            let (rules, holds) = (
                decider.engine.policy().rules.len(),
                decider.reservations.count(),
            );
            format!("rules:{rules}\nholds:{holds}\n")
        }),
    ];
}

/// The number of answered commands.
fn count_commands<B: CounterStore>(service: &Service<B>) -> u64 {
    let mut all = service.monitor.measured.times();
    let own = all.find(|(protocol, _)| *protocol == Protocol::Resp);
    own.map_or(0, |(_, times)| times.counts().iter().sum())
}

/// The resident memory of the process; 0 where the system doesn't report it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes: Option<u64> = kilobytes.and_then(|digits| digits.parse().ok());
    kilobytes.unwrap_or(0) * 1_024
}
