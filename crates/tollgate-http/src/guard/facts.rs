//! The facts of a request that a policy needs.
//!
//! A client must not be able to remove a fact, as that would switch off the rule that needs it. So every fact gets a
//! value whatever the client sends. A header with several values is compared with each value, and with all of them
//! joined: a block or a limit applies if any of them matches, an exemption only if each does. If the value is used,
//! as in a key, the request is denied, because the service might read any of the values.

use std::borrow::Cow;

use tollgate_engine::facts::text_of_bytes;
use tollgate_engine::{Facts, RequiredFacts};

use super::missing_key::{KeySource, MissingKey};
use super::request::{ExtraFacts, Request, Tenant, Tier, User};

/// The most combinations of values for one request.
const MOST_SETS: usize = 64;

/// Headers in which clients usually send an API key, besides `Authorization: ApiKey …`.
const API_KEY_HEADERS: [&str; 3] = ["x-api-key", "api-key", "apikey"];

/// The scheme of an API key in `Authorization`.
const API_KEY_SCHEME: &[u8] = b"apikey ";

/// The value of a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FactValue<'r> {
    Absent,
    /// Borrowed from the request if possible. Joined values of a list, and bytes that aren't text, are copies.
    One(Cow<'r, str>),
    /// The client sends several values, and the policy only compares the fact.
    Several(MultipleValues),
    /// The client sends several values of a fact that has to have one.
    Ambiguous,
}

/// Several values of one fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MultipleValues {
    /// Each distinct value.
    each: Vec<String>,
    /// All values joined, if a service may read them as one text.
    joined: Option<String>,
}

/// How a policy uses the value of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FactUse {
    /// The value is only compared.
    Compared,
    /// The value is part of a key, a cost, a tier or a class.
    Taken,
}

/// Facts that outlive their request.
#[derive(Debug)]
pub(super) struct OwnedFacts {
    /// The facts that the policy needs.
    pub(super) asked: RequiredFacts,
    /// The facts with one value, by their index in `asked`.
    single: Vec<(usize, Box<str>)>,
    /// The facts with several values.
    several: Vec<(usize, MultipleValues)>,
}

impl OwnedFacts {
    /// Copies the facts of a request. The error is a request that is denied because it has too many values.
    pub(super) fn of<R: Request + ?Sized>(
        request: &R,
        ip: Option<&str>,
        asked: RequiredFacts,
    ) -> Result<Self, MissingKey> {
        let (mut single, mut several, mut sets) = (Vec::new(), Vec::new(), 1_usize);
        for (number, name, value) in facts(request, ip, &asked) {
            match value {
                FactValue::Absent => {}
                FactValue::One(text) => single.push((number, text.into())),
                FactValue::Ambiguous => return Err(ambiguous(name)),
                FactValue::Several(values) => {
                    sets = sets.saturating_mul(values.len());
                    if sets > MOST_SETS {
                        return Err(ambiguous(name));
                    }
                    several.push((number, values));
                }
            }
        }
        Ok(Self {
            asked: asked.into_owned(),
            single,
            several,
        })
    }

    /// The facts, with the first value of each fact that has several.
    pub(super) fn first(&self) -> Facts<'_> {
        self.set(0)
    }

    /// The facts with all other combinations of values.
    pub(super) fn others(&self) -> Vec<Facts<'_>> {
        let sets = self
            .several
            .iter()
            .map(|(_, values)| values.len())
            .product();
        (1..sets).map(|number| self.set(number)).collect()
    }

    // The number of a combination is read as digits, one for each fact with several values.
    fn set(&self, mut number: usize) -> Facts<'_> {
        let single = self.single.iter();
        let single = single.map(|(fact, value)| (&*self.asked[*fact], &**value));
        let (mut facts, mut is_joined): (Facts<'_>, _) = (single.collect(), false);
        for (fact, values) in &self.several {
            let place = number % values.len();
            number /= values.len();
            is_joined |= place == values.each.len();
            facts.set(&self.asked[*fact], values.get(place));
        }
        if is_joined {
            facts.as_joined_values()
        } else {
            facts
        }
    }
}

impl MultipleValues {
    fn len(&self) -> usize {
        self.each.len() + usize::from(self.joined.is_some())
    }

