//! The commands, and the conditions for each to run.

mod keys;
mod sorted;

use super::error::{Answer, OOM, READ_ONLY, ServerError};
use super::space::Keyspace;
use super::{Counts, StoreCondition};
use crate::redis::Reply;

/// The state that commands run on.
#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) space: Keyspace,
    pub(super) condition: StoreCondition,
    pub(super) counts: Counts,
    /// Whether the running script has begun to write: from there on full memory doesn't stop it.
    has_written: bool,
}

/// Who runs a command, which decides the wording of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Client,
    Script,
}

struct Command {
    name: &'static str,
    /// The number of words including the name; if negative, there may be more.
    words: isize,
    effect: Effect,
    run: fn(&mut Keyspace, &[&[u8]]) -> Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Reads,
    Writes,
    /// Writes, and may need memory.
    Grows,
}

use Effect::{Grows, Reads, Writes};

/// All commands of the store, the most frequent first.
const COMMANDS: [Command; 21] = [
    Command::new("GET", 2, Reads, keys::get),
    Command::new("SET", -3, Grows, keys::set),
    Command::new("TIME", 1, Reads, keys::time),
    Command::new("ZADD", -4, Grows, sorted::add),
    Command::new("ZRANGE", -4, Reads, sorted::range),
    Command::new("ZRANGEBYSCORE", -4, Reads, sorted::range_by_score),
    Command::new("ZCOUNT", 4, Reads, sorted::count),
    Command::new("ZSCORE", 3, Reads, sorted::score),
    Command::new("ZREMRANGEBYSCORE", 4, Writes, sorted::remove_by_score),
    Command::new("PEXPIRE", -3, Writes, keys::expire_in),
    Command::new("DEL", -2, Writes, keys::delete),
    Command::new("ZREM", -3, Writes, sorted::remove),
    Command::new("ZRANK", 3, Reads, sorted::rank),
    Command::new("ZCARD", 2, Reads, sorted::size),
    Command::new("ZREMRANGEBYRANK", 4, Writes, sorted::remove_by_rank),
    Command::new("EXISTS", -2, Reads, keys::exist),
    Command::new("TYPE", 2, Reads, keys::type_of),
    Command::new("PTTL", 2, Reads, keys::life_left),
    Command::new("PEXPIRETIME", 2, Reads, keys::expires_at),
    Command::new("PEXPIREAT", -3, Writes, keys::expire_at),
    Command::new("PERSIST", 2, Writes, keys::persist),
];

impl Command {
    const fn new(
        name: &'static str,
        words: isize,
        effect: Effect,
        run: fn(&mut Keyspace, &[&[u8]]) -> Answer,
    ) -> Self {
        Self {
            name,
            words,
            effect,
            run,
        }
    }

    fn takes(&self, words: usize) -> bool {
        let least = self.words.unsigned_abs();
        words == least || self.words < 0 && words > least
    }
}

impl Server {
    /// Starts a script: full memory may stop it again.
    pub(super) fn start_script(&mut self) {
        self.counts.scripts += 1;
        self.has_written = false;
    }

    pub(super) fn run(&mut self, origin: Origin, words: &[&[u8]]) -> Answer {
        let name = words.first().copied().unwrap_or_default();
        let mut known = COMMANDS.iter();
        let command = known
            .find(|one| one.name.as_bytes().eq_ignore_ascii_case(name))
            .ok_or_else(|| unknown(origin, words))?;
        if !command.takes(words.len()) {
            return Err(ServerError::new(match origin {
                Origin::Script => {
                    "ERR Wrong number of args calling Redis command from script".into()
                }
                Origin::Client => {
                    let name = command.name.to_ascii_lowercase();
                    format!("ERR wrong number of arguments for '{name}' command")
                }
            }));
        }
        if command.effect != Reads && self.condition == StoreCondition::ReadOnly {
            return Err(ServerError::new(READ_ONLY));
        }
        // A script that has begun to write can't be stopped halfway.
        let may_grow = origin == Origin::Script && self.has_written;
        let is_full = self.condition == StoreCondition::OutOfMemory;
        if command.effect == Grows && is_full && !may_grow {
            return Err(ServerError::new(OOM));
        }
        self.has_written |= command.effect != Reads;
        self.counts.commands += 1;
        (command.run)(&mut self.space, words)
    }
}

fn unknown(origin: Origin, words: &[&[u8]]) -> ServerError {
    if origin == Origin::Script {
        return ServerError::new("ERR Unknown Redis command called from script");
    }
    let text = |word: &[u8]| format!("'{}'", String::from_utf8_lossy(word));
    let name = words.first().map_or_else(String::new, |name| text(name));
    let args: String = words.iter().skip(1).map(|word| text(word) + " ").collect();
    ServerError::new(format!(
        "ERR unknown command {name}, with args beginning with: {args}"
    ))
}

/// Options of commands, in capital letters; anything else is the empty text.
fn option(word: &[u8]) -> &'static str {
    const OPTIONS: [&str; 10] = [
        "PX",
        "PXAT",
        "KEEPTTL",
        "NX",
        "XX",
        "GT",
        "LT",
        "CH",
        "WITHSCORES",
        "LIMIT",
    ];
    let mut known = OPTIONS.into_iter();
    let found = known.find(|name| name.as_bytes().eq_ignore_ascii_case(word));
    found.unwrap_or_default()
}

/// A count as a reply.
fn number(count: usize) -> Answer {
    Ok(Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX)))
}
