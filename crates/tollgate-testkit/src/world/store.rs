//! A small Redis: strings and sorted sets that expire, and scripts in Redis's Lua.
//!
//! It is deterministic: time comes with each call, randomness as numbers, and nothing happens by itself. It
//! knows nothing of clients and networks, and rejects other commands as unknown.

mod command;
mod error;
mod lua;
mod number;
mod sorted;
mod space;

use std::collections::BTreeSet;
use std::fmt;

use sha1_smol::Sha1;

pub use error::ServerError;

use command::{Origin, Server};
use error::{BUSY, LOADING, NO_SCRIPT};
use lua::Vm;
use space::ExpiredKeyAction;

use crate::redis::Reply;
use crate::traffic::Random;

/// A store in memory, with its time and its faults as arguments. Times are microseconds, and each may be
/// earlier than the one before.
///
/// ```
/// use tollgate_testkit::redis::Reply;
/// use tollgate_testkit::world::Store;
///
/// let mut store = Store::new();
/// let sha = store.load("return redis.call('SET', KEYS[1], ARGV[1], 'PX', 5)")?;
/// assert_eq!(store.evalsha(1_000, &sha, &[b"hits"], &[b"41"])?, "OK");
///
/// // Set for 5 ms in the first, it is there up to the end of the sixth.
/// assert_eq!(store.command(6_999, &[b"GET", b"hits"])?, "41");
/// assert_eq!(store.command(7_000, &[b"GET", b"hits"])?, Reply::Nil);
/// # Ok::<(), tollgate_testkit::world::ServerError>(())
/// ```
pub struct Store {
    /// Taken by `drop` alone.
    vm: Option<Vm>,
    /// The scripts that this store knows; its shared Lua may know more.
    scripts: BTreeSet<String>,
}

/// The condition of a store.
///
/// ```
/// use tollgate_testkit::world::{StoreCondition, Store};
///
/// let mut store = Store::new();
/// store.set_condition(StoreCondition::ReadOnly);
/// let error = store.command(0, &[b"SET", b"key", b"value"]).unwrap_err();
/// assert_eq!(error.code(), "READONLY");
/// assert!(store.command(0, &[b"GET", b"key"]).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreCondition {
    /// It executes commands.
    #[default]
    Well,
    /// A replica: writes are rejected, and expired keys are left to the master to delete.
    ReadOnly,
    /// Its memory is full: commands that may need more are rejected, except in scripts that have begun to
    /// write.
    OutOfMemory,
    /// It is loading its data: everything is rejected.
    Loading,
    /// A script doesn't end: everything is rejected.
    Busy,
}

/// A store's counters.
///
/// ```
/// use tollgate_testkit::world::{Counts, Store};
///
/// let mut store = Store::new();
/// store.eval(0, "return redis.call('GET', KEYS[1])", &[b"key"], &[])?;
/// assert_eq!(store.counts(), Counts { calls: 1, scripts: 1, commands: 1 });
/// # Ok::<(), tollgate_testkit::world::ServerError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls from outside, rejected or not.
    pub calls: u64,
    /// Scripts that it ran.
    pub scripts: u64,
    /// Commands, including those in scripts.
    pub commands: u64,
}

impl Store {
    /// An empty store.
    pub fn new() -> Self {
        Self {
            vm: Some(Vm::take()),
            scripts: BTreeSet::new(),
        }
    }

    /// Caches a script, and returns its SHA-1.
    ///
    /// # Errors
    /// If it isn't valid Lua.
    pub fn load(&mut self, script: &str) -> Result<String, ServerError> {
        let sha = Sha1::from(script).digest().to_string();
        self.vm_mut().compile(&sha, script)?;
        self.scripts.insert(sha.clone());
        Ok(sha)
    }

