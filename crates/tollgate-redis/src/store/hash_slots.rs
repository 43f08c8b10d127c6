//! The hash slots of a cluster: queried from several nodes, and taken from the first reply that has them all.

use std::sync::Arc;
use std::time::Duration;

use ::redis::Value;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::connect::Connector;
use super::link::{CallFailure, FailureAction, StoreConnection, classify_failure};
use super::peer::PeerId;
use crate::address::Node;
use crate::error::{FailureKind, StoreError};

/// The number of hash slots.
pub(super) const SLOTS: u16 = 16_384;
/// How long to wait for a reply with more hash slots than the first.
const FULLER_REPLY_WAIT: Duration = Duration::from_millis(50);

/// Adjacent hash slots and their owners: the master first, then its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) nodes: Vec<Node>,
}

/// A node to query.
pub(super) enum SlotSource {
    /// Over its present connection.
    Connected(Node, StoreConnection, LinkId),
    /// Over a new connection, made for this query.
    Unconnected(Node),
}

/// The peer, and the number of its connection.
pub(super) type LinkId = (PeerId, u64);

/// The result of a query for hash slots.
pub(super) struct SlotReply {
    pub(super) ranges: Result<Vec<SlotRange>, StoreError>,
    /// Connections that turned out to be broken. Without other calls to a node, this is where it is noticed.
    pub(super) lost: Vec<(LinkId, StoreError)>,
}

/// Queries all nodes concurrently, so a silent node delays nothing. A node without all hash slots, such as
/// after a restart without its state, is believed only if no other node knows more.
pub(super) async fn query_slots(
    connector: Arc<Connector>,
    witnesses: Vec<SlotSource>,
) -> SlotReply {
    let connector = &connector;
    let asked = witnesses
        .into_iter()
        .map(|witness| query_source(connector, witness));
    let mut asked: FuturesUnordered<_> = asked.collect();
    let (mut best, mut most) = (None, 0);
    let (mut told, mut lost): (Option<StoreError>, _) = (None, Vec::new());
    while most < u32::from(SLOTS) {
        let answer = match most {
            // The first useful reply has as long as it takes; a fuller one may only take a moment more.
            0 => asked.next().await,
            _ => timeout(FULLER_REPLY_WAIT, asked.next())
                .await
                .unwrap_or(None),
        };
        match answer {
            None => break,
            Some(Ok(ranges)) => {
                let count = count_owned_slots(&ranges);
                if best.is_none() || count > most {
                    (best, most) = (Some(ranges), count);
                }
            }
            Some(Err((error, by))) => {
                lost.extend(by.map(|by| (by, error.clone())));
                // An error that waiting can't mend is reported first.
                if told.is_none() || error.kind().is_lasting() {
                    told = Some(error);
                }
            }
        }
    }
    let ranges = match (best, told) {
        // A node without hash slots says nothing about those of others.
        (Some(_), Some(error)) if most == 0 => Err(error),
        (Some(ranges), _) => Ok(ranges),
        (None, Some(error)) => Err(error),
        (None, None) => {
            let why = "no node of the cluster is known";
            Err(StoreError::unreachable(FailureKind::NotFound, why))
        }
    };
    SlotReply { ranges, lost }
}

/// The reply of one node, or its error; with the connection, if that is broken.
async fn query_source(
    connector: &Connector,
    witness: SlotSource,
) -> Result<Vec<SlotRange>, (StoreError, Option<LinkId>)> {
    let (node, mut link, by) = match witness {
        SlotSource::Connected(node, link, by) => (node, link, Some(by)),
        SlotSource::Unconnected(node) => {
            let link = connector.connect(Some(&node)).await;
            (node, link.map_err(|error| (error, None))?, None)
        }
    };
    match link.send(::redis::cmd("CLUSTER").arg("SLOTS")).await {
        Ok(reply) => parse_ranges(&reply, &node).map_err(|error| (error, None)),
        Err(error) => {
            let CallFailure {
                error,
                action: then,
            } = classify_failure(&error);
            Err((error, by.filter(|_| then == FailureAction::Lost)))
        }
    }
}

