//! `tollgate serve`: a rate-limit service on one policy.

use std::io::{self, Write};
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate_engine::backend::{Memory, RefundResult};
use tollgate_engine::document::Format;
use tollgate_engine::{LoadedPolicy, Policy};
use tollgate_http::HeaderDialect;
use tollgate_redis::{Address as Store, Redis};
use tollgate_server::{Address, Log, Server, StartError, StoreEvents};

use crate::outcome::CliError;
use crate::policy;

mod environment;
mod options;
mod preflight;
mod print_policy;
mod settings;
mod signals;
mod startup;
mod systemd;

pub use options::{
    CheckOptions, LifecycleOptions, LimitOptions, ObservabilityOptions, PersistenceOptions,
    SecurityOptions, ServeOptions,
};
pub(crate) use settings::read_command_line;
pub use settings::{Origin, Setting};
pub use signals::EndSignal;

use signals::Signals;
use systemd::ServiceManager;

/// How long a store may take to answer for the first time.
const STORE_READY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the log may take to be written before the service starts, and when it ends.
const LOG_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The example policy, for a start without one.
const EXAMPLE_POLICY: &str = include_str!("serve/example.yaml");

impl ServeOptions {
    fn is_in_memory(&self) -> bool {
        self.backend == "memory"
    }

    fn load_policy(&self) -> Result<LoadedPolicy, CliError> {
        match &self.policy {
            Some(path) => policy::read_checked_policy(path),
            None => Ok(Policy::from_text(EXAMPLE_POLICY, Format::Yaml)?),
        }
    }

    /// Checks that the options fit together.
    fn validate(&self) -> Result<(), CliError> {
        let wrong = |why: String| Err(CliError::usage(why));
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
        if let (false, Some(folder)) = (self.is_in_memory(), &self.state_options.state) {
            return wrong(format!(
                "--state {} is for --backend memory: a store keeps what is counted there by itself",
                folder.display()
            ));
        }
        self.security.validate().map_err(CliError::usage)?;
        for (flag, dialects) in [
            ("headers", &self.headers),
            ("rls-headers", &self.rls_headers),
        ] {
            let mut alike = [HeaderDialect::Draft3, HeaderDialect::XRateLimit].iter();
            if alike.all(|one| dialects.contains(one)) {
                return wrong(format!(
                    "--{flag}: draft-3 and github have the same names for different things: choose one of both"
                ));
            }
        }
        self.validate_addresses().map_err(CliError::usage)
    }

    /// Checks that at least one listener is on, and that each has an address of its own.
    fn validate_addresses(&self) -> Result<(), String> {
        let all = self.listeners();
        let is_off = |(.., address): &(_, _, &Address)| **address == Address::Disabled;
        if all[..3].iter().all(is_off) {
            let why = "--http, --grpc and --resp are all off: nobody could ask anything";
            return Err(why.to_owned());
        }
        for (number, (_, name, address)) in all.iter().enumerate() {
            let is_any = matches!(address, Address::Tcp(tcp) if tcp.port() == 0);
            let mut before = all[..number].iter();
            let same = before.find(|(.., other)| other == address);
            if let Some((_, other, _)) = same.filter(|_| !is_any && **address != Address::Disabled)
            {
                let [other, name] = [other, name].map(|name| name.to_lowercase());
                return Err(format!(
                    "--{other} and --{name} are both {address}: each needs an address of its own"
                ));
            }
        }
        Ok(())
    }

    async fn start_service(
        &self,
        out: &mut impl Write,
        log: &Log,
    ) -> Result<RunningService, CliError> {
        self.validate()?;
        let checked = self.load_policy().map_err(CliError::in_one_line)?;
        let mut settings = self.settings(log)?;
        for warning in self.warnings(&checked) {
            log.warn(&warning, &[]);
        }
        // Warnings come before all other output, so they are written first.
        log.drain(LOG_DRAIN_TIMEOUT);
        let policy = checked.policy;
        let (server, redis) = if self.is_in_memory() {
            let server = match self.state_options.state_options() {
                Some(keep) => Server::with_state(policy, Memory::builder(), keep, settings).await,
                None => {
                    let clock = Monotonic::default();
                    Server::in_memory(policy, Memory::new(), clock, settings).await
                }
            };
            (server, None)
        } else {
            let events = StoreEvents::new(log.clone());
            settings.store_events = Some(events.clone());
            let redis = self.connect_store(log, events).await?;
            let server = Server::on_store(policy, redis.clone(), settings).await;
            (server, Some(redis))
        };
        let server = server.map_err(|error| match error {
            StartError::OpenAdmin(_) => CliError::usage(error),
            error => CliError::failed(error),
        })?;
        let _ = self.print_listeners(out, server.addresses());
        Ok(RunningService { server, redis })
    }

