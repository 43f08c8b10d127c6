//! Ports that no other test of this machine gets.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// The first port and the number of ports. They end below the ports that the system gives to outgoing
/// connections (from 32,768): otherwise a client that reconnects to a stopped server could get that very port,
/// and connect to itself.
const FIRST_PORT: u16 = 20_000;
const PORT_COUNT: u16 = 12_000;

/// A TCP port, reserved for this test even while no server listens on it.
///
/// The UDP port of the same number reserves it: only one process can hold that, and the system releases it
/// however the process ends.
///
/// ```
/// use tollgate_testkit::redis::Port;
///
/// let port = Port::reserve_free();
/// assert_ne!(port.number(), Port::reserve_free().number());
/// ```
#[derive(Debug)]
pub struct Port {
    number: u16,
    _kept: UdpSocket,
}

impl Port {
    /// Reserves a free port, searching from a random one on.
    ///
    /// # Panics
    /// If all are taken.
    pub fn reserve_free() -> Self {
        let spread = RandomState::new().hash_one(PORT_COUNT) % u64::from(PORT_COUNT);
        let start = u16::try_from(spread).expect("less than the count of ports");
        (0..PORT_COUNT)
            .map(|step| FIRST_PORT + (start + step) % PORT_COUNT)
            .find_map(Self::reserve)
            .expect("one of 12,000 ports is free")
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The offset from the first port: a small number that no other test has.
    pub(super) fn index(&self) -> u16 {
        self.number - FIRST_PORT
    }

    fn reserve(number: u16) -> Option<Self> {
        let kept = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self {
            number,
            _kept: kept,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_comes_back() {
        let port = Port::reserve_free();
        let number = port.number();
        assert!(Port::reserve(number).is_none());
        drop(port);
        assert_eq!(
            Port::reserve(number).map(|port| port.index()),
            Some(number - FIRST_PORT)
        );
    }

    #[test]
    fn a_port_that_something_listens_on_is_left_alone() {
        let port = Port::reserve_free();
        let number = port.number();
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(port);
        assert!(Port::reserve(number).is_none());
        drop(listening);
    }
}
