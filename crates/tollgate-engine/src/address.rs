//! Addresses and networks, and a tree of networks. An IPv4 address in IPv6 form counts as IPv4.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address as one left-aligned number, with its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// The bits, from the top: an IPv4 address occupies the upper 32.
    pub(crate) bits: u128,
    pub(crate) family: Family,
}

/// The family of an address: IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Address {
    /// Parses an address. An IPv4 address in IPv6 form (`::ffff:10.0.0.1`) is IPv4.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(Self::of(text.parse().ok()?))
    }

    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::new(Family::V4, u128::from(v4.to_bits()) << 96),
            IpAddr::V6(v6) => Self::new(Family::V6, v6.to_bits()),
        }
    }

    const fn new(family: Family, bits: u128) -> Self {
        Self { bits, family }
    }

    /// The address with only its leading bits, which is the first of its network.
    fn masked(self, length: u8) -> Self {
        Self::new(self.family, self.bits & mask(length))
    }

    /// The network of its client: the leading bits, the others zero. An address that a translator made from an IPv4
    /// address (64:ff9b::/96, RFC 6052) counts as that IPv4 address, because all clients behind the translator share
    /// one /64.
    pub(crate) fn client_network(self, bits: ClientBits) -> Network {
        let translated = Self::new(Family::V4, self.bits << 96);
        let own = if self.is_translated() {
            translated
        } else {
            self
        };
        let length = bits.of(own.family);
        let first = own.masked(length);
        Network { first, length }
    }

    fn is_translated(self) -> bool {
        self.family == Family::V6 && self.bits & mask(96) == NAT64
    }
}

/// The prefix of addresses that a translator makes from IPv4 addresses: 64:ff9b::/96.
const NAT64: u128 = 0x0064_ff9b << 96;

/// How many leading bits of an address identify a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientBits {
    v4: u8,
    v6: u8,
}

impl ClientBits {
    /// Each IPv4 address is a client, and each IPv6 network of 64 bits: a household or a machine has all addresses of
    /// one.
    pub(crate) const DEFAULT: Self = Self { v4: 32, v6: 64 };

    pub(crate) fn new(v4: u8, v6: u8) -> Self {
        Self {
            v4: v4.min(32),
            v6: v6.min(128),
        }
    }

    /// The same number for both families. An IPv4 address stays whole if it has no more bits than that.
    pub(crate) fn both(bits: u8) -> Self {
        Self::new(bits, bits)
    }

    pub(crate) const fn of(self, family: Family) -> u8 {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = match self.first.family {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        if self.length == whole {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}/{}", self.first, self.length)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v4 = u32::try_from(self.bits >> 96).map(Ipv4Addr::from_bits);
        match (self.family, v4) {
            (Family::V4, Ok(v4)) => v4.fmt(f),
            _ => Ipv6Addr::from_bits(self.bits).fmt(f),
        }
    }
}

fn mask(bits: u8) -> u128 {
    match bits {
        0 => 0,
        bits => u128::MAX << (128 - u32::from(bits.min(128))),
    }
}

/// The addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network {
    pub(crate) first: Address,
    /// The length of the prefix, in bits.
    length: u8,
}

impl Network {
    /// Parses `10.0.0.0/8` or a single address. Bits after the prefix are ignored. An IPv4 prefix in IPv6 form
    /// (`::ffff:10.0.0.0/104`) is IPv4.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            None => (text, None),
            Some((address, length)) => (address, Some(length)),
        };
        let written: IpAddr = address.parse().ok()?;
        let address = Address::of(written);
        let most = if written.is_ipv4() { 32 } else { 128 };
        let length: u8 = match length {
            None => most,
            Some(length) => {
                if !length.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                length.parse().ok().filter(|length| *length <= most)?
            }
        };
        let mapped = written.is_ipv6() && address.family == Family::V4;
        let length = match (mapped, length.checked_sub(96)) {
            (false, _) => length,
            (true, Some(length)) => length,
            // A prefix that is shorter than that of IPv4 in IPv6 is an IPv6 network, which has no IPv4 address.
            (true, None) => {
                let IpAddr::V6(v6) = written else {
                    return None;
                };
                let first = Address::new(Family::V6, v6.to_bits()).masked(length);
                return Some(Self { first, length });
            }
        };
        let first = address.masked(length);
        Some(Self { first, length })
    }

    /// An address of the network, if all its addresses belong to one client. If the network includes translated IPv4
    /// addresses, each of these is a client of its own, so the result is the client of the other addresses.
    pub(crate) fn single_client(&self, bits: ClientBits) -> Option<Address> {
        let (first, length) = (self.first, self.length);
        if !first.is_translated() {
            return (length >= bits.of(first.family)).then_some(first);
        }
        if length >= 96 {
            return (length - 96 >= bits.v4).then_some(first);
        }
        // An address of the network just after those of the translator.
        let beside = Address::new(first.family, first.bits | 1 << 32);
        (length >= bits.v6).then_some(beside)
    }

    /// Whether it includes all addresses of another network.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.first)
    }

    /// Whether it includes an address.
    pub(crate) fn contains(&self, address: Address) -> bool {
        address.family == self.first.family && address.bits & mask(self.length) == self.first.bits
    }
}

