//! Envoy's descriptors as JSON, for the calls that take them.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::Deserializer;
use tollgate_engine::facts::Descriptor;

use super::body::fact_text;
use super::session::{HttpError, bad_request};
use crate::rls::unit_of;

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DescriptorJson<'b> {
    #[serde(borrow, default)]
    entries: Vec<EntryJson<'b>>,
    limit: Option<LimitJson>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<HitsJson>,
    #[serde(alias = "isNegativeHits", default)]
    is_negative_hits: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryJson<'b> {
    #[serde(borrow, default, deserialize_with = "text")]
    key: Cow<'b, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    value: Cow<'b, str>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitJson {
    #[serde(alias = "requestsPerUnit", default)]
    requests_per_unit: u32,
    #[serde(default)]
    unit: UnitJson,
}

/// The text of an entry as a fact's value: the same as from Envoy's protobuf messages.
fn text<'de: 'b, 'b, D: Deserializer<'de>>(from: D) -> Result<Cow<'b, str>, D::Error> {
    #[derive(Deserialize)]
    struct Text<'t>(#[serde(borrow)] Cow<'t, str>);
    let Text(text) = Text::deserialize(from)?;
    Ok(fact_text(text))
}

/// A number of 64 bits, which protobuf's JSON mapping writes as text, too.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum HitsJson {
    Number(u64),
    Text(String),
}

/// A unit, with its number in Envoy's protobuf messages.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum UnitJson {
    #[default]
    Unknown,
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Year,
}

/// The entries of one descriptor, borrowed.
pub(super) type Entries<'a> = Vec<(&'a str, &'a str)>;

impl DescriptorJson<'_> {
    pub(super) fn entries(&self) -> Entries<'_> {
        let entries = self.entries.iter();
        entries.map(|entry| (&*entry.key, &*entry.value)).collect()
    }
}

/// The same in the engine's words.
pub(super) fn to_descriptors<'a>(
    asked: &[DescriptorJson<'_>],
    entries: &'a [Entries<'a>],
) -> Result<Vec<Descriptor<'a>>, HttpError> {
    let one = |(one, entries): (&DescriptorJson<'_>, &'a Entries<'a>)| {
        let limit = one.limit.as_ref();
        Ok(Descriptor {
            limit: limit
                .and_then(|limit| Some((limit.requests_per_unit, unit_of(limit.unit as u64)?))),
            cost: one.hits_addend.as_ref().map(HitsJson::number).transpose()?,
            refund: one.is_negative_hits,
            ..Descriptor::new(entries)
        })
    };
    asked.iter().zip(entries).map(one).collect()
}

impl HitsJson {
    fn number(&self) -> Result<u64, HttpError> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(text) => text
                .parse()
                .map_err(|_| bad_request(format!("hitsAddend: {text:?} is no whole number"))),
        }
    }
}
