//! Lints on the facts and texts of conditions: names of facts that no request has, and texts that no request matches.

use super::coverage::{StepBudget, match_covers};
use super::{Warnings, codes};
use crate::diagnostic::Code;
use crate::facts::{COMMON_FACTS, is_known_fact};
use crate::native::field_names::RULE_FIELDS;
use crate::native::{ConditionForm, ConditionText, FactMention, PolicySpans, canonical_network};
use crate::policy::{MatchConditions, Pattern, Policy};
use crate::suggestions;

/// The mistake in the text of a condition.
pub(crate) struct TextProblem {
    code: Code,
    pub(crate) message: String,
    pub(crate) help: String,
}

impl TextProblem {
    fn new(code: Code, message: impl Into<String>, help: impl Into<String>) -> Option<Self> {
        let (message, help) = (message.into(), help.into());
        Some(Self {
            code,
            message,
            help,
        })
    }
}

pub(super) fn check_texts(found: &mut Warnings, written: &[ConditionText]) {
    for condition in written {
        if let Some(slip) = find_problem(condition) {
            found.warn(slip.code, condition.span, slip.message, slip.help);
        }
    }
}

/// The texts of a policy's conditions, for a policy whose source files are unknown.
pub(super) fn condition_texts(policy: &Policy) -> Vec<ConditionText> {
    let rules = policy.rules.iter().map(|rule| &rule.matches);
    let mut written = Vec::new();
    for matches in rules.chain(&policy.exempt).chain(&policy.block) {
        for (fact, pattern) in &matches.conditions {
            collect_texts(fact, pattern, matches, &mut written);
        }
    }
    written
}

fn collect_texts(
    fact: &str,
    pattern: &Pattern,
    matches: &MatchConditions,
    written: &mut Vec<ConditionText>,
) {
    for one in pattern.alternatives() {
        let form = match one {
            Pattern::Not(inner) => {
                collect_texts(fact, inner, matches, written);
                continue;
            }
            Pattern::Prefix(_) => ConditionForm::Prefix,
            Pattern::Regex(_) => ConditionForm::Regex,
            Pattern::Cidr(_) => ConditionForm::Network,
            _ => ConditionForm::Plain,
        };
        let text = one.text().map(str::to_owned);
        written.extend(text.map(|text| ConditionText {
            fact: fact.to_owned(),
            text,
            form,
            span: matches.span,
        }));
    }
}

/// The mistake in a value of an override, if no request can have such a value.
pub(crate) fn impossible_value(fact: &str, text: &str) -> Option<TextProblem> {
    let written = ConditionText {
        fact: fact.to_owned(),
        text: text.to_owned(),
        form: ConditionForm::Plain,
        span: crate::document::Span::default(),
    };
    let never = [
        codes::NOT_A_PATH,
        codes::NOT_A_METHOD,
        codes::LOWER_CASE_METHOD,
        codes::NOT_A_HOST,
    ];
    let is_regex = |slip: &TextProblem| slip.code == codes::LOOKS_LIKE_REGEX && fact == "path";
    // Clients of a service may send hosts with a port.
    let is_never = |slip: &TextProblem| never.contains(&slip.code) && strip_port(text).is_none();
    let mut slip = find_problem(&written).filter(|slip| is_never(slip) || is_regex(slip))?;
    // A policy accepts regular expressions. An override doesn't.
    if is_regex(&slip) {
        slip.help = "write a glob, where * is anything but / and ** anything".to_owned();
    } else if let Some(at) = slip.help.find(", or {") {
        slip.help.truncate(at);
    }
    Some(slip)
}

