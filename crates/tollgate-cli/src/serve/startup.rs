//! Output at the start of a service: its addresses, example commands, and warnings.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tollgate_engine::policy::Mode;
use tollgate_engine::{LoadedPolicy, Policy};
use tollgate_redis::Address as Store;
use tollgate_server::{Address, Addresses, Protocol};

use super::ServeOptions;
use crate::output::pluralize as counted;
use crate::policy::{adaptive_note, format_duration, lease_note, quota_note};

/// The facts of an example request.
const EXAMPLE_FACTS: &str = r#"{"facts":{"user":"ada"}}"#;
/// As many successive requests as it takes until the example policy denies one.
const REQUESTS_UNTIL_DENIED: u32 = 11;
const EXAMPLE_DESCRIPTORS: &str =
    r#"{"domain":"example","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
const RLS_METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

impl ServeOptions {
    /// Warnings before the start, one line each.
    pub(super) fn warnings(&self, checked: &LoadedPolicy) -> Vec<String> {
        let mut warnings = Vec::new();
        if let (Some(path), count @ 1..) = (&self.policy, checked.warnings.len()) {
            let (path, them) = (path.display(), if count == 1 { "it" } else { "them" });
            let each = counted(count, "warning");
            warnings.push(format!(
                "{path} has {each} about its limits: tollgate check {path} shows {them}"
            ));
        }
        warnings.extend(self.start_warnings(&checked.policy));
        warnings
    }