/// Networks in binary trees, one for each family, with the numbers of the rules that are indexed there.
#[derive(Debug)]
pub(super) struct NetworkTree {
    /// The nodes of each family. The first is the root. A child with the number 0 doesn't exist.
    trees: [Vec<Node>; 2],
}

#[derive(Debug, Default)]
struct Node {
    children: [u32; 2],
    here: Vec<u32>,
}

impl Default for NetworkTree {
    fn default() -> Self {
        Self {
            trees: [vec![Node::default()], vec![Node::default()]],
        }
    }
}

impl NetworkTree {
    pub(super) fn add(&mut self, network: &Network, number: u32) {
        let nodes = &mut self.trees[network.first.family as usize];
        let mut at = 0;
        for depth in 0..network.length {
            let side = side(network.first.bits, depth);
            let mut child = nodes[at].children[side] as usize;
            if child == 0 {
                child = nodes.len();
                nodes.push(Node::default());
                nodes[at].children[side] = u32::try_from(child).unwrap_or(0);
            }
            at = child;
        }
        nodes[at].here.push(number);
    }

    /// Visits the rules of every network that includes the address.
    pub(super) fn each(&self, address: Address, mut each: impl FnMut(u32)) {
        let nodes = &self.trees[address.family as usize];
        let mut at = 0;
        for depth in 0..=128 {
            let node = &nodes[at];
            node.here.iter().copied().for_each(&mut each);
            if depth == 128 {
                return;
            }
            at = node.children[side(address.bits, depth)] as usize;
            if at == 0 {
                return;
            }
        }
    }
}

fn side(bits: u128, depth: u8) -> usize {
    usize::from(bits & (1 << (127 - u32::from(depth))) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses_and_no_others() {
        for (network, address, expect) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("0.0.0.0/0", "203.0.113.7", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("::ffff:10.0.0.0/104", "10.0.0.1", true),
            ("::ffff:10.0.0.0/104", "11.0.0.1", false),
        ] {
            let (parsed, address) = (
                Network::parse(network).unwrap(),
                Address::parse(address).unwrap(),
            );
            assert_eq!(parsed.contains(address), expect, "{network} {address:?}");
            let (mut tree, mut found) = (NetworkTree::default(), false);
            tree.add(&parsed, 7);
            tree.each(address, |number| found = number == 7);
            assert_eq!(found, expect, "{network} {address:?}");
        }
        for wrong in ["10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/+8", "x", ""] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn masks_keep_a_whole_ipv4_address_unless_they_are_for_it() {
        let masked = |text, bits| {
            let address = Address::parse(text).unwrap();
            address.client_network(ClientBits::both(bits)).to_string()
        };
        assert_eq!(masked("2001:db8::1", 64), masked("2001:db8::2", 64));
        assert_ne!(masked("10.0.0.1", 64), masked("10.0.0.2", 64));
        assert_eq!(masked("10.0.0.1", 24), masked("10.0.0.2", 24));
        assert_eq!(masked("::ffff:10.0.0.1", 64), masked("10.0.0.1", 128));
        assert_eq!(masked("10.0.0.1", 0), masked("11.0.0.1", 0));
    }

    #[test]
    fn an_address_that_a_translator_made_is_the_ipv4_address_in_it() {
        let client = |text| {
            let address = Address::parse(text).unwrap();
            address.client_network(ClientBits::DEFAULT).to_string()
        };
        for (text, expect) in [
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("64:ff9b::1", "0.0.0.1"),
            ("64:ff9b:0:0:0:1:cb00:7107", "64:ff9b::/64"),
            ("64:ff9b:1::203.0.113.7", "64:ff9b:1::/64"),
            ("64:ff9c::203.0.113.7", "64:ff9c::/64"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ] {
            assert_eq!(client(text), expect, "{text}");
        }
        let wide = ClientBits::new(24, 56);
        let address = Address::parse("64:ff9b::203.0.113.7").unwrap();
        assert_eq!(address.client_network(wide).to_string(), "203.0.113.0/24");
        let address = Address::parse("2001:db8:0:ffff::1").unwrap();
        assert_eq!(
            address.client_network(wide).to_string(),
            "2001:db8:0:ff00::/56"
        );
        // A condition sees the address unchanged.
        let translated = Address::parse("64:ff9b::203.0.113.7").unwrap();
        assert!(Network::parse("64:ff9b::/96").unwrap().contains(translated));
        assert!(
            !Network::parse("203.0.113.0/24")
                .unwrap()
                .contains(translated)
        );
    }
}
