//! A small Redis: strings and sorted sets that expire, and scripts in the Lua of the real one.
//!
//! It is deterministic: time comes with each call, chance comes as numbers, and nothing happens by itself. It
//! knows nothing of clients and networks. What it doesn't know it refuses as an unknown command.

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

/// A store in memory, with its time and its faults given from outside. Times are microseconds, and each may
/// be earlier than the one before.
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
    /// The scripts that this store knows; its Lua may know more.
    scripts: BTreeSet<String>,
}

/// How a store is.
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
    /// It does what it is asked.
    #[default]
    Well,
    /// A replica: writes are refused, and what is past its time is left to its master to delete.
    ReadOnly,
    /// Its memory is full: what may need more is refused, but for scripts that have begun to write.
    OutOfMemory,
    /// It reads its data: everything is refused.
    Loading,
    /// A script doesn't end: everything is refused.
    Busy,
}

/// What a store has done so far.
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
    /// What it was asked from outside, refused or not.
    pub calls: u64,
    /// Scripts that it ran.
    pub scripts: u64,
    /// Commands that it ran, those of scripts too.
    pub commands: u64,
}

impl Store {
    /// One with nothing in it.
    pub fn new() -> Self {
        Self {
            vm: Some(Vm::take()),
            scripts: BTreeSet::new(),
        }
    }

    /// Remembers a script, and says by which name.
    ///
    /// # Errors
    /// If it isn't Lua.
    pub fn load(&mut self, script: &str) -> Result<String, ServerError> {
        let sha = Sha1::from(script).digest().to_string();
        self.vm_mut().compile(&sha, script)?;
        self.scripts.insert(sha.clone());
        Ok(sha)
    }

    /// Runs a script that it remembers.
    ///
    /// # Errors
    /// `NOSCRIPT` if it doesn't, or what the script or the store's condition says.
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

    /// Runs a script, and remembers it.
    ///
    /// # Errors
    /// If it isn't Lua, or what the script or the store's condition says.
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
    /// What the command or the store's condition says.
    pub fn command(&mut self, now: u64, words: &[&[u8]]) -> Result<Reply, ServerError> {
        self.begin(now)?;
        self.vm().server().run(Origin::Client, words)
    }

    /// Every key that is kept, in order; those that are past their time and not yet deleted too.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let server = self.vm().server();
        server.space.keys().map(|(key, _)| key.to_vec()).collect()
    }

    /// The millisecond at whose end a key is past its time; nothing if it has none, or isn't there.
    pub fn expires_at(&self, key: &[u8]) -> Option<u64> {
        let server = self.vm().server();
        let expires = server.space.entry(key)?.expires?;
        u64::try_from(expires).ok()
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.vm().server().counts
    }

    /// Makes it fail in some way, or not any more.
    pub fn set_condition(&mut self, condition: StoreCondition) {
        let mut server = self.vm().server();
        server.condition = condition;
        server.space.past = match condition {
            StoreCondition::ReadOnly => ExpiredKeyAction::Hides,
            _ => ExpiredKeyAction::Deletes,
        };
    }

    /// Restarts with nothing: no keys and no scripts. The replica has what it had.
    pub fn restart_empty(&mut self) {
        self.vm().server().space.clear();
        self.flush_scripts();
    }

    /// Forgets the scripts, as a restart does that keeps the keys.
    pub fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Deletes some of the keys that are past their time, as a real one does when it finds the time to: each
    /// or not, as the number says. Others are deleted when somebody looks. It shows once the clock steps back.
    pub fn expire_some(&mut self, now: u64, choice: u64) {
        let mut server = self.vm().server();
        server.space.now = now;
        server.space.expire_some(&mut Random::new(choice));
    }

    /// Deletes a key, as a full store may; which, the number says. Nothing if there is none.
    pub fn evict(&mut self, choice: u64) -> Option<Vec<u8>> {
        let mut server = self.vm().server();
        let count = u64::try_from(server.space.keys().len()).unwrap_or(u64::MAX);
        let place = usize::try_from(choice.checked_rem(count)?).unwrap_or(0);
        let key = server.space.keys().nth(place)?.0.to_vec();
        server.space.remove(&key);
        Some(key)
    }

    /// The replica catches up with everything so far. A new store's replica has nothing.
    pub fn replicate(&mut self) {
        self.vm().server().space.replicate();
    }

    /// The replica takes over: what was written since it last caught up is lost, and so are the scripts.
    pub fn fail_over(&mut self) {
        self.vm().server().space.fail_over();
        self.flush_scripts();
    }

    /// Begins what was asked from outside.
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
