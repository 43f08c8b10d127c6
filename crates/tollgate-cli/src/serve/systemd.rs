//! Notifies systemd of the service's state (`Type=notify`): one datagram per event, to systemd's socket.

use std::ffi::{OsStr, OsString};
use std::io;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// The variable with the path of the socket.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// The variable with the watchdog interval, in microseconds.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";
const WATCHDOG_PID_VARIABLE: &str = "WATCHDOG_PID";

/// The service accepts clients.
pub(super) const READY: &str = "READY=1\nSTATUS=serving";
/// The policy is being reloaded. [`READY`] follows.
pub(super) const RELOADING: &str = "RELOADING=1\nSTATUS=reading the policy";
/// The service shuts down once all requests are answered.
pub(super) const STOPPING: &str = "STOPPING=1\nSTATUS=draining";
/// One watchdog ping.
pub(super) const WATCHDOG_PING: &str = "WATCHDOG=1";

/// Notifies the service manager that started this process, if there is one.
#[derive(Debug, Default)]
pub(super) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    every: Option<Duration>,
}

impl ServiceManager {
    /// The manager that the environment names.
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
        // A manager that hangs must not block the service.
        let _ = socket.set_nonblocking(true);
        let own = std::process::id().to_string();
        let is_own = other(WATCHDOG_PID_VARIABLE).is_none_or(|process| process == own);
        let micros = other(WATCHDOG_VARIABLE).and_then(|text| text.parse().ok());
        let micros = micros.filter(|micros: &u64| is_own && *micros > 0);
        Self {
            socket: Some((socket, address)),
            // Two pings per interval, so that a late one causes no restart.
            every: micros.map(|micros| Duration::from_micros(micros.div_ceil(2))),
        }
    }

    /// The ticks of watchdog pings. `None` if the manager wants no pings. Polling them proves that the service's
    /// threads run.
    pub(super) fn watchdog_ticks(&self) -> Option<Interval> {
        let mut signs = interval(self.every?);
        signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(signs)
    }

    /// Notifies the manager of one event.
    pub(super) fn notify(&self, event: &str) {
        if let Some((socket, address)) = &self.socket {
            // The service runs on if the notification fails.
            let _ = socket.send_to_addr(event.as_bytes(), address);
        }
    }
}

/// The address of a socket: a path, or a name after `@` in Linux' abstract namespace.
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
