//! Networks, as operators write them: `10.0.0.0/8`, `2001:db8::/32`, `::1`.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use derive_more::{Display, Error};

/// A network: all addresses with the same leading bits.
///
/// An IPv4 address in IPv6 form (`::ffff:10.0.0.1`) is the IPv4 address, both in networks and in lookups.
///
/// ```
/// use tollgate_http::client::Network;
///
/// let office: Network = "10.0.0.0/8".parse()?;
/// assert!(office.contains("10.1.2.3".parse()?));
/// assert!(office.contains("::ffff:10.1.2.3".parse()?));
/// assert!(!office.contains("11.0.0.1".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A number and a length instead of an [`IpAddr`]: limits by address are keyed by networks, and an `IpAddr` is copied
/// and hashed byte by byte.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[display("{}/{bits}", self.first())]
pub struct Network {
    first: FirstAddress,
    bits: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstAddress {
    Four(u32),
    Six(u128),
}

/// The error for a text that is no network.
#[derive(Clone, Debug, Display, Error, PartialEq, Eq)]
pub struct NetworkError(#[error(not(source))] String);

impl Network {
    /// The network of all addresses that share the leading bits of this one. A number that is too large means all
    /// bits.
    ///
    /// ```
    /// use tollgate_http::client::Network;
    ///
    /// let home = Network::around("2001:db8:1:2:3:4:5:6".parse()?, 64);
    /// assert_eq!(home.to_string(), "2001:db8:1:2::/64");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn around(address: IpAddr, bits: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(four) => Self::around_v4(four, bits),
            IpAddr::V6(six) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Self {
                    first: FirstAddress::Six(six.to_bits() & mask),
                    bits,
                }
            }
        }
    }

    /// The network around an IPv4 address, with fewer steps.
    #[inline(always)]
    pub(crate) fn around_v4(four: Ipv4Addr, bits: u8) -> Self {
        let bits = bits.min(32);
        let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
        Self {
            first: FirstAddress::Four(four.to_bits() & mask),
            bits,
        }
    }

    /// The first address of the network.
    pub const fn first(&self) -> IpAddr {
        match self.first {
            FirstAddress::Four(four) => IpAddr::V4(Ipv4Addr::from_bits(four)),
            FirstAddress::Six(six) => IpAddr::V6(Ipv6Addr::from_bits(six)),
        }
    }

    /// The number of leading bits that all its addresses share.
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether the network contains this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        // `around` clamps `bits`, so the result equals this network only for addresses of its own family.
        Self::around(address, self.bits) == *self
    }
}

/// Hashes one or two integers, as each write takes the hasher a step.
impl Hash for Network {
    #[inline(always)]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let bits = u64::from(self.bits);
        match self.first {
            FirstAddress::Four(four) => {
                hasher.write_u64((1 << 40) | (bits << 32) | u64::from(four))
            }
            FirstAddress::Six(six) => {
                hasher.write_u64((2 << 40) | bits);
                hasher.write_u128(six);
            }
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = |why: &str| NetworkError(format!("{text:?} is no range of addresses: {why}"));
        let no_address = || wrong("write it as 10.0.0.0/8 or 2001:db8::/32");
        let Some((address, bits)) = text.split_once('/') else {
            let address: IpAddr = text.parse().map_err(|_| no_address())?;
            return Ok(address.into());
        };
        let address: IpAddr = address.parse().map_err(|_| no_address())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        // Rejects `+8`, which `parse` accepts.
        let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits: u8 = match bits.parse() {
            Ok(bits) if digits && bits <= most => bits,
            _ => {
                return Err(wrong(&format!(
                    "after the / comes a number from 0 to {most}"
                )));
            }
        };
        let mapped = address.is_ipv6() && address.to_canonical().is_ipv4();
        if mapped && bits < 96 {
            return Err(wrong("it is partly IPv4 and partly not: write two ranges"));
        }
        let network = Self::around(address, if mapped { bits - 96 } else { bits });
        if network.first() != address.to_canonical() {
            return Err(wrong(&format!(
                "there is more after its first {bits} bits: write {network}"
            )));
        }
        Ok(network)
    }
}

/// The network of this address alone.
impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self::around(address, u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let read = text.parse::<Network>();
        read.map_or_else(|error| error.to_string(), |network| network.to_string())
    }

    #[test]
    fn ranges_are_read_as_they_are_shown() {
        for text in [
            "0.0.0.0/0",
            "10.0.0.0/8",
            "192.0.2.1/32",
            "::/0",
            "2001:db8::/32",
            "::1/128",
        ] {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown("127.0.0.1"), "127.0.0.1/32");
        assert_eq!(shown("::1"), "::1/128");
        assert_eq!(shown("::ffff:10.0.0.0/104"), "10.0.0.0/8");
        assert_eq!(shown("::ffff:10.0.0.1"), "10.0.0.1/32");
    }

    #[test]
    fn what_is_no_range_is_told_why() {
        let no_address = "write it as 10.0.0.0/8 or 2001:db8::/32";
        let rows = [
            ("", no_address),
            ("proxy", no_address),
            ("10.0.0/8", no_address),
            ("10.0.0.0 /8", no_address),
            ("fe80::1%eth0/64", no_address),
            ("10.0.0.0/33", "after the / comes a number from 0 to 32"),
            ("10.0.0.0/", "after the / comes a number from 0 to 32"),
            ("10.0.0.0/+8", "after the / comes a number from 0 to 32"),
            ("::/129", "after the / comes a number from 0 to 128"),
            ("::/999999", "after the / comes a number from 0 to 128"),
            (
                "10.1.2.3/8",
                "there is more after its first 8 bits: write 10.0.0.0/8",
            ),
            (
                "::ffff:10.0.0.0/90",
                "it is partly IPv4 and partly not: write two ranges",
            ),
        ];
        for (text, why) in rows {
            let whole = format!("{text:?} is no range of addresses: {why}");
            assert_eq!(shown(text), whole);
        }
    }

    #[test]
    fn a_range_has_its_first_and_last_address_and_not_those_beside() {
        let range: Network = "10.16.0.0/12".parse().expect("a range");
        let has = |text: &str| range.contains(text.parse().expect("an address"));
        assert!(has("10.16.0.0") && has("10.31.255.255"));
        assert!(!has("10.15.255.255") && !has("10.32.0.0"));
        // The same bits in the other family.
        assert!(!has("a10:0:0:0::"));
        let all: Network = "0.0.0.0/0".parse().expect("a range");
        assert!(all.contains(IpAddr::V4(Ipv4Addr::BROADCAST)));
        assert!(!all.contains(IpAddr::V6(Ipv6Addr::LOCALHOST)));
    }
}
