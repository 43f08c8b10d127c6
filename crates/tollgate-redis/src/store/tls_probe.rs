//! Whether the other side of a port speaks TLS: probed when a connection failed without a reason.
//!
//! A plain Redis that gets a TLS handshake waits for the end of what it takes for a command. A server with TLS
//! closes the connection at the first plain byte. Neither reports why.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error_reason;
use crate::address::{Address, Node, Topology};
use crate::error::{FailureKind, StoreError};

/// How long the whole probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Every plain server replies to this, with whatever error.
const PLAIN_PING: &[u8] = b"PING\r\n";
/// A handshake without content, which a TLS server answers with an alert.
const TLS_HELLO: &[u8] = &[22, 3, 1, 0, 4, 1, 0, 0, 0];
/// First bytes of TLS records: alerts and handshakes.
const TLS_RECORD_TYPES: [u8; 2] = [21, 22];

/// Replaces the error if TLS is the cause.
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

/// The first byte of the reply.
async fn first_byte(node: &Node, words: &[u8]) -> Option<u8> {
    let mut stream = TcpStream::connect((&*node.host, node.port)).await.ok()?;
    stream.write_all(words).await.ok()?;
    stream.read_u8().await.ok()
}
