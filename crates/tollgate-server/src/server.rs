//! Starts and stops a service. All listeners are bound before the first client is served, and they stop together.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::clock::Clock;
use tollgate_engine::backend::{Memory, MemoryBuilder};
use tollgate_engine::diff::PolicyDiff;
use tollgate_engine::watch::FileWatcher;
use tollgate_engine::{Engine, Policy, PolicyError};
use tollgate_redis::Redis;

use crate::connection_limit::DescriptorLimit;
use crate::credentials::{Credentials, check_admin_exposure};
use crate::decision_service::{CounterStore, InitialLimits};
use crate::drain::{DrainOutcome, DrainSettings, ListenerGroup};
use crate::file_reload::{self, FileReloader};
use crate::health::Health;
use crate::health_watch;
use crate::listeners::Listeners;
use crate::log::Log;
use crate::operators::{self, TokenFile};
use crate::policy_reload::{PolicyWatch, Reloadable, Reloader};
use crate::service::Service;
use crate::settings::{Addresses, Settings};
use crate::start_error::StartError;
use crate::state::{SaveProgress, StateOpener, StateOptions, StateStatus};
use crate::telemetry::Telemetry;
use crate::throttle_keys::{LocalThrottleKeys, StoreThrottleKeys};
use crate::tls::Certificates;

mod state_saver;

use state_saver::{StartSaver, StateSaver};

/// A running service. It stops when it is stopped or dropped.
#[derive(derive_more::Debug)]
#[debug("Server {{ addresses: {addresses:?}, concerns: {:?}, .. }}", health.concerns())]
pub struct Server {
    addresses: Addresses,
    /// The listeners for clients, and those for operators (admin and metrics).
    clients: ListenerGroup,
    operators: ListenerGroup,
    /// Background tasks: expiry of reservations, health checks, reloads of files.
    tasks: JoinSet<()>,
    service: Arc<dyn Reloadable>,
    log: Log,
    health: Health,
    renewed: Arc<FileReloader>,
    state: Arc<SaveProgress>,
    ready_file: Option<PathBuf>,
    /// The generated admin token, if there is one. Its file is removed on drop.
    _token: Option<Arc<TokenFile>>,
    /// Watches the policy file.
    _watching: Option<FileWatcher>,
    /// Saves the state of the counters.
    keeper: Option<StateSaver>,
}