/// The first mistake in a condition's text. A condition with `{exact: …}` is literal on purpose, so it is not checked
/// for patterns.
fn find_problem(condition: &ConditionText) -> Option<TextProblem> {
    let ConditionText {
        fact, text, form, ..
    } = condition;
    match (fact.as_str(), form) {
        (_, ConditionForm::Regex) => {
            return check_glob_as_regex(text).or_else(|| check_partial_regex(text));
        }
        (_, ConditionForm::Network) => return check_network_of_text(fact),
        ("method", ConditionForm::Plain | ConditionForm::Exact) => return check_method(text),
        ("ip", _) => return check_address(text, *form),
        (_, ConditionForm::Exact) => return None,
        _ => {}
    }
    if text.trim() != text {
        let message = format!("{text:?} begins or ends with white space, which no {fact} does");
        let help = format!("write {:?}", text.trim());
        return TextProblem::new(codes::EDGE_SPACE, message, help);
    }
    if *form == ConditionForm::Prefix && text.contains('*') {
        let message = format!("{text:?} looks like a glob, but is compared as a beginning");
        let help = format!(
            "write \"{text}\" alone, or {{prefix: {:?}}}",
            prefix_before_star(text)
        );
        return TextProblem::new(codes::LOOKS_LIKE_GLOB, message, help);
    }
    if looks_like_regex(fact, text) {
        let message = format!(
            "{:?} looks like a regular expression, but is compared as {}",
            text,
            match form {
                ConditionForm::Prefix => "a beginning",
                _ if text.contains('*') => "a glob",
                _ => "it stands",
            }
        );
        let help =
            format!("write {{regex: '{text}'}}, or {{exact: '{text}'}} if this very text is meant");
        return TextProblem::new(codes::LOOKS_LIKE_REGEX, message, help);
    }
    match fact.as_str() {
        "path" => check_path(text, *form),
        "host" => check_host(text),
        "header.user-agent" | "header.referer" | "header.origin" | "header.via" => {
            check_star(fact, text, *form)
        }
        "masked_remote_address" => None,
        _ => check_network_as_text(fact, text, *form),
    }
}

/// Character sequences that occur in regular expressions and not in the values of requests.
const REGEX_SIGNS: [&str; 9] = [
    ".+", "\\d", "\\w", "\\.", "\\/", "(?", "[0-9]", "[a-z]", "[^/]",
];

fn looks_like_regex(fact: &str, text: &str) -> bool {
    let is_anchored = text.len() > 1 && (text.starts_with('^') || text.ends_with('$'));
    let any_rest = text.contains("/.*") || text.starts_with(".*");
    let choice = fact == "path" && text.contains('|');
    is_anchored || any_rest || choice || REGEX_SIGNS.iter().any(|sign| text.contains(sign))
}

/// The text before the first star.
fn prefix_before_star(text: &str) -> &str {
    text.split('*').next().unwrap_or(text)
}

/// Finds a regular expression whose star was meant to match any text. There it only repeats the slash before it.
fn check_glob_as_regex(text: &str) -> Option<TextProblem> {
    let at = text.find("/*")?;
    let message = format!(
        "{text:?} looks like a glob, but as a regular expression /* is any number of slashes"
    );
    let help = match text[at..].trim_end_matches('$') {
        "/*" | "/**" => format!("write {{regex: '{}/.*'}}, or the glob alone", &text[..at]),
        _ => "write .* for any text, or the glob alone".to_owned(),
    };
    TextProblem::new(codes::LOOKS_LIKE_GLOB, message, help)
}

/// Finds a regular expression that describes only the start or a part of a text. It must match the whole text.
fn check_partial_regex(text: &str) -> Option<TextProblem> {
    let ends = ["$", ".*", ".+", ".*)", ".+)"];
    let begins = text.starts_with('^') && !ends.iter().any(|end| text.ends_with(end));
    let is_plain = !text.contains(|sign: char| "\\^$.|?*+()[]{}".contains(sign));
    if !begins && !is_plain {
        return None;
    }
    let message = format!("{text:?} has to fit the whole text, not only a part of it");
    let rest = text.trim_start_matches('^');
    let help = if begins {
        format!("write {{prefix: {rest}}} or {{regex: '{rest}.*'}}; if it is whole, end it by $")
    } else {
        format!("write {{regex: '.*{rest}.*'}} for a part, or {{exact: '{rest}'}}")
    };
    TextProblem::new(codes::REGEX_IS_WHOLE, message, help)
}

