//! Networks: an address and how many of its leading bits count.

use std::net::IpAddr;

/// A network, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    bits: u8,
    network: IpAddr,
}

/// Why a text is no network, and what part of it, in characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CidrError {
    pub(crate) message: String,
    pub(crate) help: String,
    pub(crate) from: usize,
    pub(crate) length: usize,
}

impl Cidr {
    /// Reads `10.0.0.0/8`, or an address, which is the network of itself.
    pub(crate) fn parse(text: &str) -> Result<Self, CidrError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let example =
            "write an address such as 192.0.2.7, or a network such as 10.0.0.0/8 or 2001:db8::/32";
        let Ok(network) = address.parse::<IpAddr>() else {
            return Err(CidrError {
                message: format!("{:?} is no IP address", super::reader::shorten(address)),
                help: example.to_owned(),
                from: 0,
                length: address.chars().count(),
            });
        };
        let most = width(network);
        let bits = match bits {
            None => most,
            Some(bits) => {
                let number = bits.parse::<u8>().ok().filter(|number| *number <= most);
                number.ok_or_else(|| CidrError {
                    message: format!("expected 0 to {most} bits after \"/\""),
                    help: example.to_owned(),
                    from: address.chars().count() + 1,
                    length: bits.chars().count(),
                })?
            }
        };
        let masked = mask(network, bits);
        if masked != network {
            return Err(CidrError {
                message: format!("{network} has bits beyond the first {bits}"),
                help: format!("did you mean {masked}/{bits}, or the one address {network}?"),
                from: 0,
                length: text.chars().count(),
            });
        }
        Ok(Self { bits, network })
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The address with only its leading bits.
fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let kept = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & kept).into())
        }
        IpAddr::V6(v6) => {
            let kept = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & kept).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        let net = |text: &str| Cidr::parse(text).unwrap();
        assert_eq!(net("192.0.2.7").to_string(), "192.0.2.7/32");
        assert_eq!(net("2001:db8:0::/32").to_string(), "2001:db8::/32");
    }

    #[test]
    fn what_is_none_says_why() {
        let wrong = |text: &str| Cidr::parse(text).unwrap_err();
        assert_eq!(wrong("10.0.0/8").message, "\"10.0.0\" is no IP address");
        assert_eq!((wrong("10.0.0.0/33").from, wrong("::/129").from), (9, 3));
        assert_eq!(
            wrong("10.0.0.1/8").help,
            "did you mean 10.0.0.0/8, or the one address 10.0.0.1?"
        );
    }
}
