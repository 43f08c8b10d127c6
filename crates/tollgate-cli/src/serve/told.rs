//! What those who start the service are told: where it listens, what to try, and what they should know of it.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tollgate_engine::{Checked, Rejected, render};
use tollgate_redis::Address as Store;
use tollgate_server::{Address, Addresses};

use super::Serve;
use crate::policy::{leases, quotas, readable};

/// What the example policy can be asked, in the words of each protocol.
const FACTS: &str = r#"{"facts":{"user":"ada"}}"#;
const DESCRIPTORS: &str =
    r#"{"domain":"example","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
const SHOULD_RATE_LIMIT: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

impl Serve {
    /// What to know before it starts, each in one line.
    pub(super) fn warnings(&self, checked: &Checked) -> Vec<String> {
        let policy = &checked.policy;
        let mut warnings = Vec::new();
        if let (Some(path), count @ 1..) = (&self.policy, checked.warnings.len()) {
            let path = path.display();
            let (each, them) = if count == 1 {
                ("warning", "it")
            } else {
                ("warnings", "them")
            };
            warnings.push(format!(
                "{path} has {count} {each} about its limits: tollgate check {path} shows {them}"
            ));
        }
        if self.is_in_memory() {
            warnings.extend(policy.divided(self.replicas).notes);
            warnings.extend(quotas(policy).map(|quotas| {
                format!(
                    "{quotas}: a restart forgets what was used; --backend URL keeps it in a store"
                )
            }));
        } else {
            warnings.extend(self.rls_closed.warning(policy));
        }
        let is_of_facts = !policy.rules.is_empty() || !policy.tiers.is_empty();
        if !policy.domains.is_empty() && !is_of_facts {
            warnings.push(
                "this policy has limits for descriptors alone: requests of facts (TG.CHECK, /v1/check with facts) meet none and pass"
                    .to_owned(),
            );
        }
        let has_no_names = self.grpc != Address::Off || self.resp != Address::Off;
        // Nobody has chosen the example's limits.
        let is_told = has_no_names && self.policy.is_some();
        if let Some(leases) = leases(policy).filter(|_| is_told) {
            let after = readable(self.most.hold_time);
            warnings.push(format!("{leases} (--hold-time, now {after})"));
        }
        warnings
    }

    /// What it serves, and where.
    pub(super) fn say(&self, out: &mut impl Write, addresses: &Addresses) -> io::Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        match &self.policy {
            Some(path) => writeln!(out, "tollgate {version} serves {}", path.display())?,
            None => writeln!(
                out,
                "tollgate {version} serves an example policy: give it yours by tollgate serve policy.yaml"
            )?,
        }
        match (self.is_in_memory(), self.replicas) {
            (false, _) => writeln!(
                out,
                "limits are counted in {}, together with all that count there",
                Store::without_login(&self.backend)
            )?,
            (true, 1) => writeln!(
                out,
                "limits are counted in this process, and replicas count apart: --replicas N divides the limits, --backend URL counts together"
            )?,
            (true, replicas) => writeln!(
                out,
                "limits are counted in this process, and replicas count apart: each limit is divided by {replicas}"
            )?,
        }
        let each = [
            ("HTTP ", &addresses.http),
            ("gRPC ", &addresses.grpc),
            ("RESP ", &addresses.resp),
            ("admin", &addresses.admin),
        ];
        for (name, address) in each {
            if let Some(address) = address {
                writeln!(out, "{name} on {address}")?;
            }
        }
        if self.policy.is_none() {
            let lines = lines(addresses);
            if !lines.is_empty() {
                writeln!(out, "try:")?;
            }
            for line in lines {
                writeln!(out, "{line}")?;
            }
        }
        out.flush()
    }
}

/// Lines to copy, one for each protocol that is answered.
fn lines(addresses: &Addresses) -> Vec<String> {
    let http = addresses.http.as_ref().map(|address| {
        let (option, host) = of_url(address);
        format!(
            "curl -s {option}-H 'content-type: application/json' -d '{FACTS}' http://{host}/v1/check"
        )
    });
    let resp = addresses.resp.as_ref().map(|address| match address {
        Address::Tcp(tcp) => {
            let tcp = reachable(*tcp);
            format!(
                "redis-cli -h {} -p {} TG.CHECK user=ada",
                tcp.ip(),
                tcp.port()
            )
        }
        other => format!("redis-cli -s {} TG.CHECK user=ada", path(other)),
    });
    let grpc = addresses.grpc.as_ref().map(|address| {
        let (option, host) = of_url(address);
        format!(
            "buf curl --protocol grpc --http2-prior-knowledge {option}-d '{DESCRIPTORS}' http://{host}/{SHOULD_RATE_LIMIT}"
        )
    });
    [http, resp, grpc].into_iter().flatten().collect()
}

/// The option for a socket, if it is one, and the host of a URL.
fn of_url(address: &Address) -> (String, String) {
    match address {
        Address::Tcp(tcp) => (String::new(), reachable(*tcp).to_string()),
        other => (
            format!("--unix-socket {} ", path(other)),
            "localhost".to_owned(),
        ),
    }
}

/// The path of a socket, as a shell takes it.
fn path(address: &Address) -> String {
    let text = address.to_string();
    let path = text.strip_prefix("unix:").unwrap_or(&text);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@,".contains(&byte);
    if path.bytes().all(is_plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}

/// Who listens on all addresses is found on this machine's own.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// The first error of a policy in one line, and how to see the others.
pub(super) fn first_error(rejected: &Rejected) -> String {
    let reports = render::reports(&rejected.errors, &rejected.sources);
    let Some(first) = reports.first() else {
        return "the policy has errors".to_owned();
    };
    let place = match first.line {
        // A file as a whole, which is often named already.
        0 if first.message.contains(first.file) => String::new(),
        0 => format!("{}: ", first.file),
        line => format!("{}:{line}:{}: ", first.file, first.column),
    };
    let help = first
        .help
        .map_or_else(String::new, |help| format!("; {help}"));
    let more = match reports.len() - 1 {
        0 => String::new(),
        more => format!(" ({more} more: see them all by tollgate check)"),
    };
    let line = format!("{place}{}{help}{more}", first.message);
    render::escaped(&line.replace('\n', " ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_find_listeners_wherever_they_are() {
        let addresses = |text: &str| {
            let one: Address = text.parse().unwrap();
            let mut addresses = Addresses::default();
            (addresses.http, addresses.grpc, addresses.resp) =
                (Some(one.clone()), Some(one.clone()), Some(one));
            lines(&addresses)
        };
        for (address, parts) in [
            (
                "0.0.0.0:7000",
                [
                    "http://127.0.0.1:7000/",
                    "-h 127.0.0.1 -p 7000 ",
                    "http://127.0.0.1:7000/",
                ],
            ),
            (
                "[::]:7000",
                [
                    "http://[::1]:7000/",
                    "-h ::1 -p 7000 ",
                    "http://[::1]:7000/",
                ],
            ),
            (
                "unix:/run/a b's",
                [
                    r"--unix-socket '/run/a b'\''s' ",
                    r"-s '/run/a b'\''s' ",
                    r"--unix-socket '/run/a b'\''s' ",
                ],
            ),
        ] {
            for (line, part) in addresses(address).iter().zip(parts) {
                assert!(line.contains(part), "{line}");
            }
        }
        assert_eq!(lines(&Addresses::default()), Vec::<String>::new());
    }
}