/// Facts that are never an address.
const NON_ADDRESS_FACTS: [&str; 7] = [
    "method", "path", "route", "user", "tenant", "api_key", "tier",
];

/// Whether a fact is never an address, so that a network as a condition or a key part makes no sense.
pub(super) fn is_never_address(fact: &str) -> bool {
    NON_ADDRESS_FACTS.contains(&fact)
}

fn check_network_of_text(fact: &str) -> Option<TextProblem> {
    if !is_never_address(fact) {
        return None;
    }
    let message = format!("{fact:?} is no address, so it is in no network");
    TextProblem::new(codes::NETWORK_OF_TEXT, message, "put the network under ip")
}

fn check_network_as_text(fact: &str, text: &str, form: ConditionForm) -> Option<TextProblem> {
    if form != ConditionForm::Plain || !text.contains('/') || canonical_network(text).is_err() {
        return None;
    }
    let message = format!(
        "{text:?} is compared with {fact:?} as it stands: only \"ip\" takes a network as plain text"
    );
    let help = format!("write {{cidr: {text}}}, or {{exact: {text}}} if {fact} has this very text");
    TextProblem::new(codes::LOOKS_LIKE_NETWORK, message, help)
}

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE",
];

/// The words of a text, whatever separates them.
pub(super) fn split_words(text: &str) -> Vec<&str> {
    let words = text.split(|sign: char| !sign.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).collect()
}

fn check_method(text: &str) -> Option<TextProblem> {
    let upper = text.to_ascii_uppercase();
    let words = split_words(&upper);
    if words.len() > 1 && words.iter().all(|word| METHODS.contains(word)) {
        let message = format!("no request has the method {text:?}: it has one of them");
        let help = format!("write a list: [{}]", words.join(", "));
        return TextProblem::new(codes::NOT_A_METHOD, message, help);
    }
    if matches!(upper.as_str(), "ANY" | "ALL") {
        let message = format!("no request has the method {text:?}");
        let help = "leave the method out, or write \"*\"";
        return TextProblem::new(codes::NOT_A_METHOD, message, help);
    }
    if text != upper && METHODS.contains(&upper.as_str()) {
        let message = format!("no request has the method {text:?}: methods are in capitals");
        return TextProblem::new(codes::LOWER_CASE_METHOD, message, format!("write {upper}"));
    }
    None
}

fn check_path(text: &str, form: ConditionForm) -> Option<TextProblem> {
    let not = |why: &str, help: String| {
        let message = format!("no request has the path {text:?}: {why}");
        TextProblem::new(codes::NOT_A_PATH, message, help)
    };
    let is_glob = form == ConditionForm::Glob || text.contains('*');
    if let Some(list) = comma_separated_paths(text) {
        return not("it is one of them", format!("write a list: {list}"));
    }
    if let Some((_, rest)) = text.split_once("://") {
        let path = rest.find('/').map_or("/", |at| &rest[at..]);
        return not(
            "a path has no host",
            format!("write {path:?}, and the host under host"),
        );
    }
    if text.starts_with('*') && !text.starts_with("**") {
        let why = "paths begin with /, and * is anything but /";
        return not(why, format!("write \"*{text}\", where ** is anything"));
    }
    if !text.starts_with(['/', '*']) {
        return not("paths begin with /", format!("write \"/{text}\""));
    }
    if let Some((path, query)) = text.split_once('?')
        && (!is_glob || query.contains('='))
    {
        return not(
            "it is without the query string",
            format!("write {path:?}, or {{exact: …}} if your requests' paths have a query"),
        );
    }
    if let Some((path, _)) = text.split_once('#') {
        return not("it is without what follows #", format!("write {path:?}"));
    }
    if let Some(sign) = text.chars().find(|sign| !sign.is_ascii_graphic()) {
        let bytes = sign.to_string();
        let encoded: String = bytes.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let help = format!("write {encoded} for {sign:?}");
        return not("paths come percent-encoded", help);
    }
    if let Some(part) = text.split('/').find(|part| is_route_parameter(part)) {
        let help = format!(
            "write * for {part:?}, or match the route, which is the pattern that a path fits"
        );
        return not("it has no parameters in it", help);
    }
    if text.contains('[') && text.contains(']') || text.contains('{') && text.contains('}') {
        let why = "globs have *, ** and ?, but neither [] nor {}";
        return not(why, "write a list of globs, or {regex: …}".to_owned());
    }
    if form == ConditionForm::Plain && !is_glob && text.len() > 1 && text.ends_with('/') {
        let message = format!("only the path {text:?} itself meets this, and nothing below it");
        let help = format!("write \"{text}**\", or {{exact: {text}}} if it alone is meant");
        return TextProblem::new(codes::ONLY_THIS_PATH, message, help);
    }
    None
}