    /// Runs a cached script.
    ///
    /// # Errors
    /// `NOSCRIPT` if it isn't cached, or the error of the script or of the store's condition.
    pub fn evalsha(
        &mut self,
        now: u64,
        sha: &str,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Reply, ServerError> {
        self.begin(now)?;
        if !self.scripts.contains(sha) {
            return Err(ServerError::new(NO_SCRIPT));
        }
        self.vm().run(sha, keys, args)
    }

    /// Runs a script, and caches it.
    ///
    /// # Errors
    /// If it isn't valid Lua, or the error of the script or of the store's condition.
    pub fn eval(
        &mut self,
        now: u64,
        script: &str,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Reply, ServerError> {
        self.begin(now)?;
        let sha = self.load(script)?;
        self.vm().run(&sha, keys, args)
    }

    /// Runs one command, such as `[b"GET", b"key"]`.
    ///
    /// # Errors
    /// The error of the command or of the store's condition.
    pub fn command(&mut self, now: u64, words: &[&[u8]]) -> Result<Reply, ServerError> {
        self.begin(now)?;
        self.vm().server().run(Origin::Client, words)
    }

    /// All keys in order, including expired ones that aren't deleted yet.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let server = self.vm().server();
        server.space.keys().map(|(key, _)| key.to_vec()).collect()
    }

    /// The millisecond at whose end a key expires; `None` if it doesn't, or isn't there.
    pub fn expires_at(&self, key: &[u8]) -> Option<u64> {
        let server = self.vm().server();
        let expires = server.space.entry(key)?.expires?;
        u64::try_from(expires).ok()
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.vm().server().counts
    }

    /// Sets its condition.
    pub fn set_condition(&mut self, condition: StoreCondition) {
        let mut server = self.vm().server();
        server.condition = condition;
        server.space.past = match condition {
            StoreCondition::ReadOnly => ExpiredKeyAction::Hides,
            _ => ExpiredKeyAction::Deletes,
        };
    }

    /// Restarts without keys and scripts. The replica keeps its data.
    pub fn restart_empty(&mut self) {
        self.vm().server().space.clear();
        self.flush_scripts();
    }

    /// Forgets the scripts, like a restart that keeps the keys.
    pub fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Deletes some of the expired keys, as a real server does in its spare time, chosen by the number. Others
    /// are deleted when they are accessed. The difference shows once the clock steps back.
    pub fn expire_some(&mut self, now: u64, choice: u64) {
        let mut server = self.vm().server();
        server.space.now = now;
        server.space.expire_some(&mut Random::new(choice));
    }

    /// Deletes a key chosen by the number, as a full store may. `None` if there is none.
    pub fn evict(&mut self, choice: u64) -> Option<Vec<u8>> {
        let mut server = self.vm().server();
        let count = u64::try_from(server.space.keys().len()).unwrap_or(u64::MAX);
        let place = usize::try_from(choice.checked_rem(count)?).unwrap_or(0);
        let key = server.space.keys().nth(place)?.0.to_vec();
        server.space.remove(&key);
        Some(key)
    }

    /// The replica catches up with everything so far. The replica of a new store is empty.
    pub fn replicate(&mut self) {
        self.vm().server().space.replicate();
    }

    /// The replica takes over: writes since it last caught up are lost, and so are the scripts.
    pub fn fail_over(&mut self) {
        self.vm().server().space.fail_over();
        self.flush_scripts();
    }

    /// Begins a call from outside.
    fn begin(&self, now: u64) -> Result<(), ServerError> {
        let mut server = self.vm().server();
        let Server {
            space,
            condition,
            counts,
            ..
        } = &mut *server;
        counts.calls += 1;
        space.now = now;
        match condition {
            StoreCondition::Loading => Err(ServerError::new(LOADING)),
            StoreCondition::Busy => Err(ServerError::new(BUSY)),
            StoreCondition::Well | StoreCondition::ReadOnly | StoreCondition::OutOfMemory => Ok(()),
        }
    }

    fn vm(&self) -> &Vm {
        self.vm.as_ref().expect("only drop takes it")
    }

    fn vm_mut(&mut self) -> &mut Vm {
        self.vm.as_mut().expect("only drop takes it")
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(vm) = self.vm.take() {
            vm.put_back();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Store");
        shown.field("server", &*self.vm().server());
        shown.field("scripts", &self.scripts).finish()
    }
}
