//! Commands that every Redis client knows: about the connection and the server.

use tollgate::clock::{Clock, Wall};
use tollgate_engine::policy::Mode;

use super::{Session, Standing};
use crate::resp::reply::{Replies, Version};
use crate::service::Store;

/// The version of Redis whose commands clients may expect of those that are here.
const REDIS: &str = "7.0.15";

/// A command: its name, the number of its words (negative if at least so many), and what it does.
struct Command {
    name: &'static str,
    words: i64,
    does: &'static str,
}

const fn command(name: &'static str, words: i64, does: &'static str) -> Command {
    Command { name, words, does }
}

const COMMANDS: [Command; 18] = [
    command(
        "cl.throttle",
        -5,
        "Charges a key by the limit that comes along, as redis-cell does",
    ),
    command("tg.check", -1, "Decides a request by its facts"),
    command(
        "tg.peek",
        -1,
        "Tells what a request would be told, and charges nothing",
    ),
    command(
        "tg.refund",
        -1,
        "Gives back what a request cost; for operators",
    ),
    command(
        "tg.reset",
        -1,
        "Forgets what requests have spent; for operators",
    ),
    command("tg.rules", 1, "Lists the rules in force"),
    command("ping", -1, "Answers PONG, or what it is told"),
    command("echo", 2, "Answers what it is told"),
    command("hello", -1, "Chooses the version of the protocol"),
    command("auth", -2, "Tells the operators' password"),
    command("info", -1, "Tells about the server"),
    command("command", -1, "Lists the commands"),
    command("client", -2, "Names the connection"),
    command("config", -2, "Answers what benchmarks ask for"),
    command("select", 2, "Chooses database 0, the only one"),
    command("quit", -1, "Closes the connection"),
    command("reset", 1, "Forgets what the connection has said of itself"),
    command("time", 1, "Tells the time of the server"),
];

type Answered = Result<(), String>;

/// What Redis says: its clients may look for it.
const NO_AUTH_IN_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";

