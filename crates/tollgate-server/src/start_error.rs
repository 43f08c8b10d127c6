//! Why a service didn't start.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tollgate::LimitError;
use tollgate_engine::PolicyError;

use crate::address::Address;

/// Why a service didn't start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// An address can't be listened on.
    Listen {
        /// For what.
        protocol: &'static str,
        /// Which.
        address: Address,
        /// Why not.
        error: io::Error,
    },
    /// What the policy says can't be done.
    Policy(PolicyError),
    /// The keys of `CL.THROTTLE` can't be kept.
    Throttle(LimitError),
    /// The policy's file can't be looked after.
    Watch(io::Error),
    /// State can't be kept, and why.
    State(String),
    /// Operators would be asked for by others than this machine, and nobody has said who they are.
    OpenAdmin(Address),
    /// Certificates can't be used, and why.
    Tls(String),
    /// The file that tells the addresses can't be written.
    ReadyFile(PathBuf, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen {
                protocol,
                address,
                error,
            } => {
                let flag = protocol.to_lowercase();
                let by = match address {
                    _ if error.kind() != io::ErrorKind::AddrInUse => {
                        return write!(
                            f,
                            "can't listen on {address} for {protocol}: {error}; choose another address by --{flag}"
                        );
                    }
                    Address::Unix(..) => "by another process, or is no socket",
                    _ => "by another process",
                };
                write!(
                    f,
                    "{address} is in use {by}: choose another address for {protocol} by --{flag}, or --{flag} off"
                )
            }
            Self::Policy(error) => error.fmt(f),
            Self::Watch(error) => write!(
                f,
                "can't look after the policy's file: {error}; --watch off does without"
            ),
            Self::OpenAdmin(address) => write!(
                f,
                "--admin {address} can be reached from other machines: give operators a token by --admin-token-file, \
                 or ask for their certificates by --tls-client-ca, or stay on 127.0.0.1 or a UNIX socket"
            ),
            Self::State(why) | Self::Tls(why) => f.write_str(why),
            Self::Throttle(error) => write!(f, "the keys of CL.THROTTLE: {error}"),
            Self::ReadyFile(path, error) => {
                write!(f, "can't write --ready-file {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for StartError {}
