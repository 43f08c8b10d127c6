//! Commands and replies as bytes, for the simulated network: the format of the real client.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::store::Store;
use super::{Call, ServerError};
use crate::redis::Reply;

/// A received command.
#[derive(Clone, Debug)]
pub(super) struct Command {
    words: Vec<Vec<u8>>,
}

/// A script to run.
struct Run<'a> {
    name: &'a [u8],
    /// Its text, or its SHA-1.
    script: &'a str,
    keys: &'a [Vec<u8>],
    args: &'a [Vec<u8>],
}

impl Command {
    /// Reads a client's command: an array of bulk strings.
    ///
    /// # Panics
    /// If the bytes are anything else.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        let mut line = |mark: u8| {
            let end = rest
                .windows(2)
                .position(|two| two == b"\r\n")
                .expect("a line");
            let (line, after) = rest.split_at(end);
            rest = &after[2..];
            assert_eq!(line[0], mark, "as RESP has it");
            let number = std::str::from_utf8(&line[1..]).expect("a number");
            let number: usize = number.parse().expect("a number");
            if mark == b'*' {
                return (number, Vec::new());
            }
            let (word, after) = rest.split_at(number);
            rest = &after[2..];
            (number, word.to_vec())
        };
        let (count, _) = line(b'*');
        let words = (0..count).map(|_| line(b'$').1).collect();
        Self { words }
    }

    /// The script with its keys and arguments, if the command runs one.
    fn script(&self) -> Option<Run<'_>> {
        let [name, script, count, rest @ ..] = &self.words[..] else {
            return None;
        };
        let script = std::str::from_utf8(script).ok()?;
        let count: usize = std::str::from_utf8(count).ok()?.parse().ok()?;
        let (keys, args) = rest.split_at_checked(count)?;
        Some(Run {
            name,
            script,
            keys,
            args,
        })
    }

    /// Whether it runs a script.
    pub(super) fn is_script(&self) -> bool {
        self.script().is_some()
    }

    /// The shard that has its keys.
    pub(super) fn shard(&self, shards: usize) -> usize {
        let key = self.script().and_then(|run| run.keys.first());
        key.map_or(0, |key| hash_tag(key) % shards)
    }

    pub(super) fn run(&self, store: &mut Store, now: u64) -> Vec<u8> {
        let reply = match self.script() {
            Some(Run {
                name,
                script,
                keys,
                args,
            }) => {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
                match name {
                    b"EVAL" => store.eval(now, script, &keys, &args),
                    _ => store.evalsha(now, script, &keys, &args),
                }
            }
            None => {
                let words: Vec<&[u8]> = self.words.iter().map(Vec::as_slice).collect();
                store.command(now, &words)
            }
        };
        let mut bytes = Vec::new();
        match reply {
            Ok(reply) => write(&reply, &mut bytes),
            Err(error) => write_error(&error, &mut bytes),
        }
        bytes
    }

    /// The call, with the time passed to the script, so that it can be replayed at any time.
    pub(super) fn recorded(
        &self,
        scripts: &mut BTreeMap<String, Arc<str>>,
        now: u64,
    ) -> Option<Call> {
        let Run {
            name,
            script,
            keys,
            args,
        } = self.script()?;
        let script: Arc<str> = match name {
            b"EVAL" => {
                let sha = sha1_smol::Sha1::from(script).digest().to_string();
                Arc::clone(scripts.entry(sha).or_insert_with(|| script.into()))
            }
            _ => Arc::clone(scripts.get(script)?),
        };
        let mut args = args.to_vec();
        if let Some(time) = args.get_mut(1).filter(|time| time.is_empty()) {
            *time = now.to_string().into_bytes();
        }
        let keys = keys.to_vec();
        Some(Call { script, keys, args })
    }
}

/// A number that is equal for keys with the same hash tag.
fn hash_tag(key: &[u8]) -> usize {
    let from = key
        .iter()
        .position(|byte| *byte == b'{')
        .map_or(0, |at| at + 1);
    let tag = &key[from..];
    let to = tag
        .iter()
        .position(|byte| *byte == b'}')
        .unwrap_or(tag.len());
    let sum = |sum: usize, byte: &u8| sum.wrapping_mul(31).wrapping_add(usize::from(*byte));
    tag[..to].iter().fold(7, sum)
}

fn write_error(error: &ServerError, to: &mut Vec<u8>) {
    to.extend_from_slice(format!("-{error}\r\n").as_bytes());
}

fn write(reply: &Reply, to: &mut Vec<u8>) {
    match reply {
        Reply::Status(text) => to.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Reply::Error(text) => to.extend_from_slice(format!("-{text}\r\n").as_bytes()),
        Reply::Integer(number) => to.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Reply::Nil => to.extend_from_slice(b"$-1\r\n"),
        Reply::Bulk(bytes) => {
            to.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
            to.extend_from_slice(bytes);
            to.extend_from_slice(b"\r\n");
        }
        Reply::Array(replies) => {
            to.extend_from_slice(format!("*{}\r\n", replies.len()).as_bytes());
            replies.iter().for_each(|reply| write(reply, to));
        }
    }
}
