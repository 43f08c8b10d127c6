//! The commands that there are, as `COMMAND` tells clients of them.

use crate::resp::reply::Replies;

/// A command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) name: &'static str,
    /// The number of its words, with its name; negative if at least so many.
    pub(super) words: i64,
    kind: Kind,
    does: &'static str,
}

/// Which words of a command are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    None,
    First,
    All,
}

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It charges a key, or changes what one owes. These of its words are keys.
    Write(Keys),
    /// It looks at keys.
    Read(Keys),
    /// The connection, and how it is spoken on.
    Connection,
    /// Several commands together.
    Transaction,
    /// The server.
    Server,
}

impl Kind {
    const fn flag(self) -> &'static str {
        match self {
            Self::Write(_) => "write",
            Self::Read(_) => "readonly",
            Self::Connection | Self::Transaction => "fast",
            Self::Server => "loading",
        }
    }

    const fn keys(self) -> Keys {
        match self {
            Self::Write(keys) | Self::Read(keys) => keys,
            _ => Keys::None,
        }
    }

    const fn group(self) -> &'static str {
        match self {
            Self::Write(_) | Self::Read(_) => "generic",
            Self::Connection => "connection",
            Self::Transaction => "transactions",
            Self::Server => "server",
        }
    }
}

const fn command(name: &'static str, words: i64, kind: Kind, does: &'static str) -> Command {
    Command {
        name,
        words,
        kind,
        does,
    }
}

const CHARGE: Kind = Kind::Write(Keys::First);
const CHANGE: Kind = Kind::Write(Keys::All);
const DECIDE: Kind = Kind::Write(Keys::None);
const LOOK: Kind = Kind::Read(Keys::First);
const READ: Kind = Kind::Read(Keys::None);

/// All of them.
pub(super) const COMMANDS: [Command; 32] = [
    command(
        "cl.throttle",
        -5,
        CHARGE,
        "Charges a key by the limit that comes along, as redis-cell does",
    ),
    command("tg.check", -1, DECIDE, "Decides a request by its facts"),
    command(
        "tg.peek",
        -1,
        READ,
        "Tells what a request would be told, and charges nothing",
    ),
    command(
        "tg.refund",
        -1,
        DECIDE,
        "Gives back what a request cost; for operators",
    ),
    command(
        "tg.reset",
        -1,
        DECIDE,
        "Forgets what requests have spent; for operators",
    ),
    command("tg.rules", 1, Kind::Server, "Lists the rules in force"),
    command(
        "del",
        -2,
        CHANGE,
        "Resets keys of CL.THROTTLE, and tells how many owed anything",
    ),
    command("unlink", -2, CHANGE, "The same as DEL"),
    command(
        "exists",
        -2,
        Kind::Read(Keys::All),
        "Tells how many keys of CL.THROTTLE owe anything",
    ),
    command(
        "ttl",
        2,
        LOOK,
        "Tells for how many seconds a key of CL.THROTTLE owes anything",
    ),
    command("pttl", 2, LOOK, "The same as TTL in milliseconds"),
    command(
        "type",
        2,
        LOOK,
        "Tells string for a key of CL.THROTTLE that owes anything, else none",
    ),
    command(
        "dbsize",
        1,
        READ,
        "Tells how many keys of CL.THROTTLE owe anything",
    ),
    command(
        "multi",
        1,
        Kind::Transaction,
        "Queues the commands that follow until EXEC",
    ),
    command(
        "exec",
        1,
        Kind::Transaction,
        "Runs what is queued, one by one",
    ),
    command("discard", 1, Kind::Transaction, "Forgets what is queued"),
    command(
        "watch",
        -2,
        Kind::Transaction,
        "Answers OK: each command decides by itself, so nothing is watched",
    ),
    command("unwatch", 1, Kind::Transaction, "Answers OK"),
    command(
        "ping",
        -1,
        Kind::Connection,
        "Answers PONG, or what it is told",
    ),
    command("echo", 2, Kind::Connection, "Answers what it is told"),
    command(
        "hello",
        -1,
        Kind::Connection,
        "Chooses the version of the protocol",
    ),
    command(
        "auth",
        -2,
        Kind::Connection,
        "Tells the operators' password",
    ),
    command(
        "client",
        -2,
        Kind::Connection,
        "Names the connection, and tells about it",
    ),
    command(
        "select",
        2,
        Kind::Connection,
        "Chooses database 0, the only one",
    ),
    command("quit", -1, Kind::Connection, "Closes the connection"),
    command(
        "reset",
        1,
        Kind::Connection,
        "Forgets what the connection has said of itself",
    ),
    command("info", -1, Kind::Server, "Tells about the server"),
    command("command", -1, Kind::Server, "Lists the commands"),
    command(
        "config",
        -2,
        Kind::Server,
        "Answers what benchmarks ask for",
    ),
    command("time", 1, Kind::Server, "Tells the time of the server"),
    command(
        "scan",
        -2,
        READ,
        "Is refused: keys are kept as fingerprints, and can't be listed",
    ),
    command("keys", 2, READ, "Is refused, as SCAN is"),
];

