//! `envoy.service.ratelimit.v3.RateLimitRequest`, Envoy's request, borrowed from the message.

use std::borrow::Cow;

use smallvec::SmallVec;
use tollgate_engine::facts::{Descriptor, Unit, text_of_bytes};

use super::protobuf_reader::{FieldReader, FieldValue, ProtobufError};

/// How many entries of all descriptors need no allocation.
const ENTRIES: usize = 16;
/// How many descriptors need no allocation.
const DESCRIPTORS: usize = 4;

/// A decoded request.
#[derive(Debug, Default)]
pub(crate) struct RequestMessage<'m> {
    pub(crate) domain: Cow<'m, str>,
    /// The cost of the whole request. Envoy sends 0 and means 1.
    pub(crate) hits_addend: u32,
    entries: SmallVec<[(Cow<'m, str>, Cow<'m, str>); ENTRIES]>,
    descriptors: SmallVec<[DescriptorHead; DESCRIPTORS]>,
}

/// A descriptor without its entries, which are stored with those of the others.
#[derive(Clone, Copy, Debug, Default)]
struct DescriptorHead {
    /// The end of its entries; they begin at the previous descriptor's end.
    end: usize,
    limit: Option<(u32, Unit)>,
    cost: Option<u64>,
    refund: bool,
}

impl<'m> RequestMessage<'m> {
    /// Decodes a message. Unknown fields are skipped, as protobuf requires.
    pub(crate) fn read(message: &'m [u8]) -> Result<Self, ProtobufError> {
        let mut request = Self::default();
        for field in FieldReader::of(message) {
            match field? {
                (1, value) => request.domain = text_of_bytes(value.message(1)?),
                (2, value) => {
                    let asked = request.read_descriptor(value.message(2)?)?;
                    request.descriptors.push(asked);
                }
                (3, value) => request.hits_addend = value.small(3)?,
                _ => {}
            }
        }
        Ok(request)
    }

    fn read_descriptor(&mut self, message: &'m [u8]) -> Result<DescriptorHead, ProtobufError> {
        let mut asked = DescriptorHead::default();
        for field in FieldReader::of(message) {
            match field? {
                (1, value) => self.entries.push(entry(value.message(1)?)?),
                (2, value) => asked.limit = limit(value.message(2)?)?,
                (3, value) => asked.cost = Some(wrapped(value.message(3)?)?),
                (4, value) => asked.refund = value.number(4)? != 0,
                _ => {}
            }
        }
        asked.end = self.entries.len();
        Ok(asked)
    }

    /// The entries of all descriptors.
    pub(crate) fn entries(&self) -> SmallVec<[(&str, &str); ENTRIES]> {
        let each = self.entries.iter();
        each.map(|(key, value)| (&**key, &**value)).collect()
    }

    /// The descriptors in the engine's types, over these entries.
    pub(crate) fn descriptors<'e>(
        &self,
        entries: &'e [(&'e str, &'e str)],
    ) -> SmallVec<[Descriptor<'e>; DESCRIPTORS]> {
        let mut start = 0;
        let each = self.descriptors.iter().map(|asked| {
            let entries = &entries[start..asked.end];
            start = asked.end;
            Descriptor {
                limit: asked.limit,
                cost: asked.cost,
                refund: asked.refund,
                ..Descriptor::new(entries)
            }
        });
        each.collect()
    }
}

/// A key and a value. They may be any bytes, as clients choose the values: an error would let such requests pass.
fn entry(message: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), ProtobufError> {
    let mut entry = (Cow::Borrowed(""), Cow::Borrowed(""));
    for field in FieldReader::of(message) {
        match field? {
            (1, value) => entry.0 = text_of_bytes(value.message(1)?),
            (2, value) => entry.1 = text_of_bytes(value.message(2)?),
            _ => {}
        }
    }
    Ok(entry)
}

/// A limit that replaces the configured one; `None` if it has no valid unit.
fn limit(message: &[u8]) -> Result<Option<(u32, Unit)>, ProtobufError> {
    let (mut requests, mut unit) = (0, None);
    for field in FieldReader::of(message) {
        match field? {
            (1, value) => requests = value.small(1)?,
            (2, value) => unit = unit_of(value.number(2)?),
            _ => {}
        }
    }
    Ok(unit.map(|unit| (requests, unit)))
}

/// The units of `envoy.type.v3.RateLimitUnit`, whose numbers begin at 1.
pub(crate) const UNITS: [Unit; 6] = {
    use Unit::{Day, Hour, Minute, Month, Second, Year};
    [Second, Minute, Hour, Day, Month, Year]
};

/// The unit of a number; `None` for 0 and unknown numbers.
pub(crate) fn unit_of(number: u64) -> Option<Unit> {
    let place = usize::try_from(number.checked_sub(1)?).ok()?;
    UNITS.get(place).copied()
}

/// The value of a wrapper message, which distinguishes 0 from an absent value.
fn wrapped(message: &[u8]) -> Result<u64, ProtobufError> {
    let mut number = 0;
    for field in FieldReader::of(message) {
        if let (1, value @ FieldValue::Number(_)) = field? {
            number = value.number(1)?;
        }
    }
    Ok(number)
}
