//! Hearing that it is enough: SIGINT and SIGTERM.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The numbers of signals that ask to end, as they come. From when this returns the first doesn't end the process by itself; the
/// second does, at once: whoever asks twice may have a reader that takes nothing, and then the first is never looked at.
pub(super) fn listen() -> io::Result<Receiver<i32>> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let (sender, signals) = mpsc::channel();
    let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
    let entered = runtime.enter();
    let (mut interrupts, mut terminates) = (signal(interrupt)?, signal(terminate)?);
    drop(entered);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async {
                for is_first in [true, false] {
                    let kind = tokio::select! {
                        _ = interrupts.recv() => interrupt,
                        _ = terminates.recv() => terminate,
                    };
                    let number = kind.as_raw_value();
                    if !is_first {
                        std::process::exit(128 + number);
                    }
                    if sender.send(number).is_err() {
                        // Nobody listens any more, and the process is about to end.
                        return;
                    }
                }
            });
        })?;
    Ok(signals)
}
