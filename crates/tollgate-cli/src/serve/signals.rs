//! Handles the signals of a service: reload, graceful shutdown, and immediate exit.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate_server::{DrainSettings, Server};

use super::systemd::{self, ServiceManager};

/// How long the final save may take after a second signal.
const FINAL_SAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Exits the process after this time, whatever it still waits for.
fn exit_after(time: Duration, signal: EndSignal) {
    let wait = move || {
        let (open, nothing) = mpsc::channel::<()>();
        let _ = nothing.recv_timeout(time);
        drop(open);
        std::process::exit(i32::from(signal.exit_code()));
    };
    // Without the thread, the process ends once its other tasks have ended.
    let _ = std::thread::Builder::new().spawn(wait);
}

/// A signal that ends a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub enum EndSignal {
    /// SIGTERM.
    #[display("SIGTERM")]
    Term,
    /// SIGINT, by Ctrl-C.
    #[display("SIGINT")]
    Interrupt,
}

/// All signals that are handled, from before the service starts.
pub(super) struct Signals {
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl EndSignal {
    /// The exit code of a process that the signal ended: 128 plus its number, as in shells.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Term => 128 + 15,
            Self::Interrupt => 128 + 2,
        }
    }
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal that ends the service.
    pub(super) async fn next_end_signal(&mut self) -> EndSignal {
        tokio::select! {
            _ = self.term.recv() => EndSignal::Term,
            _ = self.interrupt.recv() => EndSignal::Interrupt,
        }
    }

    /// Handles signals until one ends the service.
    pub(super) async fn handle_until_end(&mut self, server: &Server, manager: &ServiceManager) {
        let mut signs = manager.watchdog_ticks();
        loop {
            let sign = async {
                match &mut signs {
                    Some(signs) => drop(signs.tick().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.term.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {}
                () = sign => {
                    manager.notify(systemd::WATCHDOG_PING);
                    continue;
                }
            }
            manager.notify(systemd::RELOADING);
            tokio::select! {
                // The result is in the log. The service reloads certificates and secrets itself.
                _ = server.reload("SIGHUP") => manager.notify(systemd::READY),
                // A slow reload must not delay the shutdown.
                _ = self.next_end_signal() => return,
            }
        }
    }

    /// Shuts the service down, and then runs `then`.
    ///
    /// # Errors
    /// A second signal arrived, which ends the service immediately.
    pub(super) async fn drain(
        &mut self,
        server: Server,
        drain: DrainSettings,
        then: impl Future<Output = ()>,
    ) -> Result<(), EndSignal> {
        let draining = async {
            server.drain(drain).await;
            then.await;
        };
        let again = async {
            let signal = self.next_end_signal().await;
            // The shutdown saves the state once more. The timeout is enough for a working disk.
            exit_after(FINAL_SAVE_TIMEOUT, signal);
            signal
        };
        tokio::select! {
            () = draining => Ok(()),
            signal = again => Err(signal),
        }
    }
}
