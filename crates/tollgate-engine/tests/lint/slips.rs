//! Mistakes by which nothing, or something else, is limited: each warning says what to write instead.

use tollgate_engine::document::Format;
use tollgate_engine::{Code, Diagnostic, Policy, lint, native};

/// All diagnostics of a policy, errors or warnings.
pub(crate) fn told(text: &str) -> Vec<Diagnostic> {
    match Policy::from_text(text, Format::Yaml) {
        Ok(checked) => checked.warnings,
        Err(rejected) => rejected.errors,
    }
}

/// A rule with one condition.
pub(crate) fn rule(condition: &str) -> String {
    format!("limits: [{{name: a, match: {{{condition}}}, key: user, rate: 10/s}}]")
}

pub(crate) fn check(text: &str, code: Code, message: &str, help: &str) {
    let found = told(text);
    let shown: Vec<_> = found
        .iter()
        .map(|one| {
            (
                one.code,
                one.message.as_str(),
                one.help.as_deref().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(shown, [(code, message, help)], "{text}");
    assert_ne!(found[0].span.start.line, 0, "{text}: it says where");
}

#[test]
fn a_regular_expression_without_its_kind() {
    check(
        &rule("path: '^/v1/.*$'"),
        native::codes::REGEX_AS_TEXT,
        "no path begins with \"^\": this is compared as it stands, not as a regular expression",
        "write path: {regex: '^/v1/.*$'}, or a glob such as /v1/**",
    );
    check(
        &rule("path: '/v2/(a|b)'"),
        lint::LOOKS_LIKE_REGEX,
        "\"/v2/(a|b)\" looks like a regular expression, but is compared as it stands",
        "write {regex: '/v2/(a|b)'}, or {exact: '/v2/(a|b)'} if this very text is meant",
    );
    check(
        &rule("path: '/v2/.*'"),
        lint::LOOKS_LIKE_REGEX,
        "\"/v2/.*\" looks like a regular expression, but is compared as a glob",
        "write {regex: '/v2/.*'}, or {exact: '/v2/.*'} if this very text is meant",
    );
    check(
        &rule("path: {regex: '^/v1/'}"),
        lint::REGEX_IS_WHOLE,
        "\"^/v1/\" has to fit the whole text, not only a part of it",
        "write {prefix: /v1/} or {regex: '/v1/.*'}; if it is whole, end it by $",
    );
    check(
        &rule("header.user-agent: {regex: bot}"),
        lint::REGEX_IS_WHOLE,
        "\"bot\" has to fit the whole text, not only a part of it",
        "write {regex: '.*bot.*'} for a part, or {exact: 'bot'}",
    );
    for fine in [
        "path: {exact: '^/v1/.*$'}",
        "path: {regex: '^/v1/.*$'}",
        "path: {regex: '/v[0-9]+/.*'}",
        "path: '/.well-known/**'",
        "host: 'api.*'",
        "path: '/static/*.*'",
    ] {
        assert_eq!(told(&rule(fine)), [], "{fine}");
    }
}

#[test]
fn a_network_on_what_is_no_address() {
    check(
        "block: [{remote_address: 10.0.0.0/8}]",
        native::codes::NETWORK_AS_TEXT,
        "\"remote_address\" is one address and never \"10.0.0.0/8\": only \"ip\" takes a network as plain text",
        "write remote_address: {cidr: 10.0.0.0/8}, or ip: 10.0.0.0/8",
    );
    check(
        "block: [{peer: 10.0.0.0/8}]",
        lint::LOOKS_LIKE_NETWORK,
        "\"10.0.0.0/8\" is compared with \"peer\" as it stands: only \"ip\" takes a network as plain text",
        "write {cidr: 10.0.0.0/8}, or {exact: 10.0.0.0/8} if peer has this very text",
    );
    check(
        "block: [{user: {cidr: 10.0.0.0/8}}]",
        lint::NETWORK_OF_TEXT,
        "\"user\" is no address, so it is in no network",
        "put the network under ip",
    );
    check(
        "limits: [{name: a, key: user/24, rate: 10/s}]",
        lint::NETWORK_OF_TEXT,
        "\"user\" is no address, so it has no network of 24 bits",
        "write user alone, or ip/24",
    );
    for (key, bits) in [
        ("ip/128", 128),
        ("ip/65", 65),
        ("{first: [user, ip/65]}", 65),
    ] {
        check(
            &format!("limits: [{{name: a, key: {key}, rate: 10/s}}]"),
            lint::EACH_IPV6_ADDRESS,
            &format!(
                "ip/{bits} counts by {bits} bits of an IPv6 address, and a client has all addresses that begin with the same 64: with \
                 another one in each request, it isn't limited"
            ),
            "write ip, which is ip/64, or ip/56 or ip/48 for networks of providers",
        );
    }
    check(
        "block: [{ip: {exact: '2001:DB8::1'}}]",
        lint::NOT_AN_ADDRESS,
        "no request has the ip \"2001:DB8::1\": addresses are compared letter by letter here",
        "write the address or the network alone, as in ip: 2001:db8::/32",
    );
    for fine in [
        "block: [{remote_address: {cidr: 10.0.0.0/8}}]",
        "block: [{remote_address: 10.0.0.1}]",
        "block: [{masked_remote_address: 10.0.0.0/8}]",
        "block: [{ip: 10.0.0.0/8}]",
        "block: [{ip: '10.0.*'}]",
        "block: [{ip: '2001:DB8::1'}]",
    ] {
        assert_eq!(told(fine), [], "{fine}");
    }
}

#[test]
fn what_no_path_is() {
    let not = |text: &str, why: &str, help: &str| {
        let message = format!("no request has the path {text:?}: {why}");
        check(
            &rule(&format!("path: {text:?}")),
            lint::NOT_A_PATH,
            &message,
            help,
        );
    };
    not("api/**", "paths begin with /", "write \"/api/**\"");
    not(
        "https://x.org/a",
        "a path has no host",
        "write \"/a\", and the host under host",
    );
    not(
        "*",
        "paths begin with /, and * is anything but /",
        "write \"**\", where ** is anything",
    );
    not(
        "/search?q=1",
        "it is without the query string",
        "write \"/search\", or {exact: …} if your requests' paths have a query",
    );
    not("/a#b", "it is without what follows #", "write \"/a\"");
    not(
        "/café",
        "paths come percent-encoded",
        "write %C3%A9 for 'é'",
    );
    not(
        "/users/{id}",
        "it has no parameters in it",
        "write * for \"{id}\", or match the route, which is the pattern that a path fits",
    );
    not(
        "/users/:id/x",
        "it has no parameters in it",
        "write * for \":id\", or match the route, which is the pattern that a path fits",
    );
    not(
        "/v{1,2}/**",
        "globs have *, ** and ?, but neither [] nor {}",
        "write a list of globs, or {regex: …}",
    );
    check(
        &rule("path: /api/"),
        lint::ONLY_THIS_PATH,
        "only the path \"/api/\" itself meets this, and nothing below it",
        "write \"/api/**\", or {exact: /api/} if it alone is meant",
    );
    check(
        &rule("path: ' /api'"),
        lint::EDGE_SPACE,
        "\" /api\" begins or ends with white space, which no path does",
        "write \"/api\"",
    );
    for fine in [
        "path: /",
        "path: '**/x'",
        "path: '/a?c/*'",
        "route: '/users/{id}'",
        "path: {prefix: /api/}",
    ] {
        assert_eq!(told(&rule(fine)), [], "{fine}");
    }
}

#[test]
fn what_no_method_host_or_header_is() {
    check(
        &rule("method: 'GET|post'"),
        lint::NOT_A_METHOD,
        "no request has the method \"GET|post\": it has one of them",
        "write a list: [GET, POST]",
    );
    check(
        &rule("method: ANY"),
        lint::NOT_A_METHOD,
        "no request has the method \"ANY\"",
        "leave the method out, or write \"*\"",
    );
    check(
        &rule("host: 'https://API.example.com/'"),
        lint::NOT_A_HOST,
        "no request has the host \"https://API.example.com/\": it has neither a scheme nor a path",
        "write \"API.example.com\"",
    );
    check(
        &rule("host: API.example.com"),
        lint::NOT_A_HOST,
        "no request has the host \"API.example.com\": hosts are in lower case",
        "write \"api.example.com\"",
    );
    check(
        "block: [{header.User-Agent: '*bot*'}]",
        lint::STAR_STOPS_AT_SLASH,
        "\"*bot*\" meets no user-agent with a slash in it, and nearly all have one: * is anything but /",
        "write \"**bot**\"",
    );
    for fine in [
        "method: '*'",
        "method: PROPFIND",
        "host: '*.example.com'",
        "header.user-agent: 'curl/*'",
        "header.user-agent: '**bot**'",
        "header.accept: '*json'",
    ] {
        assert_eq!(told(&rule(fine)), [], "{fine}");
    }
}

#[test]
fn a_rule_for_each_that_has_one_counter() {
    for (name, says, fact) in [
        ("per-user", "per user", "user"),
        ("login_per_ip", "per ip", "ip"),
        ("By Tenant", "by tenant", "tenant"),
    ] {
        check(
            &format!("limits: [{{name: {name}, rate: 10/s}}]"),
            lint::NO_KEY,
            &format!("the name says {says:?}, but without a key all of them share one counter"),
            &format!("add key: {fact}, or another name if one counter is meant"),
        );
    }
    check(
        "limits: [{name: a, match: {user: {present: true}}, rate: 10/s}]",
        lint::NO_KEY,
        "it is for requests with any user, but without a key all of them share one counter",
        "add key: user, or another name if one counter is meant",
    );
    for fine in [
        "limits: [{name: per-user, key: user, rate: 10/s}]",
        "limits: [{name: per-second, rate: 10/s}]",
        "limits: [{name: user, rate: 10/s}]",
        "limits: [{name: a, match: {user: {present: false}}, rate: 10/s}]",
        "limits: [{name: a, match: {user: ann}, rate: 10/s}]",
    ] {
        assert_eq!(told(fine), [], "{fine}");
    }
}

#[test]
fn tenants_that_no_tier_limits() {
    let tiers = "tiers: {free: {rate: 10/s}, pro: {rate: 100/s}}\n";
    check(
        &format!("{tiers}tenants: {{acme: pro, b: free}}"),
        lint::NO_DEFAULT_TIER,
        "a tenant that isn't listed is in no tier, and unlimited",
        "say default_tier: free; if they are to be unlimited, name a tier with unlimited: true",
    );
    check(
        &format!("{tiers}tier_fact: plan"),
        lint::NO_DEFAULT_TIER,
        "a tenant that isn't listed and whose requests have no plan of a tier is in no tier, and unlimited",
        "say default_tier: free; if they are to be unlimited, name a tier with unlimited: true",
    );
    let all = "default_tier: free\ntenants: {b: pro";
    for fine in [
        format!("{tiers}{all}}}"),
        format!(
            "{tiers}tenants: {{a: free, b: pro}}\nlimits: [{{name: all, key: tenant, rate: 5/s}}]"
        ),
    ] {
        assert_eq!(told(&fine), [], "{fine}");
    }
    check(
        &format!("{tiers}{all}, 'acme-*': pro}}"),
        lint::TENANT_IS_NO_PATTERN,
        "tenants are names, and none is called \"acme-*\"",
        "name each of them, carry the tier in a fact (tier_fact), or make it the default_tier",
    );
    let by_tier = "limits: [{name: a, match: {tier: pro}, key: user, rate: 10/s}]";
    check(
        &format!("{tiers}{all}}}\n{by_tier}"),
        lint::TIER_IS_NO_FACT,
        "\"tier\" is a fact that requests bring, not the tier that tenants are in here",
        "put the limit into the tier, or match the tenants; if requests do bring it, say so: facts: [tier]",
    );
    for fine in [
        format!("{tiers}{all}}}\nfacts: [tier]\n{by_tier}"),
        format!("{tiers}{all}}}\ntier_fact: tier\n{by_tier}"),
        by_tier.to_owned(),
    ] {
        assert_eq!(told(&fine), [], "{fine}");
    }
}

#[test]
fn a_rule_and_a_tier_of_one_name() {
    let text = "limits: [{name: pro, key: user, rate: 5/s}]\ntiers: {pro: {rate: 10/s}}\ndefault_tier: pro";
    check(
        text,
        native::codes::DUPLICATE_NAME,
        "a rule and a tier are both called \"pro\"",
        "rename one of them: answers and metrics tell limits apart by name; the rule is in <text> line 1",
    );
    // A policy that is made in code can't have both, either.
    let rules = "limits: [{name: pro, key: user, rate: 5/s}]";
    let mut policy = Policy::from_text(rules, Format::Yaml)
        .expect("a rule")
        .policy;
    let tiers = "tiers: {pro: {rate: 10/s}}\ndefault_tier: pro";
    let tiers = Policy::from_text(tiers, Format::Yaml)
        .expect("a tier")
        .policy;
    (policy.tiers, policy.default_tier) = (tiers.tiers, tiers.default_tier);
    let memory = tollgate_engine::backend::Memory::new();
    let error = tollgate_engine::Engine::new(policy, memory).expect_err("one name");
    assert_eq!(
        error.to_string(),
        "a rule and a tier are both called \"pro\"; answers and metrics tell limits apart by name: rename one of them"
    );
}

#[test]
fn exemptions_and_replacements_that_do_something_else() {
    let a = "limits: [{name: a, key: user, rate: 10/s}]";
    for (exempt, facts) in [
        ("{path: '/**'}", "a path"),
        ("{path: {prefix: /}, method: '*'}", "a path and a method"),
        ("{ip: [0.0.0.0/0, '::/0']}", "a ip"),
        ("{ip: 0.0.0.0/0}", "a client of IPv4"),
        (
            "{path: {regex: '^/.*$'}, host: {regex: .*}}",
            "a path and a host",
        ),
    ] {
        check(
            &format!("exempt: [{exempt}]\n{a}"),
            lint::EXEMPTS_ALL,
            &format!("exempt[0] holds of every request that has {facts}: nothing limits them"),
            "name the requests that are exempt, as in {path: /healthz}",
        );
    }
    check(
        "limits:\n- {name: vip, match: {user: ada}, unlimited: true}\n- {name: a, key: user, rate: 10/s}",
        lint::UNLIMITED_REPLACES_NOTHING,
        "\"vip\" is unlimited and replaces nothing: \"a\" still limits its requests",
        "say replaces: \"a\", or list its requests under exempt",
    );
    check(
        "limits:\n- {name: a, match: {path: /a}, key: user, rate: 1/s, replaces: b}\n\
         - {name: b, match: {path: '/b/**'}, key: user, rate: 10/s}",
        lint::REPLACES_NOTHING,
        "\"a\" and \"b\" are never for the same request: no path meets the conditions of both",
        "leave it out, or change what either of them matches",
    );
    check(
        "limits: [{name: a, match: {user: {not: {present: true}}}, key: user, rate: 10/s}]",
        lint::NEVER_REACHED,
        "the rule \"a\" is never reached: it counts by \"user\", but matches only requests without it",
        "take it out, or change what either of them matches",
    );
    for fine in [
        format!("exempt: [{{path: '/health/**'}}]\n{a}"),
        format!("exempt: [{{ip: '::/0'}}]\n{a}"),
        "limits:\n- {name: vip, match: {user: ada}, unlimited: true, replaces: a}\n- {name: a, key: user, rate: 10/s}"
            .to_owned(),
        "limits:\n- {name: vip, match: {path: /x}, unlimited: true}\n- {name: a, match: {path: /y}, rate: 10/s}"
            .to_owned(),
    ] {
        assert_eq!(told(&fine), [], "{fine}");
    }
}

#[test]
fn a_policy_without_its_files_is_judged_as_well() {
    let text = "exempt: [{path: '/**'}]\nlimits:\n- {name: per-user, match: {host: 'X.org'}, rate: 10/s}\n\
                - {name: b, match: {path: 'x/**'}, rate: 10/s}";
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("warnings")
        .policy;
    let mut codes: Vec<_> = lint::lint(&policy).iter().map(|one| one.code).collect();
    codes.sort();
    assert_eq!(
        codes,
        [
            lint::EXEMPTS_ALL,
            lint::NO_KEY,
            lint::NOT_A_HOST,
            lint::NOT_A_PATH
        ]
    );
}

#[test]
fn the_one_line_of_a_rejected_policy_names_the_cause() {
    let text = "limits:\n- name: a\n  raet: 5/s\n";
    let rejected = Policy::from_text(text, Format::Yaml).expect_err("a slip");
    assert_eq!(
        rejected.errors[0].code,
        native::codes::NO_LIMIT,
        "what comes first in the file"
    );
    assert_eq!(
        rejected.summary(),
        "<text>:3:3: unknown field \"raet\" in a rule; did you mean \"rate\"? (1 more: see them all by tollgate check)"
    );
}
