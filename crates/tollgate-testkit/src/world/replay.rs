//! Compares the simulated store with a real one: the same calls to both, and the first difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::{ServerError, Store};
use crate::redis::{Reply, Server};

/// A recorded call of a script.
///
/// It must pass the time to the script (ours read it from `ARGV[2]`): the two stores' own clocks differ, and so
/// would their replies. An example is at [`replay`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The script's text.
    pub script: Arc<str>,
    /// `KEYS`.
    pub keys: Vec<Vec<u8>>,
    /// `ARGV`.
    pub args: Vec<Vec<u8>>,
}

/// A difference between the simulated store and a real one.
///
/// ```
/// use tollgate_testkit::world::Difference;
///
/// let difference = Difference {
///     call: Some(3),
///     what: "its reply".into(),
///     simulated: "[7, 1]".into(),
///     real: "[7, 2]".into(),
/// };
/// assert_eq!(difference.to_string(), "call 3: its reply is [7, 1], and of the real store [7, 2]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the call with different replies, from 0; `None` if the final contents differ.
    pub call: Option<usize>,
    /// The command or the key.
    pub what: String,
    /// The simulated store's reply.
    pub simulated: String,
    /// The real store's reply.
    pub real: String,
}

/// The simulated clock, on which nothing here depends.
const REPLAY_TIME: u64 = 1_700_000_000_000_000;

/// Runs calls on a new [`Store`] and on a real server, which is emptied first, and compares each reply; in the
/// end also every key's value, and whether it has a time to live. Returns the first difference with both
/// replies.
///
/// ```
/// use tollgate_testkit::redis::Server;
/// use tollgate_testkit::world::{Call, replay};
///
/// let script = "return redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])";
/// let call = |member: &str, now: &str| Call {
///     script: script.into(),
///     keys: vec![b"held".to_vec()],
///     args: vec![member.into(), now.into()],
/// };
/// let calls = [call("ann", "7"), call("bob", "8"), call("ann", "9")];
/// let answers = replay(&Server::start(), &calls)?;
/// assert_eq!(answers[2].as_ref().unwrap(), &"0");
/// # Ok::<(), tollgate_testkit::world::Difference>(())
/// ```
///
/// # Errors
/// The first difference.
///
/// # Panics
/// If the server can't be reached, or a script isn't Lua.
pub fn replay(
    server: &Server,
    calls: &[Call],
) -> Result<Vec<Result<Reply, ServerError>>, Difference> {
    let mut real = server.client().expect("a server that runs");
    let mut simulated = Store::new();
    real.command(&["FLUSHALL"]).expect("an empty server");
    let (mut names, mut answers) = (BTreeMap::new(), Vec::new());
    for (number, call) in calls.iter().enumerate() {
        let Call { script, keys, args } = call;
        let sha: &String = names.entry(&**script).or_insert_with(|| {
            let load = real.command(&["SCRIPT", "LOAD", script]);
            load.expect("a script that the server takes");
            simulated.load(script).expect("a script that is Lua")
        });
        let count = keys.len().to_string();
        let mut words = vec![&b"EVALSHA"[..], sha.as_bytes(), count.as_bytes()];
        words.extend(slices(keys).iter().chain(&slices(args)));
        let answer = simulated.evalsha(REPLAY_TIME, sha, &slices(keys), &slices(args));
        compare(Some(number), "its reply", &answer, real.command(&words))?;
        answers.push(answer);
    }
    let kept = real.command(&["KEYS", "*"]).expect("a list of keys");
    let kept = kept.items().iter().filter_map(Reply::bytes);
    let mut keys: BTreeSet<Vec<u8>> = kept.map(<[u8]>::to_vec).collect();
    keys.extend(simulated.keys());
    for key in &keys {
        let here = inspect_key(key, |words| simulated.command(REPLAY_TIME, words));
        let there = inspect_key(key, |words| real.command(words));
        let what = format!("key {:?}", String::from_utf8_lossy(key));
        for (here, there) in here.iter().zip(there) {
            compare(None, &what, here, there)?;
        }
    }
    Ok(answers)
}

fn slices(words: &[Vec<u8>]) -> Vec<&[u8]> {
    words.iter().map(Vec::as_slice).collect()
}

/// The type and the value of a key, and whether it has a time to live.
fn inspect_key<E>(
    key: &[u8],
    mut ask: impl FnMut(&[&[u8]]) -> Result<Reply, E>,
) -> [Result<Reply, E>; 3] {
    let kind = ask(&[b"TYPE", key]);
    let value = match &kind {
        Ok(Reply::Status(name)) if name == "zset" => {
            ask(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"])
        }
        _ => ask(&[b"GET", key]),
    };
    let life = ask(&[b"PTTL", key]).map(|life| match life {
        Reply::Integer(0..) => Reply::Status("a time to live".to_owned()),
        other => other,
    });
    [kind, value, life]
}

fn compare(
    call: Option<usize>,
    what: &str,
    simulated: &Result<Reply, ServerError>,
    real: Result<Reply, String>,
) -> Result<(), Difference> {
    let simulated = simulated.clone().map_err(|error| error.to_string());
    if simulated == real {
        return Ok(());
    }
    let shown = |said: Result<Reply, String>| {
        let said = said.unwrap_or_else(Reply::Error);
        said.to_string()
    };
    Err(Difference {
        call,
        what: what.to_owned(),
        simulated: shown(simulated),
        real: shown(real),
    })
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Some(number) => write!(f, "call {number}: ")?,
            None => f.write_str("in the end: ")?,
        }
        let Self {
            what,
            simulated,
            real,
            ..
        } = self;
        write!(f, "{what} is {simulated}, and of the real store {real}")
    }
}

impl std::error::Error for Difference {}
