//! What a service is told by signals: to read its policy again, to end, and to end at once.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate_server::{DrainSettings, Server};

use super::systemd::{self, ServiceManager};

/// What is saved after a second signal is given so long.
const FINAL_SAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Ends the process after this time, whatever it waits for.
fn exit_after(time: Duration, signal: EndSignal) {
    let wait = move || {
        let (open, nothing) = mpsc::channel::<()>();
        let _ = nothing.recv_timeout(time);
        drop(open);
        std::process::exit(i32::from(signal.exit_code()));
    };
    // Without a thread it ends when what it waits for has ended.
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

/// All signals that are listened to, from before the service starts.
pub(super) struct Signals {
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl EndSignal {
    /// How a process ends that such a signal has ended: by 128 and its number, as shells say it.
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

    /// One that ends the service.
    pub(super) async fn next_end_signal(&mut self) -> EndSignal {
        tokio::select! {
            _ = self.term.recv() => EndSignal::Term,
            _ = self.interrupt.recv() => EndSignal::Interrupt,
        }
    }

    /// Does what signals say, until one ends the service.
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
                // What came of it is in the log. Certificates and secrets are read again by the service itself.
                _ = server.reload("SIGHUP") => manager.notify(systemd::READY),
                // A file that takes long to read keeps nobody from ending.
                _ = self.next_end_signal() => return,
            }
        }
    }

    /// Ends the service, and all that `then` does.
    ///
    /// # Errors
    /// A second signal, which ends it at once.
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
            // State is saved once more on the way: no longer than a disk may take that works.
            exit_after(FINAL_SAVE_TIMEOUT, signal);
            signal
        };
        tokio::select! {
            () = draining => Ok(()),
            signal = again => Err(signal),
        }
    }
}
