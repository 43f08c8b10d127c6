//! `tollgate serve`: a rate-limit service on one policy.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate_engine::backend::{Memory, StoreEvent};
use tollgate_engine::document::Format;
use tollgate_engine::{Checked, Policy};
use tollgate_http::Dialect;
use tollgate_redis::{Address as Store, Redis};
use tollgate_server::{Address, Server, StartError};

use crate::policy::{self, PolicyFailure};

mod options;
mod settings;
mod told;

pub use options::{Most, Serve};
pub use settings::{Origin, Setting};

/// A store is given so long to answer for the first time.
const MEET_STORE: Duration = Duration::from_secs(2);

/// The policy of those who have none yet.
const EXAMPLE: &str = include_str!("serve/example.yaml");

/// Why a service didn't start, or ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeFailure {
    /// What was asked for can't be done.
    Usage(String),
    /// The policy can't be used.
    Policy(PolicyFailure),
    /// It couldn't start.
    Start(StartError),
    /// The store can't be asked.
    Store(String),
    /// The system refused something that every program needs.
    System(io::Error),
}

impl Serve {
    fn is_in_memory(&self) -> bool {
        self.backend == "memory"
    }

    fn policy(&self) -> Result<Checked, ServeFailure> {
        match &self.policy {
            Some(path) => policy::checked(path).map_err(ServeFailure::Policy),
            None => Policy::from_text(EXAMPLE, Format::Yaml)
                .map_err(|rejected| ServeFailure::Policy(rejected.into())),
        }
    }

    /// What was asked for makes sense together.
    fn check(&self) -> Result<(), ServeFailure> {
        let wrong = |why: String| Err(ServeFailure::Usage(why));
        if self.is_in_memory() && self.require_store {
            return wrong("--require-store needs a store: give its URL by --backend".to_owned());
        }
        if !self.is_in_memory()
            && let Err(error) = self.backend.parse::<Store>()
        {
            return wrong(format!(
                "--backend {error}; or write memory, to count in this process"
            ));
        }
        if !self.is_in_memory() && self.replicas > 1 {
            return wrong(format!(
                "--replicas {} is for --backend memory: on a store all replicas count together, and nothing is divided",
                self.replicas
            ));
        }
        for (flag, dialects) in [
            ("headers", &self.headers),
            ("rls-headers", &self.rls_headers),
        ] {
            if [Dialect::Draft3, Dialect::Github]
                .iter()
                .all(|one| dialects.contains(one))
            {
                return wrong(format!(
                    "--{flag}: draft-3 and github have the same names for different things: choose one of both"
                ));
            }
        }
        let all = [
            ("http", &self.http),
            ("grpc", &self.grpc),
            ("resp", &self.resp),
            ("admin", &self.admin),
        ];
        if all[..3]
            .iter()
            .all(|(_, address)| **address == Address::Off)
        {
            let why = "--http, --grpc and --resp are all off: nobody could ask anything";
            return wrong(why.to_owned());
        }
        for (number, (name, address)) in all.iter().enumerate() {
            let is_any = matches!(address, Address::Tcp(tcp) if tcp.port() == 0);
            let mut before = all[..number].iter();
            let same = before.find(|(_, other)| other == address);
            if let Some((other, _)) = same.filter(|_| !is_any && **address != Address::Off) {
                return wrong(format!(
                    "--{other} and --{name} are both {address}: each needs an address of its own"
                ));
            }
        }
        Ok(())
    }

    async fn start(
        &self,
        out: &mut impl Write,
        notes: &mut impl Write,
    ) -> Result<Started, ServeFailure> {
        self.check()?;
        let (checked, settings) = (self.policy()?, self.settings()?);
        // A service runs on if nobody reads what it says.
        let mut warn = |text: &str| drop(writeln!(notes, "warning: {text}"));
        for warning in self.warnings(&checked) {
            warn(&warning);
        }
        let policy = checked.policy;
        let (server, redis) = if self.is_in_memory() {
            let memory = (Memory::new(), Monotonic::default());
            (Server::in_memory(policy, memory, settings).await, None)
        } else {
            let redis = self.store(warn).await?;
            let server = Server::on_store(policy, redis.clone(), settings).await;
            (server, Some(redis))
        };
        let server = server.map_err(ServeFailure::Start)?;
        let _ = self.say(out, server.addresses());
        Ok(Started { server, redis })
    }

    /// The store. One that can't be asked now may be later; one that won't be without a change is an error.
    async fn store(&self, mut warn: impl FnMut(&str)) -> Result<Redis, ServeFailure> {
        let builder = Redis::builder(&self.backend);
        let builder = builder.map_err(|error| ServeFailure::Usage(error.to_string()))?;
        let redis = builder
            .on_event(log_events())
            .build()
            .map_err(|error| ServeFailure::Store(error.to_string()))?;
        let Err(error) = redis.ready(MEET_STORE).await else {
            return Ok(redis);
        };
        let shown = Store::without_login(&self.backend);
        if self.require_store || error.kind().is_lasting() {
            return Err(ServeFailure::Store(format!("{shown}: {error}")));
        }
        warn(&format!(
            "{shown}: {error}; until it can be asked, each rule's on_store_failure decides"
        ));
        Ok(redis)
    }
}

/// Says on standard error what happens to the store while it serves. A failure that goes on is told once.
fn log_events() -> impl Fn(&StoreEvent<'_>) + Send + Sync {
    let last = Mutex::new(String::new());
    move |event| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            StoreEvent::Failed { error, .. } if *last == *error => return,
            StoreEvent::Failed { error, .. } => (*error).clone_into(&mut last),
            StoreEvent::FallbackEnded { .. } => last.clear(),
            _ => {}
        }
        // Nobody is left to tell if that is closed.
        let _ = writeln!(io::stderr(), "store: {event}");
    }
}

/// A service that runs, and the store that it counts in.
struct Started {
    server: Server,
    redis: Option<Redis>,
}

/// Serves until it is told to end. What it serves is said to `out`, and what may not be meant to `notes`.
///
/// # Errors
/// What keeps it from starting.
pub fn serve(
    options: &Serve,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> Result<(), ServeFailure> {
    if options.print_config {
        options.check()?;
        let lines: String = options.origins.iter().map(Setting::line).collect();
        return out
            .write_all(lines.as_bytes())
            .map_err(ServeFailure::System);
    }
    let runtime = runtime().map_err(ServeFailure::System)?;
    runtime.block_on(async {
        let mut end = end().map_err(ServeFailure::System)?;
        let started = tokio::select! {
            started = options.start(out, notes) => started?,
            () = end.recv() => return Ok(()),
        };
        end.recv().await;
        started.server.stop().await;
        if let Some(redis) = started.redis {
            // Others needn't wait until what it has runs out.
            redis.close().await;
        }
        Ok(())
    })
}

/// A thread for each core; with one core the thread that is there already, which has nobody to share with.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_all().build()
}

/// What ends it: SIGTERM, or Ctrl-C.
struct End {
    term: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

fn end() -> io::Result<End> {
    use tokio::signal::unix::{SignalKind, signal};
    Ok(End {
        term: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    })
}

impl End {
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl ServeFailure {
    /// Whether the arguments are at fault.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Policy(PolicyFailure::Usage(_)))
    }
}

impl fmt::Display for ServeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Store(why) => f.write_str(why),
            Self::Policy(PolicyFailure::Rejected(rejected)) => {
                f.write_str(&told::first_error(rejected))
            }
            Self::Policy(failure) => failure.fmt(f),
            Self::Start(error) => error.fmt(f),
            Self::System(error) => error.fmt(f),
        }
    }
}