/// The help for several paths in one text with commas between them: the same paths as a list.
fn comma_separated_paths(text: &str) -> Option<String> {
    let each: Vec<&str> = text.split(',').map(str::trim).collect();
    let is_list = each.len() > 1 && each.iter().all(|path| path.starts_with('/'));
    is_list.then(|| format!("{each:?}"))
}

/// Whether a part of a route is a parameter: `{id}`, `:id` or `<id>`.
fn is_route_parameter(part: &str) -> bool {
    let inside = |open: char, close: char| {
        let inside = part
            .strip_prefix(open)
            .and_then(|part| part.strip_suffix(close));
        inside.is_some_and(|name| !name.is_empty() && !name.contains(','))
    };
    let is_colon = part.strip_prefix(':').is_some_and(|name| !name.is_empty());
    is_colon || inside('{', '}') || inside('<', '>')
}

fn check_host(text: &str) -> Option<TextProblem> {
    let (why, help) = if text.contains('/') {
        let bare = text.split_once("://").map_or(text, |(_, rest)| rest);
        let bare = bare.split('/').next().unwrap_or(bare);
        ("it has neither a scheme nor a path", bare.to_owned())
    } else if text.contains(',') {
        let each: Vec<_> = text.split(',').map(str::trim).collect();
        let message = format!("no request has the host {text:?}: it has one of them");
        let help = format!("write a list: [{}]", each.join(", "));
        return TextProblem::new(codes::NOT_A_HOST, message, help);
    } else if let Some(bare) = strip_port(text) {
        ("it is without a port", bare.to_owned())
    } else if text.len() > 1 && text.ends_with('.') {
        (
            "it is without the dot at its end",
            text.trim_end_matches('.').to_owned(),
        )
    } else if text.contains(|sign: char| sign.is_ascii_uppercase()) {
        ("hosts are in lower case", text.to_ascii_lowercase())
    } else {
        return None;
    };
    let message = format!("no request has the host {text:?}: {why}");
    TextProblem::new(codes::NOT_A_HOST, message, format!("write {help:?}"))
}

/// The host without its port, if it has one.
fn strip_port(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && (!host.contains(':') || host.ends_with(']'))).then_some(host)
}

/// Finds an address in a form that no request has. Addresses are compared as text.
fn check_address(text: &str, form: ConditionForm) -> Option<TextProblem> {
    let wrong = match form {
        ConditionForm::Exact => match text.parse::<std::net::IpAddr>() {
            Ok(address) => address.to_canonical().to_string() != *text,
            Err(_) => true,
        },
        ConditionForm::Prefix | ConditionForm::Glob => {
            text.contains(|sign: char| sign.is_ascii_uppercase())
        }
        ConditionForm::Plain if text.contains('*') => {
            text.contains(|sign: char| sign == '/' || sign.is_ascii_uppercase())
        }
        _ => false,
    };
    if !wrong {
        return None;
    }
    let message =
        format!("no request has the ip {text:?}: addresses are compared letter by letter here");
    let help = "write the address or the network alone, as in ip: 2001:db8::/32";
    TextProblem::new(codes::NOT_AN_ADDRESS, message, help)
}

