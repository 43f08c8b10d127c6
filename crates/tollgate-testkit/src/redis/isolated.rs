//! A server behind a network of its own, which can be cut.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use super::port::Port;
use super::{Builder, Server};
use crate::external_programs::find_program;

/// A server in a network namespace of its own, reached over a pair of virtual interfaces. The network can be
/// cut: packets are lost without an error.
///
/// Only root can make such a network.
///
/// ```
/// use std::time::Duration;
/// use tollgate_testkit::redis::{Isolated, wait_until};
///
/// let isolated = Isolated::start();
/// assert!(isolated.server().answers());
/// let mut client = isolated.server().client()?;
/// client.set_timeout(Duration::from_millis(50))?;
/// isolated.partition();
/// assert!(client.command(&["PING"]).is_err());
/// isolated.heal();
/// wait_until(Duration::from_secs(10), "an answer", || isolated.server().answers());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct Isolated {
    // Fields are dropped in this order: the server first, then its network.
    server: Server,
    network: Network,
}

/// A namespace and an interface of the same name that leads there.
#[derive(Debug)]
struct Network {
    name: String,
    inside: Ipv4Addr,
    /// No other test has a network with this number while it is held.
    _number: Port,
}

impl Isolated {
    /// A Redis server with nothing special but its network.
    ///
    /// # Panics
    /// If the network can't be made or the server doesn't come up.
    pub fn start() -> Self {
        Self::start_with(Server::builder())
    }

    /// Starts a server that was built in another way.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_with(server: Builder) -> Self {
        let network = Network::new();
        let server = server.inside(&network.name, IpAddr::V4(network.inside));
        Self {
            server: server.start(),
            network,
        }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Cuts the network: from now on every packet to the server and from it is lost.
    ///
    /// # Panics
    /// If the firewall rules can't be set.
    pub fn partition(&self) {
        self.network.filter("-I INPUT -j DROP");
        self.network.filter("-I OUTPUT -j DROP");
    }

    /// Undoes [`partition`](Self::partition).
    ///
    /// # Panics
    /// If the firewall rules can't be set.
    pub fn heal(&self) {
        self.network.filter("-F");
    }
}

impl Network {
    fn new() -> Self {
        find_program("ip", "apt-get install iproute2");
        find_program("iptables", "apt-get install iptables");
        let number = Port::reserve_free();
        // Addresses that are reserved for network tests, four for each pair of interfaces.
        let first = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + 4 * u32::from(number.index());
        let (outside, inside) = (Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2));
        let name = format!("tollgate{}", number.number());
        let peer = format!("toll{}", number.number());
        let network = Self {
            name,
            inside,
            _number: number,
        };
        // A test that was killed may have left a namespace with this name.
        network.remove();
        let name = &network.name;
        run(&format!("ip netns add {name}"));
        run(&format!(
            "ip link add {name} type veth peer name {peer} netns {name}"
        ));
        run(&format!("ip addr add {outside}/30 dev {name}"));
        run(&format!("ip link set {name} up"));
        run(&format!("ip -n {name} addr add {inside}/30 dev {peer}"));
        run(&format!("ip -n {name} link set {peer} up"));
        run(&format!("ip -n {name} link set lo up"));
        network
    }

    fn filter(&self, rule: &str) {
        run(&format!(
            "ip netns exec {} iptables -w 10 {rule}",
            self.name
        ));
    }

    fn remove(&self) {
        // Either may be missing, which is fine. The interface goes first: a namespace whose last process has
        // just ended may take a while to disappear.
        let _ = output(&format!("ip link del {}", self.name));
        let _ = output(&format!("ip netns del {}", self.name));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Runs a command whose words have no spaces.
fn output(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let ended = Command::new(program).args(words).output();
    let ended = ended.map_err(|error| format!("{line}: {error}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&ended.stderr);
    Err(format!("{line}: {}", why.trim()))
}

fn run(line: &str) {
    if let Err(error) = output(line) {
        panic!("{error} (only root may change networks)");
    }
}
