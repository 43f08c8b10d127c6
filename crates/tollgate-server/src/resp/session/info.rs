//! `INFO`: what clients and tools look for, by the sections that Redis has. What isn't known isn't told.

use std::fmt::Write as _;

use tollgate::clock::{Clock, Wall};

use super::Session;
use super::about::REDIS;
use crate::address::Protocol;
use crate::cells::Cells;
use crate::decider::Store;

/// The sections, in the order of Redis.
const SECTIONS: [&str; 8] = [
    "Server",
    "Clients",
    "Memory",
    "Stats",
    "Replication",
    "Cluster",
    "Keyspace",
    "Tollgate",
];

impl<B: Store> Session<B> {
    /// The sections that are asked for: all without a name, and for `all`, `default` and `everything`.
    pub(super) fn info<'w>(&self, words: impl Iterator<Item = &'w [u8]> + Clone) -> String {
        let is_named = |section: &str| {
            let mut names = words.clone().peekable();
            names.peek().is_none()
                || names.any(|name| {
                    let all = ["all", "default", "everything", section];
                    all.iter()
                        .any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
                })
        };
        let mut text = String::new();
        for section in SECTIONS.into_iter().filter(|section| is_named(section)) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            // Writing to a text doesn't fail.
            let _ = write!(text, "# {section}\r\n");
            for (name, value) in self.section(section) {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
        text
    }

    fn section(&self, section: &str) -> Vec<(&'static str, String)> {
        let service = &self.service;
        let measured = &service.monitor.measured;
        let own = |value: &str| value.to_owned();
        match section {
            "Server" => {
                let up = (Wall.now() - measured.since).as_secs();
                vec![
                    ("redis_version", own(REDIS)),
                    ("redis_mode", own("standalone")),
                    ("tollgate_version", own(env!("CARGO_PKG_VERSION"))),
                    ("os", own(std::env::consts::OS)),
                    ("arch_bits", usize::BITS.to_string()),
                    ("process_id", std::process::id().to_string()),
                    ("uptime_in_seconds", up.to_string()),
                    ("uptime_in_days", (up / 86_400).to_string()),
                ]
            }
            "Clients" => vec![
                (
                    "connected_clients",
                    measured.connections(Protocol::Resp).to_string(),
                ),
                ("maxclients", service.decider.bounds.connections.to_string()),
                ("blocked_clients", own("0")),
            ],
            "Memory" => {
                let used = resident_bytes().to_string();
                vec![
                    ("used_memory", used.clone()),
                    ("used_memory_rss", used),
                    ("maxmemory", own("0")),
                    ("maxmemory_policy", own("noeviction")),
                ]
            }
            "Stats" => vec![("total_commands_processed", commands(service).to_string())],
            "Replication" => vec![("role", own("master")), ("connected_slaves", own("0"))],
            "Cluster" => vec![("cluster_enabled", own("0"))],
            "Keyspace" => {
                let keys = service.decider.cells.count().filter(|keys| *keys > 0);
                keys.map(|keys| ("db0", format!("keys={keys},expires={keys},avg_ttl=0")))
                    .into_iter()
                    .collect()
            }
            _ => vec![
                (
                    "rules",
                    service.decider.engine.policy().rules.len().to_string(),
                ),
                ("holds", service.decider.holds.count().to_string()),
            ],
        }
    }
}

/// How many commands were answered.
fn commands<B: Store>(service: &crate::service::Service<B>) -> u64 {
    let mut all = service.monitor.measured.times();
    let own = all.find(|(protocol, _)| *protocol == Protocol::Resp);
    own.map_or(0, |(_, times)| times.counts().iter().sum())
}

/// How much memory the process has, where the system tells.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes: Option<u64> = kilobytes.and_then(|digits| digits.parse().ok());
    kilobytes.unwrap_or(0) * 1_024
}
