//! Why a service didn't start.

use std::io;
use std::path::PathBuf;

use derive_more::Display;

use tollgate::LimitError;
use tollgate_engine::PolicyError;

use crate::address::Address;

/// Why a service didn't start.
#[derive(Debug, Display)]
#[non_exhaustive]
pub enum StartError {
    /// The service can't listen on an address.
    #[display("{}", cant_listen(protocol, address, error))]
    Listen {
        /// The protocol of the listener.
        protocol: &'static str,
        /// The address.
        address: Address,
        /// The system's error.
        error: io::Error,
    },
    /// The policy can't be put in force.
    Policy(PolicyError),
    /// The table of `CL.THROTTLE` keys can't be created.
    #[display("the keys of CL.THROTTLE: {_0}")]
    Throttle(LimitError),
    /// The policy file can't be watched.
    #[display("can't look after the policy's file: {_0}; --watch off does without")]
    Watch(io::Error),
    /// The state can't be kept; the text says why.
    State(String),
    /// The admin listener is reachable from other machines, but neither a token nor client certificates authenticate
    /// operators.
    #[display(
        "--admin {_0} can be reached from other machines: give operators a token by --admin-token-file, \
         or ask for their certificates by --tls-client-ca, or stay on 127.0.0.1 or a UNIX socket"
    )]
    OpenAdmin(Address),
    /// Certificates can't be used; the text says why.
    Tls(String),
    /// The ready file can't be written.
    #[display("can't write --ready-file {}: {_1}", _0.display())]
    ReadyFile(PathBuf, io::Error),
}

fn cant_listen(protocol: &str, address: &Address, error: &io::Error) -> String {
    let flag = protocol.to_lowercase();
    let by = match address {
        _ if error.kind() != io::ErrorKind::AddrInUse => {
            return format!(
                "can't listen on {address} for {protocol}: {error}; choose another address by --{flag}"
            );
        }
        Address::Unix(..) => "by another process, or is no socket",
        _ => "by another process",
    };
    format!(
        "{address} is in use {by}: choose another address for {protocol} by --{flag}, or --{flag} off"
    )
}

impl std::error::Error for StartError {}
