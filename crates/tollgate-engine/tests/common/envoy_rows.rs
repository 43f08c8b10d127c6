//! Which limit a request matches by envoyproxy/ratelimit's rules: for the engine, and for the service through its
//! sockets.

/// What requests are held against.
pub(crate) const POLICY: &str = "
domain: edge
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: user, value: root, rate_limit: {unlimited: true}}
- {key: user, value: bot-*, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: user, value: '*-admin', rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: user, value: bot-a*, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: path, value: '/api/*/users*', rate_limit: {unit: hour, requests_per_unit: 4}}
- {key: path, value: ab*ba, rate_limit: {unit: hour, requests_per_unit: 4}}
- key: path
  value: /login
  descriptors:
  - {key: ip, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: ip, value: 10.*, rate_limit: {unit: second, requests_per_unit: 50}}
- key: path
  rate_limit: {unit: second, requests_per_unit: 100}
  descriptors:
  - {key: method, value: POST, rate_limit: {unit: second, requests_per_unit: 10}}
- key: tenant
  value: '*'
  share_threshold: true
  descriptors:
  - {key: route, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: a_b, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: bare, value: bare, descriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 9}}]}
- {key: bare, descriptors: [{key: y, rate_limit: {unit: day, requests_per_unit: 9}}]}
- {key: status, value: 404, rate_limit: {unit: day, requests_per_unit: 9}}
---
domain: other
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 7}}
";

/// Which limit a request comes to: domain, entries, and the path of the limit.
pub(crate) type Request = (
    &'static str,
    &'static [(&'static str, &'static str)],
    Option<&'static str>,
);

#[rustfmt::skip]
pub(crate) const REQUESTS: &[Request] = &[
    // Exact before wildcards before the key alone.
    ("edge", &[("user", "42")], Some("edge/user")),
    ("edge", &[("user", "root")], Some("edge/user=root")),
    ("edge", &[("user", "bot-b")], Some("edge/user=bot-*")),
    ("edge", &[("user", "x-admin")], Some("edge/user=*-admin")),
    ("edge", &[("user", "")], Some("edge/user")),
    ("edge", &[("user", "roo")], Some("edge/user")),
    ("edge", &[("user", "ROOT")], Some("edge/user")),
    // Wildcards in the order of the file, not by length.
    ("edge", &[("user", "bot-a")], Some("edge/user=bot-*")),
    ("edge", &[("user", "bot-admin")], Some("edge/user=bot-*")),
    ("edge", &[("user", "bot-x-admin")], Some("edge/user=bot-*")),
    ("edge", &[("user", "bot-")], Some("edge/user=bot-*")),
    ("edge", &[("user", "-admin")], Some("edge/user=*-admin")),
    ("edge", &[("user", "bot")], Some("edge/user")),
    // A value that reads like a wildcard is just that one.
    ("edge", &[("user", "bot-a*")], Some("edge/user=bot-a*")),
    // A star anywhere, for anything or nothing, without overlap.
    ("edge", &[("path", "/api/v1/users")], Some("edge/path=/api/*/users*")),
    ("edge", &[("path", "/api//users/7")], Some("edge/path=/api/*/users*")),
    ("edge", &[("path", "/api/users")], Some("edge/path")),
    ("edge", &[("path", "abba")], Some("edge/path=ab*ba")),
    ("edge", &[("path", "aba")], Some("edge/path")),
    ("edge", &[("path", "ab\nba")], Some("edge/path=ab*ba")),
    // Depth must be equal: no parent stands in, no child is reached early.
    ("edge", &[("path", "/login"), ("ip", "1.2.3.4")], Some("edge/path=/login/ip")),
    ("edge", &[("path", "/login"), ("ip", "10.2.3.4")], Some("edge/path=/login/ip=10.*")),
    ("edge", &[("path", "/login")], None),
    ("edge", &[("path", "/login"), ("ip", "1.2.3.4"), ("user", "42")], None),
    ("edge", &[("path", "/x"), ("method", "POST")], Some("edge/path/method=POST")),
    ("edge", &[("path", "/x"), ("method", "GET")], None),
    ("edge", &[("path", "/x")], Some("edge/path")),
    ("edge", &[("user", "42"), ("path", "/x")], None),
    ("edge", &[("ip", "1.2.3.4"), ("path", "/login")], None),
    ("edge", &[("ip", "1.2.3.4")], None),
    // What was chosen stays chosen: the key alone has a child that the value has not.
    ("edge", &[("bare", "bare"), ("x", "1")], Some("edge/bare=bare/x")),
    ("edge", &[("bare", "bare"), ("y", "1")], None),
    ("edge", &[("bare", "else"), ("y", "1")], Some("edge/bare/y")),
    ("edge", &[("path", "/login"), ("method", "POST")], None),
    // A star alone is any value, and another key is another.
    ("edge", &[("tenant", "acme"), ("route", "r")], Some("edge/tenant=*/route")),
    ("edge", &[("tenant", ""), ("route", "r")], Some("edge/tenant=*/route")),
    ("edge", &[("tenant", "acme")], None),
    ("edge", &[("nobody", "42")], None),
    ("edge", &[("User", "42")], None),
    // Keys and values are never joined.
    ("edge", &[("a_b", "c")], Some("edge/a_b")),
    ("edge", &[("a", "b")], None),
    ("edge", &[("a", "b_c")], None),
    ("edge", &[("tenant_x", "y"), ("route", "r")], None),
    // A number is text.
    ("edge", &[("status", "404")], Some("edge/status=404")),
    ("edge", &[("status", "405")], None),
    // Nothing at all, and domains.
    ("edge", &[], None),
    ("other", &[("user", "root")], Some("other/user")),
    ("other", &[("path", "/login")], None),
    ("unknown", &[("user", "42")], None),
    ("", &[("user", "42")], None),
];
