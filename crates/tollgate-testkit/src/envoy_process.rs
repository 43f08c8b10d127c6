//! A real Envoy, on ports of the test's own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::external_programs;
use crate::redis::{Port, Process, wait_for};
use crate::temp_folder::TempFolder;

/// How long Envoy may take to start: a second, or more on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// An Envoy that runs until it is dropped.
#[derive(Debug)]
pub struct Envoy {
    /// The first field, so that the process ends before its ports are free and its files are removed.
    process: Process,
    /// The ports in the configuration, and those that replace them.
    ports: Vec<(u16, Port)>,
    scratch: TempFolder,
}

impl Envoy {
    /// Starts Envoy with a configuration in YAML, and waits until it listens. `listeners` are the ports of its
    /// listeners there; free ports replace them.
    ///
    /// # Panics
    /// With Envoy's log if it doesn't start, and with how to install it if it is missing.
    pub fn start(config: &str, listeners: &[u16]) -> Self {
        let free = |port: &u16| (*port, Port::reserve_free());
        let ports: Vec<_> = listeners.iter().map(free).collect();
        let place = |config: String, (port, free): &(u16, Port)| {
            let (from, to) = (port_value(*port), port_value(free.number()));
            assert!(config.contains(&from), "no {from} in the configuration");
            config.replace(&from, &to)
        };
        let config = ports.iter().fold(config.to_owned(), place);
        let number = ports.first().map_or(0, |(_, port)| port.number());
        let scratch = TempFolder::new(&format!("envoy-{number}"));
        let (file, log) = (scratch.path("envoy.yaml"), scratch.path("log"));
        fs::write(&file, config).expect("a configuration in the test's folder");
        let mut command = Command::new(external_programs::envoy());
        command
            .arg("-c")
            .arg(&file)
            .args(["--concurrency", "1", "-l", "warning"])
            // The default is to write access logs every ten seconds.
            .args(["--file-flush-interval-msec", "20"])
            // Envoys with hot restart would share memory by a number.
            .arg("--disable-hot-restart");
        let envoy = Self {
            process: Process::spawn(&mut command, &log),
            ports,
            scratch,
        };
        let is_up = wait_for(START_TIMEOUT, || {
            !envoy.process.running() || envoy.is_listening()
        });
        assert!(
            is_up && envoy.process.running(),
            "Envoy doesn't come up: {}",
            envoy.log()
        );
        envoy
    }

    /// The address that replaces a port of the configuration.
    ///
    /// # Panics
    /// If no listener has that port.
    pub fn address(&self, port: u16) -> SocketAddr {
        let found = self.ports.iter().find(|(own, _)| *own == port);
        let (_, port) = found.unwrap_or_else(|| panic!("port {port} is no listener's"));
        (Ipv4Addr::LOCALHOST, port.number()).into()
    }

    /// Envoy's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.path("log")).unwrap_or_default()
    }

    fn is_listening(&self) -> bool {
        let mut each = self.ports.iter().map(|(port, _)| self.address(*port));
        each.all(|address| TcpStream::connect(address).is_ok())
    }
}

/// A port, as it is written in a configuration of Envoy.
///
/// ```
/// let config = "{address: 127.0.0.1, port_value: 8081}";
/// let other = config.replace(
///     &tollgate_testkit::envoy_process::port_value(8081),
///     &tollgate_testkit::envoy_process::port_value(20_000),
/// );
/// assert_eq!(other, "{address: 127.0.0.1, port_value: 20000}");
/// ```
pub fn port_value(port: u16) -> String {
    format!("port_value: {port}}}")
}