impl<B: Store> Session<B> {
    pub(super) fn about<'w>(
        &mut self,
        name: &[u8],
        words: impl ExactSizeIterator<Item = &'w [u8]> + Clone,
        out: &mut Replies<'_>,
    ) -> Answered {
        let known = COMMANDS
            .iter()
            .find(|one| name.eq_ignore_ascii_case(one.name.as_bytes()));
        let Some(known) = known else {
            let shown = String::from_utf8_lossy(&name[..name.len().min(64)]);
            return Err(format!("ERR unknown command '{shown}': see COMMAND DOCS"));
        };
        let count = i64::try_from(words.len())
            .unwrap_or(i64::MAX)
            .saturating_add(1);
        if (known.words >= 0 && count != known.words) || count < known.words.abs() {
            return Err(format!(
                "ERR wrong number of arguments for '{}' command",
                known.name
            ));
        }
        let mut words = words;
        match known.name {
            "ping" => match words.next() {
                Some(text) => out.bulk(text),
                None => out.simple("PONG"),
            },
            "echo" => out.bulk(words.next().unwrap_or_default()),
            "hello" => return self.hello(words, out),
            "auth" => return self.auth(words, out),
            "info" => out.text(&self.info()),
            "command" => commands(words, out),
            "client" => return self.client(words, out),
            "config" => return config(words, out),
            "select" if words.next() == Some(b"0") => out.simple("OK"),
            "select" => return Err("ERR DB index is out of range: there is only 0".to_owned()),
            "tg.rules" => self.rules(out),
            "time" => time(out),
            "quit" => {
                self.is_over = true;
                out.simple("OK");
            }
            _ => {
                (self.version, self.standing) = (Version::Two, Standing::default());
                self.name.clear();
                out.version = self.version;
                out.simple("RESET");
            }
        }
        Ok(())
    }

    /// `HELLO [2 | 3 [AUTH user password] [SETNAME name]]`.
    fn hello<'w>(
        &mut self,
        mut words: impl Iterator<Item = &'w [u8]>,
        out: &mut Replies<'_>,
    ) -> Answered {
        let version = match words.next() {
            None => self.version,
            Some(b"2") => Version::Two,
            Some(b"3") => Version::Three,
            Some(_) => {
                return Err("NOPROTO unsupported protocol version: there are 2 and 3".to_owned());
            }
        };
        while let Some(option) = words.next() {
            if option.eq_ignore_ascii_case(b"AUTH") {
                let (_user, password) = (words.next(), words.next());
                self.trust(
                    password.ok_or("ERR HELLO … AUTH is followed by a user and a password")?,
                )?;
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                let name = words
                    .next()
                    .ok_or("ERR HELLO … SETNAME is followed by a name")?;
                self.set_name(name)?;
            } else {
                return Err(
                    "ERR syntax error in HELLO: its options are AUTH and SETNAME".to_owned(),
                );
            }
        }
        self.may_ask(b"").map_err(|_| NO_AUTH_IN_HELLO.to_owned())?;
        (self.version, out.version) = (version, version);
        out.map(7);
        for (name, value) in [
            ("server", "tollgate"),
            ("version", env!("CARGO_PKG_VERSION")),
        ] {
            out.text(name);
            out.text(value);
        }
        out.text("proto");
        out.integer(if version == Version::Three { 3 } else { 2 });
        out.text("id");
        out.count(self.id);
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            out.text(name);
            out.text(value);
        }
        out.text("modules");
        out.array(0);
        Ok(())
    }

    /// `AUTH password` or `AUTH user password`.
    fn auth<'w>(
        &mut self,
        mut words: impl ExactSizeIterator<Item = &'w [u8]>,
        out: &mut Replies<'_>,
    ) -> Answered {
        let last = words.len().saturating_sub(1);
        if last > 1 {
            return Err("ERR syntax error".to_owned());
        }
        self.trust(words.nth(last).unwrap_or_default())?;
        out.simple("OK");
        Ok(())
    }

    fn client<'w>(
        &mut self,
        mut words: impl Iterator<Item = &'w [u8]>,
        out: &mut Replies<'_>,
    ) -> Answered {
        let what = words.next().unwrap_or_default();
        if what.eq_ignore_ascii_case(b"SETINFO") {
            out.simple("OK");
        } else if what.eq_ignore_ascii_case(b"SETNAME") {
            self.set_name(words.next().unwrap_or_default())?;
            out.simple("OK");
        } else if what.eq_ignore_ascii_case(b"GETNAME") {
            match self.name.as_slice() {
                [] => out.null(),
                name => out.bulk(name),
            }
        } else if what.eq_ignore_ascii_case(b"ID") {
            out.count(self.id);
        } else {
            return Err("ERR CLIENT knows SETINFO, SETNAME, GETNAME and ID here".to_owned());
        }
        Ok(())
    }

    fn set_name(&mut self, name: &[u8]) -> Answered {
        if name.len() > 256 || name.iter().any(|byte| !byte.is_ascii_graphic()) {
            return Err(
                "ERR a name of a connection is up to 256 printable characters without spaces"
                    .to_owned(),
            );
        }
        self.name = name.to_vec();
        Ok(())
    }

    fn info(&self) -> String {
        format!(
            "# Server\r\nredis_version:{REDIS}\r\nredis_mode:standalone\r\ntollgate_version:{}\r\nprocess_id:{}\r\n\
             # Tollgate\r\nrules:{}\r\nholds:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.service.engine.policy().rules.len(),
            self.service.holds.count(),
        )
    }

    /// The rules in force, each with its name, its key and its limits.
    fn rules(&self, out: &mut Replies<'_>) {
        let policy = self.service.engine.policy();
        out.array(policy.rules.len());
        for rule in &policy.rules {
            out.map(2);
            out.text("name");
            out.text(&rule.name);
            out.text("mode");
            out.text(match rule.mode {
                Mode::Enforce => "enforce",
                Mode::Shadow => "shadow",
                Mode::Off => "off",
            });
        }
    }
}

fn commands<'w>(mut words: impl Iterator<Item = &'w [u8]> + Clone, out: &mut Replies<'_>) {
    let what = words.next();
    let is = |name: &[u8]| what.is_some_and(|what| what.eq_ignore_ascii_case(name));
    if is(b"COUNT") {
        return out.count(COMMANDS.len() as u64);
    }
    if is(b"DOCS") {
        let asked = |one: &&Command| {
            words.clone().next().is_none()
                || words
                    .clone()
                    .any(|name| name.eq_ignore_ascii_case(one.name.as_bytes()))
        };
        let found: Vec<_> = COMMANDS.iter().filter(asked).collect();
        out.map(found.len());
        for one in found {
            out.text(one.name);
            out.map(1);
            out.text("summary");
            out.text(one.does);
        }
        return;
    }
    out.array(COMMANDS.len());
    for one in &COMMANDS {
        out.array(6);
        out.text(one.name);
        out.integer(one.words);
        out.array(0);
        // Where keys are: one command has one.
        let first = i64::from(one.name == "cl.throttle");
        for number in [first, first, first] {
            out.integer(number);
        }
    }
}

/// `CONFIG GET name …`: what redis-benchmark looks at before it starts.
fn config<'w>(mut words: impl Iterator<Item = &'w [u8]>, out: &mut Replies<'_>) -> Answered {
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
    for (name, value) in found {
        out.text(name);
        out.text(value);
    }
    Ok(())
}

fn time(out: &mut Replies<'_>) {
    let micros = Wall.now().as_nanos() / 1_000;
    out.array(2);
    out.text(&(micros / 1_000_000).to_string());
    out.text(&(micros % 1_000_000).to_string());
}
