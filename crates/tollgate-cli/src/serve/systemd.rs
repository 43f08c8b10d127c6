//! What systemd is told of the service (`Type=notify`): one datagram an event to the socket that it names.

use std::ffi::{OsStr, OsString};
use std::io;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Where the socket is.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// How often a sign of life is wanted, in microseconds, and by which process.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";
const WATCHDOG_PID_VARIABLE: &str = "WATCHDOG_PID";

/// Clients may come.
pub(super) const READY: &str = "READY=1\nSTATUS=serving";
/// The policy is read again; [`READY`] follows.
pub(super) const RELOADING: &str = "RELOADING=1\nSTATUS=reading the policy";
/// It ends once all is answered.
pub(super) const STOPPING: &str = "STOPPING=1\nSTATUS=draining";
/// One sign of life.
pub(super) const WATCHDOG_PING: &str = "WATCHDOG=1";

/// Tells the manager of services that started this process, if one did.
#[derive(Debug, Default)]
pub(super) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    every: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names.
    pub(super) fn from_environment() -> Self {
        Self::connect(std::env::var_os(SOCKET_VARIABLE), |name| {
            std::env::var(name).ok()
        })
    }

    fn connect(socket: Option<OsString>, other: impl Fn(&str) -> Option<String>) -> Self {
        let Some(Ok(address)) = socket.as_deref().map(socket_address) else {
            return Self::default();
        };
        let Ok(socket) = UnixDatagram::unbound() else {
            return Self::default();
        };
        // A manager that is stuck keeps nobody waiting.
        let _ = socket.set_nonblocking(true);
        let own = std::process::id().to_string();
        let is_own = other(WATCHDOG_PID_VARIABLE).is_none_or(|process| process == own);
        let micros = other(WATCHDOG_VARIABLE).and_then(|text| text.parse().ok());
        let micros = micros.filter(|micros: &u64| is_own && *micros > 0);
        Self {
            socket: Some((socket, address)),
            // Two signs of life for each that is wanted.
            every: micros.map(|micros| Duration::from_micros(micros.div_ceil(2))),
        }
    }

    /// Signs of life; none are wanted by default. Whoever polls this shows that the service's threads run.
    pub(super) fn watchdog_ticks(&self) -> Option<Interval> {
        let mut signs = interval(self.every?);
        signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(signs)
    }

    /// Tells of one event.
    pub(super) fn notify(&self, event: &str) {
        if let Some((socket, address)) = &self.socket {
            // A service runs on if nobody wants to know.
            let _ = socket.send_to_addr(event.as_bytes(), address);
        }
    }
}

/// A path, or after `@` a name that no file system has, which is Linux' own.
fn socket_address(text: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let [b'@', name @ ..] = text.as_bytes() {
        return <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name);
    }
    SocketAddr::from_pathname(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let every = |set: &[(&str, &str)]| {
            let set = |name: &str| {
                let found = set.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            ServiceManager::connect(Some("@tollgate-test".into()), set).every
        };
        let own = std::process::id().to_string();
        let second = Some(Duration::from_secs(1));
        assert_eq!(every(&[]), None);
        assert_eq!(every(&[("WATCHDOG_USEC", "2000000")]), second);
        let both = [("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", own.as_str())];
        assert_eq!(every(&both), second);
        assert_eq!(
            every(&[("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", "1")]),
            None
        );
        assert_eq!(every(&[("WATCHDOG_USEC", "soon")]), None);
    }
}