/// How many hash slots have a known owner.
fn count_owned_slots(ranges: &[SlotRange]) -> u32 {
    let owned = ranges.iter().filter(|range| !range.nodes.is_empty());
    let count = |range: &SlotRange| (u32::from(range.last) + 1).saturating_sub(range.first.into());
    owned.map(count).sum()
}

/// Parses the reply to `CLUSTER SLOTS`. A node without a host is the one that replied.
fn parse_ranges(reply: &Value, asked: &Node) -> Result<Vec<SlotRange>, StoreError> {
    let garbled =
        || StoreError::garbled(format!("hash slots with owners expected, {reply:?} came"));
    let ranges = reply.as_sequence().ok_or_else(garbled)?;
    let range = |range: &Value| {
        let [Value::Int(first), Value::Int(last), nodes @ ..] = range.as_sequence()? else {
            return None;
        };
        let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
        Some(SlotRange {
            first: slot(first)?,
            last: slot(last)?,
            nodes: nodes
                .iter()
                .filter_map(|own| parse_node(own, asked))
                .collect(),
        })
    };
    let ranges: Option<Vec<_>> = ranges.iter().map(range).collect();
    ranges.ok_or_else(garbled)
}

fn parse_node(value: &Value, asked: &Node) -> Option<Node> {
    let [host, Value::Int(port), ..] = value.as_sequence()? else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => "",
    };
    resolve_node(host, u16::try_from(*port).ok()?, asked)
}

/// The node that a redirection names; without a host, the one that replied.
pub(super) fn redirect_target(to: &str, asked: &Node) -> Option<Node> {
    let (host, port) = to.rsplit_once(':')?;
    resolve_node(host, port.parse().ok()?, asked)
}

fn resolve_node(host: &str, port: u16, asked: &Node) -> Option<Node> {
    let host = match host {
        // The node doesn't know its own host.
        "?" => return None,
        "" => &asked.host,
        host => host,
    };
    Some(Node {
        host: host.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_which_slot_is_read_in_every_form() {
        let asked: Node = Node {
            host: "10.0.0.9".to_owned(),
            port: 7000,
        };
        let at = |host: &str, port| Node {
            host: host.to_owned(),
            port,
        };
        let text = b"*3\r\n\
            *4\r\n:0\r\n:5460\r\n*3\r\n$8\r\n10.0.0.1\r\n:7001\r\n$1\r\na\r\n*2\r\n$1\r\nh\r\n:7002\r\n\
            *3\r\n:5461\r\n:5461\r\n*2\r\n$0\r\n\r\n:7003\r\n\
            *3\r\n:5462\r\n:16383\r\n*3\r\n$-1\r\n:7004\r\n$1\r\nb\r\n";
        let reply = ::redis::parse_redis_value(text).unwrap();
        let range = |first, last, nodes| SlotRange { first, last, nodes };
        assert_eq!(
            parse_ranges(&reply, &asked).unwrap(),
            [
                range(0, 5460, vec![at("10.0.0.1", 7001), at("h", 7002)]),
                range(5461, 5461, vec![at("10.0.0.9", 7003)]),
                range(5462, 16_383, vec![at("10.0.0.9", 7004)]),
            ]
        );
        for odd in ["+OK\r\n", "*1\r\n:1\r\n", "*1\r\n*2\r\n:0\r\n:16384\r\n"] {
            let odd = ::redis::parse_redis_value(odd.as_bytes()).unwrap();
            assert!(parse_ranges(&odd, &asked).is_err(), "{odd:?}");
        }
        assert_eq!(redirect_target("::1:7000", &asked), Some(at("::1", 7000)));
        assert_eq!(redirect_target(":7000", &asked), Some(at("10.0.0.9", 7000)));
        assert_eq!(redirect_target("?:7000", &asked), None);
    }
}
