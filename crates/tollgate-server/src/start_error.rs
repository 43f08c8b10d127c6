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
    /// An address can't be listened on.
    #[display("{}", cant_listen(protocol, address, error))]
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
    #[display("the keys of CL.THROTTLE: {_0}")]
    Throttle(LimitError),
    /// The policy's file can't be looked after.
    #[display("can't look after the policy's file: {_0}; --watch off does without")]
    Watch(io::Error),
    /// State can't be kept, and why.
    State(String),
    /// Operators would be asked for by others than this machine, and nobody has said who they are.
    #[display(
        "--admin {_0} can be reached from other machines: give operators a token by --admin-token-file, \
         or ask for their certificates by --tls-client-ca, or stay on 127.0.0.1 or a UNIX socket"
    )]
    OpenAdmin(Address),
    /// Certificates can't be used, and why.
    Tls(String),
    /// The file that tells the addresses can't be written.
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
