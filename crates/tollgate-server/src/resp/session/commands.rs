//! The table of commands, as `COMMAND` shows it.

use std::sync::LazyLock;

use super::CommandResult;
use crate::resp::frame::Words;
use crate::resp::response::ReplyWriter;

/// Each command: its name; its arity (with the name, negative for a minimum); its group; which of its words are keys;
/// and a summary.
const TABLE: &str = "\
cl.throttle -5 write first Charges a key by the limit that comes along, as redis-cell does
tg.check -1 write none Decides a request by its facts
tg.peek -1 read none Tells what a request would be told, and charges nothing
tg.refund -1 write none Gives back what a request cost; for operators
tg.reset -1 write none Forgets what requests have spent; for operators
tg.rules 1 server none Lists the rules in force
del -2 write all Resets keys of CL.THROTTLE, and tells how many owed anything
unlink -2 write all The same as DEL
exists -2 read all Tells how many keys of CL.THROTTLE owe anything
ttl 2 read first Tells for how many seconds a key of CL.THROTTLE owes anything
pttl 2 read first The same as TTL in milliseconds
type 2 read first Tells string for a key of CL.THROTTLE that owes anything, else none
dbsize 1 read none Tells how many keys of CL.THROTTLE owe anything
multi 1 transactions none Queues the commands that follow until EXEC
exec 1 transactions none Runs what is queued, one by one
discard 1 transactions none Forgets what is queued
watch -2 transactions none Answers OK: each command decides by itself, so nothing is watched
unwatch 1 transactions none Answers OK
ping -1 connection none Answers PONG, or what it is told
echo 2 connection none Answers what it is told
hello -1 connection none Chooses the version of the protocol
auth -2 connection none Tells the operators' password
client -2 connection none Names the connection, and tells about it
select 2 connection none Chooses database 0, the only one
quit -1 connection none Closes the connection
reset 1 connection none Forgets what the connection has said of itself
info -1 server none Tells about the server
command -1 server none Lists the commands
config -2 server none Answers what benchmarks ask for
time 1 server none Tells the time of the server
scan -2 read none Is refused: keys are kept as fingerprints, and can't be listed
keys 2 read none Is refused, as SCAN is
";

/// A command of the table.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) name: &'static str,
    arity: i64,
    group: &'static str,
    keys: &'static str,
    summary: &'static str,
}

static COMMANDS: LazyLock<Vec<Command>> = LazyLock::new(|| {
    let commands = TABLE.lines().filter_map(|line| {
        let mut parts = line.splitn(5, ' ');
        Some(Command {
            name: parts.next()?,
            arity: parts.next()?.parse().ok()?,
            group: parts.next()?,
            keys: parts.next()?,
            summary: parts.next()?,
        })
    });
    commands.collect()
});

fn named(name: &[u8]) -> Option<&'static Command> {
    let mut all = COMMANDS.iter();
    all.find(|one| name.eq_ignore_ascii_case(one.name.as_bytes()))
}

/// Finds a command by its name, and checks its number of words.
pub(super) fn find(name: &[u8], words: usize) -> Result<&'static Command, String> {
    let Some(known) = named(name) else {
        let shown = String::from_utf8_lossy(&name[..name.len().min(64)]);
        return Err(format!("ERR unknown command '{shown}': see COMMAND DOCS"));
    };
    let count = i64::try_from(words).unwrap_or(i64::MAX);
    if (known.arity >= 0 && count != known.arity) || count < known.arity.abs() {
        return Err(format!(
            "ERR wrong number of arguments for '{}' command",
            known.name
        ));
    }
    Ok(known)
}

/// `COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …] | GETKEYS command word …]`.
pub(super) fn describe(mut words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
    let Some(what) = words.next() else {
        all(out);
        return Ok(());
    };
    let is = |name: &[u8]| what.eq_ignore_ascii_case(name);
    let names: Vec<_> = words.collect();
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
            names.iter().filter_map(|name| named(name)).collect()
        };
        out.map(found.len());
        for one in found {
            out.text(one.name);
            out.map(3);
            out.pair("summary", one.summary);
            out.pair("since", "1.0.0");
            let is_about_keys = one.is_about_keys();
            out.pair("group", if is_about_keys { "generic" } else { one.group });
        }
    } else if is(b"GETKEYS") {
        return keys(&names, out);
    } else {
        return Err("ERR COMMAND knows COUNT, LIST, INFO, DOCS and GETKEYS here".to_owned());
    }
    Ok(())
}

fn all(out: &mut ReplyWriter<'_>) {
    out.array(COMMANDS.len());
    COMMANDS.iter().for_each(|one| one.write(out));
}

/// The keys of a command.
fn keys(command: &[&[u8]], out: &mut ReplyWriter<'_>) -> CommandResult {
    let [name, words @ ..] = command else {
        return Err("ERR COMMAND GETKEYS is followed by a command".to_owned());
    };
    let keys = match find(name, command.len())?.keys {
        "first" => &words[..words.len().min(1)],
        "all" => words,
        _ => return Err("ERR The command has no key arguments".to_owned()),
    };
    out.array(keys.len());
    keys.iter().for_each(|key| out.bulk(key));
    Ok(())
}

impl Command {
    pub(super) fn is_about_keys(&self) -> bool {
        matches!(self.group, "write" | "read")
    }

    /// Writes Redis' ten fields of a command; unknown ones are empty.
    fn write(&self, out: &mut ReplyWriter<'_>) {
        out.array(10);
        out.text(self.name);
        out.integer(self.arity);
        out.array(1);
        out.simple(match self.group {
            "write" => "write",
            "read" => "readonly",
            "server" => "loading",
            _ => "fast",
        });
        let places = match self.keys {
            "first" => [1, 1, 1],
            "all" => [1, -1, 1],
            _ => [0, 0, 0],
        };
        for place in places {
            out.integer(place);
        }
        // Categories, tips, key specifications and subcommands.
        for _ in 0..4 {
            out.array(0);
        }
    }
}