impl Server {
    /// Starts a service that keeps its counters in this process. `clock` must be the clock of `memory`.
    ///
    /// # Errors
    /// The reason why the service can't start.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::clock::Monotonic;
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::backend::{Memory, MemoryBuilder};
    /// use tollgate_engine::document::Format;
    /// use tollgate_server::{Address, Server, Settings};
    ///
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 10/s}]", Format::Yaml)?.policy;
    /// let any: Address = "127.0.0.1:0".parse()?;
    /// let settings =
    ///     Settings { http: any.clone(), grpc: any.clone(), resp: any, admin: Address::Disabled, ..Settings::default() };
    /// let server = Server::in_memory(policy, Memory::new(), Monotonic::default(), settings).await?;
    /// println!("{:?}", server.addresses().http);
    /// server.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn in_memory<C, W>(
        policy: Policy,
        memory: Memory<C, W>,
        clock: C,
        settings: Settings,
    ) -> Result<Self, StartError>
    where
        C: Clock + 'static,
        W: Clock + 'static,
    {
        let part = policy.share_for_replicas(settings.replicas).policy;
        let limits = InitialLimits {
            cells: LocalThrottleKeys::new(settings.max_throttle_keys, clock)
                .map_err(StartError::Throttle)?,
            engine: Engine::new(part, memory).map_err(StartError::Policy)?,
            whole: policy,
        };
        Self::start(limits, settings, None).await
    }

    /// Starts a service that shares its counters with other services in a store.
    ///
    /// # Errors
    /// The reason why the service can't start.
    pub async fn on_store(
        policy: Policy,
        redis: Redis,
        mut settings: Settings,
    ) -> Result<Self, StartError> {
        settings.replicas = 1;
        let cells = StoreThrottleKeys::new(&redis, settings.throttle_on_store_failure);
        let limits = InitialLimits {
            cells: cells.map_err(|error| StartError::State(error.to_string()))?,
            engine: Engine::new(policy.clone(), redis).map_err(StartError::Policy)?,
            whole: policy,
        };
        Self::start(limits, settings, None).await
    }

    /// Starts a service that keeps its counters in this process and saves them in a folder. It continues from the state
    /// that the previous process left there: spent rates and used quotas stay spent, for each limit whose name and
    /// algorithm are the same. Permits and reservations aren't saved.
    ///
    /// If the process is killed, decisions since the last save are forgotten.
    ///
    /// # Errors
    /// The reason why the service can't start. Unreadable state is no error: it is set aside and logged.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate_engine::Policy;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_testkit::temp_folder::TempFolder;
    /// # let scratch = TempFolder::new("server-with-state");
    /// # let folder = scratch.path("state");
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_server::{Address, Server, Settings, StateOptions};
    ///
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 10/s}]", Format::Yaml)?.policy;
    /// # let any: Address = "127.0.0.1:0".parse()?;
    /// # let settings =
    /// #     Settings { http: any.clone(), grpc: any.clone(), resp: any, admin: Address::Disabled, ..Settings::default() };
    /// let options = StateOptions::in_folder(&folder);
    /// let server = Server::with_state(policy, Memory::builder(), options, settings).await?;
    /// assert_eq!(server.state_status().map(|told| (told.saves, told.failures)), Some((1, 0)));
    /// server.stop().await;
    /// assert!(folder.join("snapshot").exists());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_state<C, W>(
        policy: Policy,
        builder: MemoryBuilder<C, W>,
        options: StateOptions,
        settings: Settings,
    ) -> Result<Self, StartError>
    where
        C: Clock + Clone + 'static,
        W: Clock + Clone + 'static,
    {
        let opening = StateOpener {
            policy: policy.share_for_replicas(settings.replicas).policy,
            builder,
            throttle_keys: settings.max_throttle_keys,
            options: &options,
            log: &settings.log,
        };
        let opened = opening.open()?;
        let limits = InitialLimits {
            engine: opened.found.engine,
            cells: opened.found.cells,
            whole: policy,
        };
        let begin = state_saver::begin(opened.folder, options, opened.lost);
        Self::start(limits, settings, Some(begin)).await
    }

    async fn start<B: CounterStore>(
        limits: InitialLimits<B>,
        settings: Settings,
        keep: Option<StartSaver<B>>,
    ) -> Result<Self, StartError> {
        if let Some(path) = &settings.ready_file {
            // A process that waits for the ready file must not find one that a previous service left.
            let _ = std::fs::remove_file(path);
        }
        check_admin_exposure(&settings)?;
        let descriptors = DescriptorLimit::raise();
        let certificates = settings.tls.clone().map(Certificates::read).transpose();
        let certificates = certificates.map_err(StartError::Tls)?.map(Arc::new);
        let listeners = Listeners::bind(&settings, certificates.as_ref()).await?;
        let mut addresses = listeners.addresses();
        let monitor = Telemetry::new(&settings);
        let (log, health) = (monitor.log.clone(), monitor.health.clone());
        let admin = addresses.admin.as_ref();
        let (credentials, made) = Credentials::load(&settings, admin, certificates, health.clone());
        let token = credentials.admin_token.as_ref();
        addresses.admin_token_file = token.map(|token| token.file().into());
        let renewed = Arc::clone(&credentials.file_reloader);
        let (watch, ready_file) = (settings.policy_watch, settings.ready_file.clone());
        let service = Arc::new(Service::new(limits, credentials, monitor, settings));
        let keeper = keep.map(|begin| begin(&service)).transpose()?;
        let reloadable: Arc<dyn Reloadable> = Arc::clone(&service) as _;
        let watching = match watch {
            PolicyWatch::On => Reloader::watch(&reloadable).map_err(StartError::Watch)?,
            PolicyWatch::Off => None,
        };
        renewed.warn_of_open_files();
        if let Some(path) = &ready_file {
            write_atomically(path, &addresses.to_json())?;
        }
        let mut tasks = JoinSet::new();
        let watched = Arc::clone(&service);
        tasks.spawn(async move { watched.decider.reservations.expire_forever().await });
        tasks.spawn(health_watch::watch(Arc::clone(&service)));
        tasks.spawn(file_reload::watch(Arc::clone(&renewed)));
        let made = made.map(Arc::new);
        if let Some(made) = &made {
            tasks.spawn(operators::keep(Arc::downgrade(made)));
        }
        let (clients, operators) = listeners.serve(&service, descriptors);
        Ok(Self {
            addresses,
            clients,
            operators,
            tasks,
            service: reloadable,
            log,
            health,
            renewed,
            state: Arc::clone(&service.state),
            ready_file,
            _token: made,
            _watching: watching,
            keeper,
        })
    }

    /// The addresses that the service listens on.
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Puts another policy in force. Decisions continue meanwhile, and keys keep what they have spent: see
    /// [`Engine::reload`].
    ///
    /// # Errors
    /// The policy can't be put in force; the previous one stays in force.
    pub fn apply_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        self.service.put_in_force(policy)
    }

    /// Reads the policy file again and puts it in force. `from` names the caller in the log. Returns what changed.
    /// Decisions continue meanwhile by the previous policy.
    ///
    /// # Errors
    /// Why the previous policy stays in force.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate::clock::Monotonic;
    /// # use tollgate_engine::Policy;
    /// # use tollgate_engine::backend::{Memory, MemoryBuilder};
    /// # use tollgate_server::{Address, Server, Settings};
    /// # let off = || Address::Disabled;
    /// # let settings = Settings { http: off(), grpc: off(), resp: off(), admin: off(), ..Settings::default() };
    /// # let server = Server::in_memory(Policy::default(), Memory::new(), Monotonic::default(), settings).await?;
    /// let why = server.reload("me").await.expect_err("nothing to read");
    /// assert_eq!(why, "the policy in force is from no file");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reload(&self, from: &str) -> Result<PolicyDiff, String> {
        // Reading files blocks, so it runs on a blocking thread.
        let (service, from) = (Arc::clone(&self.service), from.to_owned());
        let read = move || service.reloader().reload(&*service, &from);
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The log of the service.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// The policy in force. With several replicas, this replica's share of it.
    pub fn policy(&self) -> Arc<Policy> {
        self.service.policy()
    }

    /// Reads certificates and secrets again, as the service does by itself every few seconds and on SIGHUP. New
    /// connections use the changed files.
    ///
    /// # Errors
    /// Which file can't be used, and why. The previous one stays in force.
    pub fn reload_files(&self) -> Result<(), String> {
        self.renewed.reload_files()
    }

    /// When the served certificate expires, in seconds of the Unix epoch; `None` without TLS.
    pub fn certificate_not_after(&self) -> Option<i64> {
        self.renewed.certificate_not_after()
    }

    /// The outcome of saving state; `None` if no state is saved. [`with_state`](Self::with_state) has an example.
    pub fn state_status(&self) -> Option<StateStatus> {
        self.state.status()
    }

    /// Stops immediately: listeners and connections are closed even with requests in flight. The state is saved.
    pub async fn stop(mut self) {
        self.clients.abort().await;
        self.operators.abort().await;
        self.end().await;
    }

    /// Stops without losing a response: health checks fail first, then listeners close, and each connection closes once
    /// its requests are answered. Connections that are still open at the timeout are cut.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate::clock::Monotonic;
    /// # use tollgate_engine::Policy;
    /// # use tollgate_engine::backend::{Memory, MemoryBuilder};
    /// # use tollgate_server::{Address, Server, Settings};
    /// use tollgate_server::DrainSettings;
    /// # let off = || Address::Disabled;
    /// # let settings = Settings { http: off(), grpc: off(), resp: off(), admin: off(), ..Settings::default() };
    /// # let server = Server::in_memory(Policy::default(), Memory::new(), Monotonic::default(), settings).await?;
    ///
    /// let drained = server.drain(DrainSettings::default()).await;
    /// assert_eq!(drained.aborted, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(mut self, drain: DrainSettings) -> DrainOutcome {
        let (clients, operators) = (&mut self.clients, &mut self.operators);
        let drained = drain.run(clients, operators, &self.health, &self.log);
        let drained = drained.await;
        self.end().await;
        drained
    }

    /// The last steps, once no requests arrive any more.
    async fn end(mut self) {
        // Background tasks stop before the last save, so that the snapshot has their changes.
        self.tasks.shutdown().await;
        if let Some(keeper) = &mut self.keeper {
            keeper.save_the_last().await;
        }
        if let Some(path) = &self.ready_file {
            // A service that started meanwhile may have written its own ready file.
            let is_own = std::fs::read(path).is_ok_and(|text| text == self.addresses.to_json());
            if is_own {
                // The next start removes a file that stays.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Writes a file atomically: readers see the old content or the whole new one.
fn write_atomically(path: &std::path::Path, text: &[u8]) -> Result<(), StartError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| StartError::ReadyFile(path.to_owned(), error))
}