/// A command by its name, if it can have so many words.
pub(super) fn find(name: &[u8], words: usize) -> Result<&'static Command, String> {
    let known = COMMANDS
        .iter()
        .find(|one| name.eq_ignore_ascii_case(one.name.as_bytes()));
    let Some(known) = known else {
        let shown = String::from_utf8_lossy(&name[..name.len().min(64)]);
        return Err(format!("ERR unknown command '{shown}': see COMMAND DOCS"));
    };
    let count = i64::try_from(words).unwrap_or(i64::MAX);
    if (known.words >= 0 && count != known.words) || count < known.words.abs() {
        return Err(format!(
            "ERR wrong number of arguments for '{}' command",
            known.name
        ));
    }
    Ok(known)
}

/// `COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …] | GETKEYS command word …]`.
pub(super) fn describe<'w>(
    mut words: impl Iterator<Item = &'w [u8]>,
    out: &mut Replies<'_>,
) -> Result<(), String> {
    let Some(what) = words.next() else {
        all(out);
        return Ok(());
    };
    let is = |name: &[u8]| what.eq_ignore_ascii_case(name);
    let names: Vec<_> = words.collect();
    let named = |name: &&[u8]| {
        COMMANDS
            .iter()
            .find(|one| name.eq_ignore_ascii_case(one.name.as_bytes()))
    };
    if is(b"COUNT") {
        out.count(COMMANDS.len() as u64);
    } else if is(b"LIST") {
        out.array(COMMANDS.len());
        COMMANDS.iter().for_each(|one| out.text(one.name));
    } else if is(b"INFO") && names.is_empty() {
        all(out);
    } else if is(b"INFO") {
        out.array(names.len());
        for name in &names {
            match named(name) {
                Some(one) => one.write(out),
                None => out.null_array(),
            }
        }
    } else if is(b"DOCS") {
        let found: Vec<_> = if names.is_empty() {
            COMMANDS.iter().collect()
        } else {
            names.iter().filter_map(named).collect()
        };
        out.map(found.len());
        for one in found {
            out.text(one.name);
            out.map(3);
            let told = [
                ("summary", one.does),
                ("since", "1.0.0"),
                ("group", one.kind.group()),
            ];
            for (name, value) in told {
                out.text(name);
                out.text(value);
            }
        }
    } else if is(b"GETKEYS") {
        return keys(&names, out);
    } else {
        return Err("ERR COMMAND knows COUNT, LIST, INFO, DOCS and GETKEYS here".to_owned());
    }
    Ok(())
}

fn all(out: &mut Replies<'_>) {
    out.array(COMMANDS.len());
    COMMANDS.iter().for_each(|one| one.write(out));
}

/// The keys of a command.
fn keys(command: &[&[u8]], out: &mut Replies<'_>) -> Result<(), String> {
    let [name, words @ ..] = command else {
        return Err("ERR COMMAND GETKEYS is followed by a command".to_owned());
    };
    let keys = match find(name, command.len())?.kind.keys() {
        Keys::None => return Err("ERR The command has no key arguments".to_owned()),
        Keys::First => &words[..words.len().min(1)],
        Keys::All => words,
    };
    out.array(keys.len());
    keys.iter().for_each(|key| out.bulk(key));
    Ok(())
}

impl Command {
    /// The ten parts that Redis tells of a command; what it knows nothing of is empty.
    fn write(&self, out: &mut Replies<'_>) {
        out.array(10);
        out.text(self.name);
        out.integer(self.words);
        out.array(1);
        out.simple(self.kind.flag());
        let places = match self.kind.keys() {
            Keys::None => [0, 0, 0],
            Keys::First => [1, 1, 1],
            Keys::All => [1, -1, 1],
        };
        for place in places {
            out.integer(place);
        }
        // Its categories, tips, kinds of keys and subcommands.
        for _ in 0..4 {
            out.array(0);
        }
    }
}
