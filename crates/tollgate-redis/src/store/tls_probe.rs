//! Whether the other side of a port speaks TLS: looked at when a connection failed for no reason told.
//!
//! A plain Redis waits for the end of what it takes for a command when TLS is spoken to it, and one that
//! speaks TLS closes the connection at the first plain word: neither says so.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error_reason;
use crate::address::{Address, Node, Topology};
use crate::error::{FailureKind, StoreError};

/// How long all of it may take.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// What every server answers in plain, whatever it has to say about it.
const PLAIN_PING: &[u8] = b"PING\r\n";
/// A handshake with nothing in it, which is answered with an alert.
const TLS_HELLO: &[u8] = &[22, 3, 1, 0, 4, 1, 0, 0, 0];
/// What records of TLS begin with: alerts and handshakes.
const TLS_RECORD_TYPES: [u8; 2] = [21, 22];

/// The error, or a better one if TLS is what is wrong.
pub(super) async fn explain_failure(error: StoreError, address: &Address) -> StoreError {
    let may_be_tls = matches!(
        error.kind(),
        FailureKind::TimedOut | FailureKind::Disconnected | FailureKind::InvalidResponse
    );
    let nodes = match &address.topology {
        Topology::Single(node) => std::slice::from_ref(node),
        Topology::Sentinel { sentinels, .. } => sentinels,
        Topology::Cluster(nodes) => nodes,
        Topology::Socket(_) => &[],
    };
    if !may_be_tls {
        return error;
    }
    let is_tls = address.tls.is_some();
    let looking = async {
        for node in nodes {
            let first = first_byte(node, if is_tls { PLAIN_PING } else { TLS_HELLO }).await;
            match first {
                Some(b'+' | b'-') if is_tls => return Some(error_reason::NO_TLS_ADVICE),
                Some(byte) if !is_tls && TLS_RECORD_TYPES.contains(&byte) => {
                    return Some(error_reason::TLS_ONLY_ADVICE);
                }
                _ => {}
            }
        }
        None
    };
    match timeout(PROBE_TIMEOUT, looking).await {
        Ok(Some(why)) => StoreError::unreachable(FailureKind::Tls, why),
        _ => error,
    }
}

/// What it answers first.
async fn first_byte(node: &Node, words: &[u8]) -> Option<u8> {
    let mut stream = TcpStream::connect((&*node.host, node.port)).await.ok()?;
    stream.write_all(words).await.ok()?;
    stream.read_u8().await.ok()
}
