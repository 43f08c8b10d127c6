//! Starts a service that goes on where the one before stopped.

use tollgate::clock::Clock;
use tollgate_engine::Policy;
use tollgate_engine::backend::MemoryBuilder;

use super::{Opened, Opening, StateOptions, keeper};
use crate::server::Server;
use crate::settings::Settings;
use crate::start_error::StartError;

impl Server {
    /// Starts a service that keeps its state in this process, and goes on where the one before stopped that kept it in
    /// the same folder: what keys have spent and used stays spent and used, for each limit that has the same name and
    /// algorithm. What is held isn't kept.
    ///
    /// If the process is killed, what was decided since the state was saved last is forgotten.
    ///
    /// # Errors
    /// What keeps it from starting. State that can't be read doesn't: it is set aside, and the log says so.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate_engine::Policy;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_testkit::scratch::Scratch;
    /// # let scratch = Scratch::new("server-with-state");
    /// # let folder = scratch.path("state");
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_server::{Address, Server, Settings, StateOptions};
    ///
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 10/s}]", Format::Yaml)?.policy;
    /// # let any: Address = "127.0.0.1:0".parse()?;
    /// # let settings =
    /// #     Settings { http: any.clone(), grpc: any.clone(), resp: any, admin: Address::Off, ..Settings::default() };
    /// let options = StateOptions::in_folder(&folder);
    /// let server = Server::with_state(policy, (Memory::builder(), options), settings).await?;
    /// assert_eq!(server.state().map(|told| (told.saves, told.failures)), Some((1, 0)));
    /// server.stop().await;
    /// assert!(folder.join("snapshot").exists());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_state<C, W>(
        policy: Policy,
        (builder, options): (MemoryBuilder<C, W>, StateOptions),
        settings: Settings,
    ) -> Result<Self, StartError>
    where
        C: Clock + Clone + 'static,
        W: Clock + Clone + 'static,
    {
        let opening = Opening {
            policy: policy.divided(settings.replicas).policy,
            builder,
            throttle_keys: settings.throttle_keys,
            options: &options,
            log: &settings.log,
        };
        let Opened {
            lost,
            folder,
            engine,
            cells,
        } = opening.open()?;
        let begin = keeper::begin(folder, options, lost);
        Self::start(engine, policy, cells, (settings, Some(begin))).await
    }
}