    /// Connects to the store. A temporary error is not fatal, because the store may answer later. An error that needs
    /// a change of the settings is.
    async fn connect_store(&self, log: &Log, events: StoreEvents) -> Result<Redis, CliError> {
        let builder = Redis::builder(&self.backend);
        let builder = builder.map_err(CliError::usage)?;
        let own = events.clone();
        let redis = builder
            .timeout(self.store_timeout)
            .on_event(move |event| own.record(event))
            .build()
            .map_err(CliError::failed)?;
        let Err(error) = redis.ready(STORE_READY_TIMEOUT).await else {
            return Ok(redis);
        };
        let shown = Store::without_login(&self.backend);
        if self.require_store || error.kind().is_lasting() {
            return Err(CliError::failed(format_args!("{shown}: {error}")));
        }
        events.report_unreachable(&error.to_string());
        let why = format!(
            "{shown}: {error}; until it can be asked, each rule's on_store_failure decides"
        );
        log.warn(&why, &[]);
        log.drain(LOG_DRAIN_TIMEOUT);
        Ok(redis)
    }
}

/// A running service, and the store that it counts in.
struct RunningService {
    server: Server,
    redis: Option<Redis>,
}

/// Runs the service until a signal ends it. The addresses go to `out`, and the log to standard error.
///
/// # Errors
/// The service can't start.
pub fn run_service(options: &ServeOptions, out: &mut impl Write) -> Result<(), CliError> {
    let log = options.observability.open_log().map_err(CliError::failed)?;
    let set = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for unknown in environment::unknown_variable_warnings(set) {
        log.warn(&unknown, &[]);
    }
    if options.checks.print_policy {
        log.drain(LOG_DRAIN_TIMEOUT);
        return options.print_policy(out);
    }
    if options.checks.print_config {
        log.drain(LOG_DRAIN_TIMEOUT);
        options.validate()?;
        let lines: String = options.origins.iter().map(Setting::line).collect();
        return out.write_all(lines.as_bytes()).map_err(CliError::failed);
    }
    let runtime = build_runtime().map_err(CliError::failed)?;
    if options.checks.check {
        let checked = runtime.block_on(options.preflight(out, &log));
        runtime.shutdown_background();
        log.drain(LOG_DRAIN_TIMEOUT);
        return checked;
    }
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen().map_err(CliError::failed)?;
        let started = tokio::select! {
            started = options.start_service(out, &log) => started?,
            _ = signals.next_end_signal() => return Ok(()),
        };
        let manager = ServiceManager::from_environment();
        manager.notify(systemd::READY);
        signals.handle_until_end(&started.server, &manager).await;
        manager.notify(systemd::STOPPING);
        let log = started.server.log().clone();
        let leave = async {
            if let Some(redis) = started.redis {
                // Returning leased tokens lets other nodes use them before the leases expire.
                log_store_close(&log, redis.close().await);
            }
        };
        let drain = options.lifetime.drain();
        let drained = signals.drain(started.server, drain, leave).await;
        drained.map_err(|signal| {
            let why = "ended it at once: what was asked may not be answered";
            CliError::new(
                signal.exit_code(),
                format_args!("a second signal ({signal}) {why}"),
            )
        })
    });
    // Background tasks are not awaited.
    runtime.shutdown_background();
    log.drain(LOG_DRAIN_TIMEOUT);
    ended
}

/// Logs whether leased tokens were returned.
fn log_store_close(log: &Log, closed: RefundResult) {
    match closed {
        RefundResult::Refunded => {
            let event = "what was taken from the store in advance is given back";
            log.info(event, &[]);
        }
        RefundResult::Lost => {
            let event = "what was taken from the store in advance could not be given back";
            let help = "the store gave no answer; others can have it when it has run out";
            log.warn(event, &[("help", &help)]);
        }
    }
}

/// A runtime with a thread for each core. A single core gets a runtime on the current thread, because there is no
/// other work to share.
fn build_runtime() -> io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_all().build()
}