    fn get(&self, place: usize) -> &str {
        let each = self.each.get(place).map(String::as_str);
        each.or(self.joined.as_deref()).unwrap_or_default()
    }
}

/// The facts that a policy needs, each with its index.
pub(super) fn facts<'r, R: Request + ?Sized>(
    request: &'r R,
    ip: Option<&'r str>,
    asked: &'r RequiredFacts,
) -> impl Iterator<Item = (usize, &'r str, FactValue<'r>)> {
    let more = request.extension::<ExtraFacts>();
    asked.iter().enumerate().map(move |(number, name)| {
        let value = match more.and_then(|more| more.get(name)) {
            Some(told) => FactValue::One(told.into()),
            None if asked.is_only_compared(number) => {
                fact_value(request, ip, name, FactUse::Compared)
            }
            None => fact_value(request, ip, name, FactUse::Taken),
        };
        (number, &**name, value)
    })
}

/// Why a request with two values of this fact is denied.
#[cold]
pub(super) fn ambiguous(fact: &str) -> MissingKey {
    let wanted = match (header_name(fact), fact) {
        (Some(header), _) => Cow::Owned(format!("a single line of the header {header}")),
        (None, "api_key") => Cow::Borrowed("a single API key"),
        (None, _) => Cow::Owned(format!("a single value of {fact}")),
    };
    MissingKey::new(KeySource::Request, &wanted)
}

/// The value of a fact in the request.
#[inline]
fn fact_value<'r, R: Request + ?Sized>(
    request: &'r R,
    ip: Option<&'r str>,
    name: &'r str,
    used: FactUse,
) -> FactValue<'r> {
    let known = match name {
        "method" => Some(request.method()),
        "path" => Some(request.path()),
        "route" => request.route(),
        "host" => return host_name(request, used),
        "ip" => ip,
        "user" => request.extension::<User>().map(|user| &*user.0),
        "tenant" => request.extension::<Tenant>().map(|tenant| &*tenant.0),
        "tier" => request.extension::<Tier>().map(|tier| &*tier.0),
        "api_key" => return api_key(request, used),
        _ => match header_name(name) {
            Some(header) => return header_value(request, header, used),
            None => None,
        },
    };
    known.map_or(FactValue::Absent, |text| FactValue::One(text.into()))
}

/// The header whose value is this fact. Policies may write a colon instead of the dot.
fn header_name(fact: &str) -> Option<&str> {
    fact.strip_prefix("header.")
        .or_else(|| fact.strip_prefix("header:"))
}

/// The values of a header.
fn header_value<'r, R: Request + ?Sized>(
    request: &'r R,
    name: &'r str,
    used: FactUse,
) -> FactValue<'r> {
    let mut lines = request.header_lines(name);
    let Some(first) = lines.next() else {
        return FactValue::Absent;
    };
    match lines.next() {
        None => text_value(first),
        Some(second) => {
            let lines = [first, second].into_iter().chain(lines).collect();
            several_lines(name, lines, used)
        }
    }
}

/// Joins the values of a list header (RFC 9110). Any other header must have one value.
#[cold]
fn several_lines<'r>(name: &str, lines: Vec<&'r [u8]>, used: FactUse) -> FactValue<'r> {
    let separator: &[u8] = match name {
        // RFC 9113 lets clients split this header.
        "cookie" => b"; ",
        _ => b", ",
    };
    let joined = text_of_bytes(&lines.join(separator)).into_owned();
    match used {
        FactUse::Taken if name == "cookie" || is_list(name) => FactValue::One(joined.into()),
        FactUse::Taken => FactValue::Ambiguous,
        FactUse::Compared => FactValue::Several(MultipleValues {
            each: unique(lines.into_iter().map(text_of_bytes)),
            joined: Some(joined),
        }),
    }
}

/// The distinct values.
fn unique<'v>(values: impl Iterator<Item = Cow<'v, str>>) -> Vec<String> {
    let mut unique: Vec<String> = Vec::new();
    for value in values {
        if !unique.iter().any(|own| **own == *value) {
            unique.push(value.into_owned());
        }
    }
    unique
}

