//! The keys of counters.

use super::CompiledLimit;
use crate::facts::Unit;

/// Writes the key of a limit's counter for these entries, piece by piece, so that a caller can write it to a hasher
/// or a reused buffer. Keys of different domains, entries or shared patterns differ, and no key is a prefix of
/// another.
///
/// The entries must be those that led to the limit.
///
/// ```
/// use tollgate_engine::envoy::{self, DescriptorIndex};
/// use tollgate_engine::facts::Descriptor;
///
/// let file = "
/// domain: edge
/// descriptors:
/// - key: path
///   value: /files/*
///   share_threshold: true
///   rate_limit: {unit: minute, requests_per_unit: 5}
/// ";
/// let compiled = DescriptorIndex::new(&envoy::decode(&[(0, file)]).expect("a configuration").domains);
/// let key = |value: &str| {
///     let entries = [("path", value)];
///     let leaf = compiled.lookup("edge", &Descriptor::new(&entries)).leaf().expect("a limit");
///     let mut buffer = Vec::new();
///     envoy::counter_key(leaf, &entries, |piece| buffer.extend_from_slice(piece));
///     buffer
/// };
/// assert_eq!(key("/files/a"), key("/files/b"));
/// ```
pub fn counter_key(leaf: &CompiledLimit, entries: &[(&str, &str)], mut put: impl FnMut(&[u8])) {
    put(&[CONFIGURED_TAG]);
    let entries = entries.iter().enumerate().map(|(at, (key, value))| {
        let step = leaf.steps.get(at).filter(|step| step.shared);
        let pattern = step.and_then(|step| step.value.as_deref());
        // A value that reads like the pattern reaches only the pattern's own rule, so the two keys can't collide.
        (*key, pattern.unwrap_or(value))
    });
    put_path(&leaf.domain, entries, &mut put);
}

/// Writes the key of the counter for a limit that the proxy requests and that shares no configured limit's counter.
/// The key differs from those of configured limits and from those of other units.
///
/// ```
/// use tollgate_engine::envoy::requested_limit_key;
/// use tollgate_engine::facts::Unit;
///
/// let mut buffer = Vec::new();
/// requested_limit_key("edge", &[("user", "42")], Unit::Hour, |piece| buffer.extend_from_slice(piece));
/// assert!(!buffer.is_empty());
/// ```
pub fn requested_limit_key(
    domain: &str,
    entries: &[(&str, &str)],
    unit: Unit,
    mut put: impl FnMut(&[u8]),
) {
    put(&[REQUESTED_TAG]);
    put(&unit.seconds().to_le_bytes());
    put_path(domain, entries.iter().copied(), &mut put);
}

/// A unique name of a domain and a path through its tree: `domain/key=value/key`, with the separators escaped inside
/// its parts.
pub(crate) fn path_name<'a>(
    domain: &str,
    steps: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> String {
    let escaped = |text: &str| {
        let text = text.replace('%', "%25");
        text.replace('/', "%2F").replace('=', "%3D")
    };
    let mut name = escaped(domain);
    for (key, value) in steps {
        name.push('/');
        name += &escaped(key);
        if let Some(value) = value {
            name.push('=');
            name += &escaped(value);
        }
    }
    name
}

const CONFIGURED_TAG: u8 = 0;
const REQUESTED_TAG: u8 = 1;

/// Writes the domain, the number of entries, and the entries.
fn put_path<'e>(
    domain: &str,
    entries: impl ExactSizeIterator<Item = (&'e str, &'e str)>,
    put: &mut impl FnMut(&[u8]),
) {
    put_text(domain, put);
    put_varint(entries.len(), put);
    for (key, value) in entries {
        put_text(key, put);
        put_text(value, put);
    }
}

/// Writes the length before the text, so that no following text can be read as a part of it.
fn put_text(text: &str, put: &mut impl FnMut(&[u8])) {
    put_varint(text.len(), put);
    put(text.as_bytes());
}

/// Writes a number as a little-endian base-128 varint: seven bits a byte, and the eighth bit in all bytes but the
/// last.
fn put_varint(mut number: usize, put: &mut impl FnMut(&[u8])) {
    let mut bytes = [0; 10];
    let mut used = 0;
    loop {
        let low = (number & 0x7f).to_le_bytes()[0];
        number >>= 7;
        bytes[used] = if number == 0 { low } else { low | 0x80 };
        used += 1;
        if number == 0 {
            break;
        }
    }
    put(&bytes[..used]);
}
