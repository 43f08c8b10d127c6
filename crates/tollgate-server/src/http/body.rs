//! The JSON bodies of HTTP requests. Texts are borrowed where possible.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use smallvec::SmallVec;
use tollgate_engine::Facts;
use tollgate_engine::facts::{fact_name, text_of_bytes};

use super::descriptor_json::DescriptorJson;

/// A request to decide.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest<'b> {
    /// The facts of the request.
    #[serde(borrow, default)]
    pub(crate) facts: FactPairs<'b>,
    /// The cost, unless a rule takes it from a fact.
    pub(crate) cost: Option<u64>,
    /// Instead of facts: a domain and the descriptors that Envoy would send.
    #[serde(borrow)]
    pub(crate) domain: Option<Cow<'b, str>>,
    #[serde(borrow)]
    pub(crate) descriptors: Option<Vec<DescriptorJson<'b>>>,
}

impl CheckRequest<'_> {
    /// The facts of the request; an error if there are more than `most`, or they are invalid.
    pub(crate) fn checked_facts(&self, most: usize) -> Result<Facts<'_>, String> {
        match (&self.domain, &self.descriptors) {
            (_, Some(_)) => Err("descriptors: not here, send facts".to_owned()),
            (Some(_), None) => Err("domain: it goes with descriptors".to_owned()),
            (None, None) => self.facts.check(most).map(|()| self.facts()),
        }
    }

    /// The facts without validation.
    pub(crate) fn facts(&self) -> Facts<'_> {
        let facts = self.facts.0.iter();
        let facts = facts.map(|(name, value)| (&**name, &**value)).collect();
        match self.cost {
            Some(cost) => Facts::with_cost(facts, cost),
            None => facts,
        }
    }
}

/// Names and values, in their order.
#[derive(Debug, Default)]
pub(crate) struct FactPairs<'b>(pub(crate) SmallVec<[(Cow<'b, str>, Cow<'b, str>); 8]>);

impl FactPairs<'_> {
    /// Checks the number of facts, and that no fact has two values: a rule couldn't choose one.
    pub(crate) fn check(&self, most: usize) -> Result<(), String> {
        let found = self.0.len();
        // Checked first, as the comparison below is quadratic.
        if found > most {
            return Err(format!(
                "facts: {found} of them, more than the {most} that are taken"
            ));
        }
        let differs = |(place, (name, value)): (usize, &(Cow<'_, str>, Cow<'_, str>))| {
            let mut before = self.0[..place].iter();
            before.any(|(other, its)| other == name && its != value)
        };
        match self.0.iter().enumerate().find(|one| differs(*one)) {
            Some((_, (name, _))) => Err(format!("facts: {name:?} has two values: send one")),
            None => Ok(()),
        }
    }
}

/// Text, or a number or boolean as text.
struct FactText<'b>(Cow<'b, str>);

impl<'de: 'b, 'b> Deserialize<'de> for FactPairs<'b> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading<'b>(PhantomData<&'b ()>);

        impl<'de: 'b, 'b> Visitor<'de> for Reading<'b> {
            type Value = FactPairs<'b>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of facts, as {\"user\": \"42\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FactPairs<'b>, A::Error> {
                let mut pairs = FactPairs::default();
                while let Some(FactText(name)) = map.next_key()? {
                    let FactText(value) = map.next_value()?;
                    pairs.0.push((normalize_fact_name(name), value));
                }
                Ok(pairs)
            }
        }
        from.deserialize_map(Reading(PhantomData))
    }
}

/// Text as a fact's value.
pub(super) fn fact_text(text: Cow<'_, str>) -> Cow<'_, str> {
    match text_of_bytes(text.as_bytes()) {
        Cow::Owned(other) => Cow::Owned(other),
        Cow::Borrowed(_) => text,
    }
}

/// The name of a fact as policies write it.
pub(super) fn normalize_fact_name(name: Cow<'_, str>) -> Cow<'_, str> {
    match fact_name(&name) {
        Cow::Owned(other) => Cow::Owned(other),
        Cow::Borrowed(_) => name,
    }
}

impl<'de: 'b, 'b> Deserialize<'de> for FactText<'b> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;

        impl<'de> Visitor<'de> for Reading {
            type Value = FactText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, a whole number, or true or false")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<FactText<'de>, E> {
                Ok(FactText(fact_text(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<FactText<'de>, E> {
                Ok(FactText(fact_text(Cow::Owned(text.to_owned()))))
            }

            fn visit_u64<E>(self, number: u64) -> Result<FactText<'de>, E> {
                Ok(FactText(Cow::Owned(number.to_string())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<FactText<'de>, E> {
                Ok(FactText(Cow::Owned(number.to_string())))
            }

            fn visit_bool<E>(self, value: bool) -> Result<FactText<'de>, E> {
                Ok(FactText(Cow::Borrowed(if value {
                    "true"
                } else {
                    "false"
                })))
            }
        }
        from.deserialize_any(Reading)
    }
}

/// Parses a body. Errors name the field.
pub(crate) fn parse_body<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, String> {
    // The whole body, as serde doesn't validate ignored parts.
    let text = std::str::from_utf8(body).map_err(|_| "the body isn't UTF-8 text".to_owned())?;
    if let Ok(read) = serde_json::from_str(text) {
        return Ok(read);
    }
    // Parsed a second time to find the field: only invalid bodies pay for it.
    let mut json = serde_json::Deserializer::from_str(text);
    let field = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(read) => match json.end() {
            Ok(()) => return Ok(read),
            Err(error) => return Err(describe_json_error(&error.to_string())),
        },
        Err(error) => error,
    };
    let path = field.path().to_string();
    let why = describe_json_error(&field.inner().to_string());
    match path.as_str() {
        // The whole body, or a part without a name.
        "." | "?" => Err(why),
        _ => Err(format!("{path}: {why}")),
    }
}

/// Rewrites serde's error in terms of JSON instead of Rust types.
fn describe_json_error(why: &str) -> String {
    let Some((found, wanted)) = why.split_once(", expected ") else {
        return why.to_owned();
    };
    let (kind, rest) = match wanted.split_once(" at line ") {
        Some((kind, place)) => (kind, format!(" at line {place}")),
        None => (wanted, String::new()),
    };
    let kind = match kind {
        "u64" => "a whole number that isn't negative",
        "u32" => "a whole number from 0 to 4294967295",
        kind if kind.starts_with("struct ") => "an object",
        kind => kind,
    };
    format!("{found}, expected {kind}{rest}")
}