    /// Warnings about this policy with these settings, one line each.
    pub(super) fn start_warnings(&self, policy: &Policy) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.is_in_memory() {
            warnings.extend(policy.share_for_replicas(self.replicas).notes);
            warnings.extend(quota_note(policy).filter(|_| self.state_options.state.is_none()).map(|quotas| {
                format!(
                    "{quotas}: a restart forgets what was used; --state DIR keeps it in a folder, --backend URL in a store"
                )
            }));
        } else {
            warnings.extend(self.rls_closed.warning(policy));
        }
        warnings.extend(unenforced_warning(policy));
        let is_of_facts = !policy.rules.is_empty() || !policy.tiers.is_empty();
        if !policy.domains.is_empty() && !is_of_facts {
            warnings.push(
                "this policy has limits for descriptors alone: requests of facts (TG.CHECK, /v1/check with facts) meet none and pass"
                    .to_owned(),
            );
        }
        let has_no_names = self.grpc != Address::Disabled || self.resp != Address::Disabled;
        // The example's limits were not the operator's choice.
        let is_told = has_no_names && self.policy.is_some();
        if let Some(leases) = lease_note(policy).filter(|_| is_told) {
            let after = format_duration(self.limits.permit_ttl);
            warnings.push(format!("{leases} (--hold-time, now {after})"));
        }
        warnings.extend(adaptive_note(policy).filter(|_| is_told));
        if self.security.tls().is_some() && !self.has_tls_listener() {
            warnings.push(
                "no listener speaks TLS: those that --tls-on names are off, or on UNIX sockets"
                    .to_owned(),
            );
        }
        warnings
    }

    /// Prints the policy and the addresses of the listeners.
    pub(super) fn print_listeners(
        &self,
        out: &mut impl Write,
        addresses: &Addresses,
    ) -> io::Result<()> {
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
        if let Some(folder) = &self.state_options.state {
            let every = format_duration(self.state_options.state_every);
            let folder = folder.display();
            writeln!(out, "state is kept in {folder}, and saved every {every}")?;
        }
        let each = [
            ("HTTP ", &addresses.http, Protocol::Http),
            ("gRPC ", &addresses.grpc, Protocol::Grpc),
            ("RESP ", &addresses.resp, Protocol::Resp),
            ("admin", &addresses.admin, Protocol::Admin),
            ("metrics", &addresses.metrics, Protocol::Metrics),
        ];
        for (name, address, on) in each {
            if let Some(address) = address {
                let with = if self.is_tls_listener(address, on) {
                    " with TLS"
                } else {
                    ""
                };
                writeln!(out, "{name} on {address}{with}")?;
            }
        }
        if self.policy.is_none() {
            let lines = example_commands(&self.open_addresses(addresses));
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

impl ServeOptions {
    /// Whether any listener uses TLS.
    fn has_tls_listener(&self) -> bool {
        let mut all = self.listeners().into_iter();
        all.any(|(on, _, address)| self.is_tls_listener(address, on))
    }

    fn is_tls_listener(&self, address: &Address, on: Protocol) -> bool {
        let is_on = self
            .security
            .tls()
            .is_some_and(|tls| tls.listeners.contains(&on));
        is_on && matches!(address, Address::Tcp(_))
    }

    /// The addresses for example commands: listeners without certificates and secrets, which an example can't
    /// include.
    fn open_addresses(&self, addresses: &Addresses) -> Addresses {
        let mut open = addresses.clone();
        let secure = &self.security;
        let (token, password) = (
            &secure.http_client_token_file,
            &secure.resp_client_password_file,
        );
        let closed = |address: &Address, on| self.is_tls_listener(address, on);
        open.http
            .take_if(|own| token.is_some() || closed(own, Protocol::Http));
        open.resp
            .take_if(|own| password.is_some() || closed(own, Protocol::Resp));
        open.grpc.take_if(|own| closed(own, Protocol::Grpc));
        open
    }
}

/// The warning for a policy that denies nothing, because of its mode or the modes of all its rules.
fn unenforced_warning(policy: &Policy) -> Option<String> {
    let has_others = !policy.tiers.is_empty() || !policy.domains.is_empty();
    let is_enforced = policy.rules.iter().any(|rule| rule.mode == Mode::Enforce);
    let why = match policy.mode {
        Mode::Off => "the policy says mode: off, so nothing is limited",
        Mode::Shadow => "the policy says mode: shadow, so limits are counted and nothing is denied",
        Mode::Enforce if has_others || is_enforced || policy.rules.is_empty() => return None,
        Mode::Enforce => "all rules of the policy are off or in shadow, so nothing is denied",
    };
    Some(why.to_owned())
}

/// Example commands to copy, one for each protocol with a listener.
fn example_commands(addresses: &Addresses) -> Vec<String> {
    let http = addresses.http.as_ref().map(|address| {
        let (option, host) = url_option_and_host(address);
        format!(
            "for i in $(seq {REQUESTS_UNTIL_DENIED}); do curl -s -w ' %{{http_code}}\\n' {option}-H 'content-type: application/json' -d '{EXAMPLE_FACTS}' http://{host}/v1/check; done"
        )
    });
    let resp = addresses.resp.as_ref().map(|address| match address {
        Address::Tcp(tcp) => {
            let tcp = loopback_if_unspecified(*tcp);
            format!(
                "redis-cli -h {} -p {} TG.CHECK user=ada",
                tcp.ip(),
                tcp.port()
            )
        }
        other => format!("redis-cli -s {} TG.CHECK user=ada", shell_path(other)),
    });
    let grpc = addresses.grpc.as_ref().map(|address| {
        let (option, host) = url_option_and_host(address);
        format!(
            "buf curl --protocol grpc --http2-prior-knowledge {option}-d '{EXAMPLE_DESCRIPTORS}' http://{host}/{RLS_METHOD}"
        )
    });
    // The command with the loop is the last, because requests after it are denied.
    [resp, grpc, http].into_iter().flatten().collect()
}

/// The curl option for a Unix socket, if the address is one, and the host of the URL.
fn url_option_and_host(address: &Address) -> (String, String) {
    match address {
        Address::Tcp(tcp) => (String::new(), loopback_if_unspecified(*tcp).to_string()),
        other => (
            format!("--unix-socket {} ", shell_path(other)),
            "localhost".to_owned(),
        ),
    }
}

/// The path of a socket, quoted for a shell.
fn shell_path(address: &Address) -> String {
    let path = match address {
        Address::Unix(path, _) => path.to_string_lossy().into_owned(),
        other => other.to_string(),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@,".contains(&byte);
    if path.bytes().all(is_plain) {
        path
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}

/// The loopback address for a listener on all addresses.
fn loopback_if_unspecified(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
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
            example_commands(&addresses)
        };
        for (address, parts) in [
            (
                "0.0.0.0:7000",
                [
                    "-h 127.0.0.1 -p 7000 ",
                    "http://127.0.0.1:7000/",
                    "http://127.0.0.1:7000/",
                ],
            ),
            (
                "[::]:7000",
                [
                    "-h ::1 -p 7000 ",
                    "http://[::1]:7000/",
                    "http://[::1]:7000/",
                ],
            ),
            (
                "unix:/run/a b's",
                [
                    r"-s '/run/a b'\''s' ",
                    r"--unix-socket '/run/a b'\''s' ",
                    r"--unix-socket '/run/a b'\''s' ",
                ],
            ),
        ] {
            for (line, part) in addresses(address).iter().zip(parts) {
                assert!(line.contains(part), "{line}");
            }
        }
        assert_eq!(
            example_commands(&Addresses::default()),
            Vec::<String>::new()
        );
    }
}
