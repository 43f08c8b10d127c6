//! More mistakes: globs, hosts and lists where they aren't supported, rules in shadow, and exemptions that clients
//! choose.

use tollgate_engine::lint;

use crate::slips::{check, rule, told};

#[test]
fn a_glob_where_none_is_read() {
    check(
        &rule("path: {prefix: '/api/**'}"),
        lint::LOOKS_LIKE_GLOB,
        "\"/api/**\" looks like a glob, but is compared as a beginning",
        "write \"/api/**\" alone, or {prefix: \"/api/\"}",
    );
    check(
        &rule("path: {regex: '/api/*'}"),
        lint::LOOKS_LIKE_GLOB,
        "\"/api/*\" looks like a glob, but as a regular expression /* is any number of slashes",
        "write {regex: '/api/.*'}, or the glob alone",
    );
    check(
        &rule("path: {regex: '^/api/*/items$'}"),
        lint::LOOKS_LIKE_GLOB,
        "\"^/api/*/items$\" looks like a glob, but as a regular expression /* is any number of slashes",
        "write .* for any text, or the glob alone",
    );
}

#[test]
fn hosts_with_ports_and_lists_in_one_text() {
    for (host, why, help) in [
        (
            "api.example:8080",
            "it is without a port",
            "write \"api.example\"",
        ),
        (
            "api.example.",
            "it is without the dot at its end",
            "write \"api.example\"",
        ),
        (
            "a.example, b.example",
            "it has one of them",
            "write a list: [a.example, b.example]",
        ),
    ] {
        let message = format!("no request has the host {host:?}: {why}");
        check(
            &rule(&format!("host: '{host}'")),
            lint::NOT_A_HOST,
            &message,
            help,
        );
    }
    check(
        &rule("path: '/a, /b/**'"),
        lint::NOT_A_PATH,
        "no request has the path \"/a, /b/**\": it is one of them",
        "write a list: [\"/a\", \"/b/**\"]",
    );
    for fine in [
        "host: {exact: 'api.example:8080'}",
        "host: '[::1]'",
        "path: '/a,b'",
    ] {
        assert_eq!(told(&rule(fine)), [], "{fine}");
    }
}

/// One in shadow takes the place of others in shadow alone.
#[test]
fn a_rule_that_one_in_shadow_replaces_is_reached() {
    let rules = |mode: &str| {
        format!(
            "limits: [{{name: a, match: {{path: /x}}, rate: 10/s, mode: {mode}}}, \
             {{name: b, match: {{path: /x}}, rate: 5/s, replaces: a, mode: shadow}}]"
        )
    };
    assert_eq!(told(&rules("enforce")), []);
    assert_eq!(told(&rules("shadow"))[0].code, lint::NEVER_REACHED);
}

#[test]
fn exemptions_that_a_client_gets_by_what_it_sends() {
    let a = "limits: [{name: a, key: user, rate: 10/s}]";
    let help = "exempt by a fact that was checked, such as ip or user, or have the proxy in front of you take the header out of what \
                clients send";
    for (exempt, header) in [
        ("{header.X-Internal: {present: true}}", "x-internal"),
        ("{header.user-agent: kube-probe, method: GET}", "user-agent"),
        ("{header.authorization: {prefix: Bearer}}", "authorization"),
    ] {
        check(
            &format!("exempt: [{exempt}]\n{a}"),
            lint::EXEMPT_ANYONE_CAN_SET,
            &format!("anyone can set the header {header:?}: whoever sends it isn't limited"),
            help,
        );
    }
    check(
        "limits:\n- {name: vip, match: {header.x-plan: gold}, unlimited: true, replaces: a}\n- {name: a, key: user, rate: 10/s}",
        lint::EXEMPT_ANYONE_CAN_SET,
        "anyone can set the header \"x-plan\": whoever sends it isn't limited",
        help,
    );
    for fine in [
        "{header.x-api-key: s3cret}",
        "{header.x-internal: {present: true}, ip: 10.0.0.0/8}",
        "{path: /healthz, header.user-agent: kube-probe}",
    ] {
        let found = told(&format!("exempt: [{fine}]\n{a}"));
        assert_eq!(found, [], "{fine}");
    }
}
