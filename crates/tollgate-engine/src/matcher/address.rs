//! Addresses and networks, with IPv4 in IPv6 taken for the IPv4 that it is, and a tree of networks.

use std::net::IpAddr;

/// An address in one number, left-aligned, with its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// From the top bit: an IPv4 address has the upper 32.
    bits: u128,
    family: Family,
}

/// Whether an address is of IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Address {
    /// Reads an address; one of IPv4 written as IPv6 (`::ffff:10.0.0.1`) is IPv4.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(Self::of(text.parse().ok()?))
    }

    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self {
                bits: u128::from(v4.to_bits()) << 96,
                family: Family::V4,
            },
            IpAddr::V6(v6) => Self {
                bits: v6.to_bits(),
                family: Family::V6,
            },
        }
    }

    /// Its leading bits, the others zero. An IPv4 address stays whole if it has no more than that.
    pub(crate) fn masked(self, bits: u8) -> Self {
        let whole = self.family == Family::V4 && bits > 32;
        Self {
            bits: if whole {
                self.bits
            } else {
                self.bits & mask(bits)
            },
            ..self
        }
    }

    pub(crate) const fn family(self) -> Family {
        self.family
    }

    pub(crate) const fn bits(self) -> u128 {
        self.bits
    }
}

fn mask(bits: u8) -> u128 {
    match bits {
        0 => 0,
        bits => u128::MAX << (128 - u32::from(bits.min(128))),
    }
}

/// The addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network {
    first: Address,
    length: u8,
}

impl Network {
    /// Reads `10.0.0.0/8` or a lone address. Bits after the prefix don't count. A prefix of IPv4
    /// written as IPv6 (`::ffff:10.0.0.0/104`) is one of IPv4.
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
            // More than all of IPv4 in IPv6: a network of IPv6, in which no IPv4 address is.
            (true, None) => {
                let IpAddr::V6(v6) = written else {
                    return None;
                };
                let first = Address {
                    bits: v6.to_bits() & mask(length),
                    family: Family::V6,
                };
                return Some(Self { first, length });
            }
        };
        Some(Self {
            first: Address {
                bits: address.bits & mask(length),
                ..address
            },
            length,
        })
    }

    /// Whether it has all addresses of another.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.first)
    }

    pub(super) fn contains(&self, address: Address) -> bool {
        address.family == self.first.family && address.bits & mask(self.length) == self.first.bits
    }
}

/// Networks in a tree of their bits, one for each family, with the numbers of the rules that are filed there.
#[derive(Debug, Default)]
pub(super) struct Networks {
    v4: Tree,
    v6: Tree,
}

#[derive(Debug)]
struct Tree {
    /// The first is the root. A child's number of 0 is none.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    children: [u32; 2],
    here: Vec<u32>,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }
}

impl Networks {
    pub(super) fn add(&mut self, network: &Network, number: u32) {
        let nodes = match network.first.family {
            Family::V4 => &mut self.v4.nodes,
            Family::V6 => &mut self.v6.nodes,
        };
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

    /// Visits the rules of every network that the address is in.
    pub(super) fn each(&self, address: Address, mut each: impl FnMut(u32)) {
        let tree = match address.family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let mut at = 0;
        for depth in 0..=128 {
            let node = &tree.nodes[at];
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
            let (mut tree, mut found) = (Networks::default(), false);
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
        let masked = |text, bits| Address::parse(text).unwrap().masked(bits);
        assert_eq!(masked("2001:db8::1", 64), masked("2001:db8::2", 64));
        assert_ne!(masked("10.0.0.1", 64), masked("10.0.0.2", 64));
        assert_eq!(masked("10.0.0.1", 24), masked("10.0.0.2", 24));
        assert_eq!(masked("::ffff:10.0.0.1", 64), masked("10.0.0.1", 128));
        assert_eq!(masked("10.0.0.1", 0), masked("11.0.0.1", 0));
    }
}