/// The host. A request can state it in its target and in any number of `Host` fields.
fn host_name<R: Request + ?Sized>(request: &R, used: FactUse) -> FactValue<'_> {
    let own = request.host().map(host_without_port);
    let mut lines = request.header_lines("host");
    match (own, lines.next(), lines.next()) {
        (None, None, _) => FactValue::Absent,
        (Some(own), None, _) => FactValue::One(own),
        (Some(own), Some(line), None)
            if str::from_utf8(line).is_ok_and(|line| host_without_port(line) == own) =>
        {
            FactValue::One(own)
        }
        (own, _, _) => several_hosts(request, own, used),
    }
}

#[cold]
fn several_hosts<'r, R: Request + ?Sized>(
    request: &'r R,
    own: Option<Cow<'r, str>>,
    used: FactUse,
) -> FactValue<'r> {
    let lines = request.header_lines("host").map(|line| {
        let written = text_of_bytes(line);
        Cow::Owned(host_without_port(&written).into_owned())
    });
    single_value(unique(own.into_iter().chain(lines)), used)
}

/// The only value. Of several, a service might read any one, so they are compared one by one, and can't be used.
fn single_value<'r>(mut values: Vec<String>, used: FactUse) -> FactValue<'r> {
    match (values.len(), used) {
        (0, _) => FactValue::Absent,
        (1, _) => FactValue::One(values.remove(0).into()),
        (_, FactUse::Taken) => FactValue::Ambiguous,
        (_, FactUse::Compared) => FactValue::Several(MultipleValues {
            each: values,
            joined: None,
        }),
    }
}

/// Whether a header is a list by its definition, so that clients and proxies may send it several times. A header with
/// a similar name (`x-forwarded-user`) has one value.
fn is_list(name: &str) -> bool {
    const LISTS: &str = "accept accept-ch accept-charset accept-encoding accept-language cache-control connection \
        content-encoding content-language expect forwarded if-match if-none-match pragma prefer te trailer \
        transfer-encoding upgrade via warning x-forwarded-by x-forwarded-for x-forwarded-host x-forwarded-port \
        x-forwarded-proto";
    LISTS.split(' ').any(|list| list == name)
}

/// Bytes that aren't text are still a value: without one, a client could switch off the rule.
fn text_value(line: &[u8]) -> FactValue<'_> {
    FactValue::One(text_of_bytes(line))
}

/// The API key, from all places where clients usually send it. Keys in two places have to be equal, and no place may
/// have two.
fn api_key<R: Request + ?Sized>(request: &R, used: FactUse) -> FactValue<'_> {
    let schemes = request.header_lines("authorization").filter_map(|line| {
        let (scheme, key) = line.split_at_checked(API_KEY_SCHEME.len())?;
        scheme.eq_ignore_ascii_case(API_KEY_SCHEME).then_some(key)
    });
    let headers = API_KEY_HEADERS
        .into_iter()
        .flat_map(|name| request.header_lines(name));
    let mut keys = headers
        .chain(schemes)
        .map(<[u8]>::trim_ascii)
        .filter(|key| !key.is_empty());
    let Some(first) = keys.next() else {
        return FactValue::Absent;
    };
    let Some(second) = keys.next() else {
        return text_value(first);
    };
    let is_doubled = |name: &&str| request.header_lines(name).nth(1).is_some();
    let mut places = API_KEY_HEADERS.iter().chain([&"authorization"]);
    if used == FactUse::Taken && places.any(is_doubled) {
        return FactValue::Ambiguous;
    }
    let all = [first, second].into_iter().chain(keys);
    single_value(unique(all.map(text_of_bytes)), used)
}

/// The host without port and trailing dot, in lower case, as rules write it. Otherwise a client could write
/// `API.example.com:80` to avoid a rule for `api.example.com`.
fn host_without_port(written: &str) -> Cow<'_, str> {
    let host = written.trim();
    let port = host.rfind(':').filter(|at| {
        // The colons of an IPv6 address are between brackets.
        !host[*at..].contains(']')
    });
    let host = port.map_or(host, |at| &host[..at]);
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_name() {
        for (written, expected) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.com:8080", "api.example.com"),
            (" api.example.com. ", "api.example.com"),
            ("api.example.com.:80", "api.example.com"),
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("", ""),
            (":80", ""),
        ] {
            assert_eq!(host_without_port(written), expected, "{written}");
        }
    }
}