/// Finds a star that is meant to match a value with slashes.
fn check_star(fact: &str, text: &str, form: ConditionForm) -> Option<TextProblem> {
    let at = text.find('*').filter(|_| form != ConditionForm::Prefix)?;
    let is_double = text[at..].starts_with("**");
    if is_double || text[..at].contains('/') {
        return None;
    }
    let header = fact.trim_start_matches("header.");
    let message = format!(
        "{text:?} meets no {header} with a slash in it, and nearly all have one: * is anything but /"
    );
    let help = format!("write {:?}", text.replace('*', "**"));
    TextProblem::new(codes::STAR_STOPS_AT_SLASH, message, help)
}

/// A shorter name would be too close to many other names.
const MIN_NAME_LENGTH: usize = 4;

pub(super) fn check_facts(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    for mention in &places.fact_mentions {
        let fact = mention.fact.as_str();
        if is_known_fact(fact) || policy.facts.iter().any(|own| own == fact) {
            continue;
        }
        if mention.is_condition && RULE_FIELDS.contains(&fact) {
            let message = format!(
                "{fact:?} is a field of a rule, but here it is a condition on a fact of that name"
            );
            let help = format!(
                "move it out of match, one level to the left; if it is a fact of yours, say so: facts: [{fact}]"
            );
            found.warn(codes::FIELD_IN_MATCH, mention.span, message, help);
        } else if let Some(near) = closest_known_fact(fact) {
            warn_misspelt_fact(found, mention, &near);
        }
    }
    check_blocked_exemptions(found, policy);
}

fn warn_misspelt_fact(found: &mut Warnings, mention: &FactMention, near: &str) {
    let fact = &mention.fact;
    let message = format!("requests are likely to have no fact {fact:?}, so this never applies");
    let help = format!("did you mean {near:?}? If it is a fact of yours, say so: facts: [{fact}]");
    found.warn(codes::MISSPELT_FACT, mention.span, message, help);
}

/// The well-known fact whose name is close to this one.
fn closest_known_fact(fact: &str) -> Option<String> {
    if let Some((head, name)) = fact.split_once(['.', ':'])
        && matches!(
            head.to_ascii_lowercase().as_str(),
            "headers" | "hdr" | "http_header"
        )
    {
        return Some(format!("header.{name}"));
    }
    let plain = fact.to_ascii_lowercase().replace('-', "_");
    if let Some((_, known)) = KNOWN_ALIASES.iter().find(|(other, _)| *other == plain) {
        return Some((*known).to_owned());
    }
    let alike = |known: &&str| {
        let is_long = fact.len() >= MIN_NAME_LENGTH && known.len() >= MIN_NAME_LENGTH;
        is_long || known.eq_ignore_ascii_case(fact)
    };
    let candidates = COMMON_FACTS.iter().copied().filter(alike);
    suggestions::closest(fact, candidates).map(str::to_owned)
}

/// Other programs' names for the well-known facts.
const KNOWN_ALIASES: [(&str, &str); 8] = [
    ("user_id", "user"),
    ("userid", "user"),
    ("tenant_id", "tenant"),
    ("tenantid", "tenant"),
    ("client_ip", "ip"),
    ("remote_ip", "ip"),
    ("ip_address", "ip"),
    ("http_method", "method"),
];

/// Warns of exemptions of blocked requests. Blocks have precedence, so these exemptions have no effect.
fn check_blocked_exemptions(found: &mut Warnings, policy: &Policy) {
    let fuel = StepBudget::new();
    for (number, exempt) in policy.exempt.iter().enumerate() {
        let blocks = policy.block.iter();
        let Some(block) = blocks
            .clone()
            .position(|block| match_covers(block, exempt, &fuel))
        else {
            continue;
        };
        let message = format!(
            "every request of exempt[{number}] is blocked by block[{block}], which comes first"
        );
        let help = "narrow the block, or leave the exemption out";
        found.warn(codes::EXEMPT_IS_BLOCKED, exempt.span, message, help);
    }
}
