//! The simulated store of the world, beside a real one.

mod commands;
mod denied;
mod expiry;
mod faults;
mod flaps;
mod histories;
mod resets;
mod sandbox;
mod scripts;
mod settles;
mod single;
mod structs;
mod together;

use tollgate_testkit::redis::{Client, Reply, Server};
use tollgate_testkit::traffic::Random;
use tollgate_testkit::world::{ServerError, Store};

/// Whether the long variants are to run.
fn is_soak() -> bool {
    std::env::var_os("TOLLGATE_SOAK").is_some()
}

/// How many, or many more if time doesn't matter.
fn at_length(count: u64) -> u64 {
    if is_soak() { 50 * count } else { count }
}

/// One of these.
fn pick<'a, T: ?Sized>(random: &mut Random, from: &[&'a T]) -> &'a T {
    let count = u64::try_from(from.len()).expect("a few");
    from[usize::try_from(random.below(count)).expect("a few")]
}

/// A simulated store and a real one, with the same requests.
struct Both {
    _server: Server,
    real: Client,
    simulated: Store,
    /// The requests since both were empty.
    history: Vec<String>,
}

impl Both {
    fn new() -> Self {
        let server = Server::start();
        Self {
            real: server.client().expect("a server that runs"),
            _server: server,
            simulated: Store::new(),
            history: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.command(&["FLUSHALL"]).expect("an empty server");
        self.simulated = Store::new();
        self.history.clear();
    }

    /// The real one's clock, in microseconds.
    fn time(&mut self) -> u64 {
        let time = self.command(&["TIME"]).expect("the time");
        let part = |place: usize| time.items()[place].integer().expect("a number");
        u64::try_from(part(0) * 1_000_000 + part(1)).expect("a time after 1970")
    }

    /// Asks the real one alone.
    fn command(&mut self, words: &[&str]) -> Result<Reply, String> {
        self.real.command(words)
    }

    /// Runs one command on both.
    ///
    /// # Panics
    /// If they differ.
    fn same(&mut self, words: &[&[u8]]) -> Result<Reply, String> {
        let now = self.time();
        let simulated = self.simulated.command(now, words);
        let real = self.real.command(words);
        self.compare(
            format!("{}", words.join(&b' ').escape_ascii()),
            simulated,
            real,
        )
    }

    /// Runs a script on both.
    ///
    /// # Panics
    /// If they differ.
    fn same_script(&mut self, script: &str, args: &[&[u8]]) -> Result<Reply, String> {
        let now = self.time();
        let simulated = self.simulated.eval(now, script, &[], args);
        let mut words = vec![&b"EVAL"[..], script.as_bytes(), b"0"];
        words.extend(args);
        let real = self.real.command(&words);
        let args: Vec<String> = args
            .iter()
            .map(|arg| arg.escape_ascii().to_string())
            .collect();
        self.compare(format!("{script}\n  {args:?}"), simulated, real)
    }

    fn compare(
        &mut self,
        asked: String,
        simulated: Result<Reply, ServerError>,
        real: Result<Reply, String>,
    ) -> Result<Reply, String> {
        let shown = |said: &Result<Reply, String>| {
            let said = said.clone().unwrap_or_else(Reply::Error);
            said.to_string()
        };
        let simulated = simulated.map_err(|error| error.to_string());
        let history = self.history.join("\n");
        assert!(
            simulated == real,
            "simulated: {}\nreal: {}\nof {asked}\nafter\n{history}",
            shown(&simulated),
            shown(&real),
        );
        self.history.push(format!("{asked} → {}", shown(&real)));
        real
    }
}
