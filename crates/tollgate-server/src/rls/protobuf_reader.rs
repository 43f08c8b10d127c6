//! Decodes protobuf messages, as far as the rate-limit service needs it. Fields borrow from the message.

use derive_more::Display;

/// Why a message is malformed.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub(crate) enum ProtobufError {
    /// It ends inside a field.
    #[display("the message ends inside a field")]
    CutShort,
    /// A number of more than 64 bits.
    #[display("a number of more than 64 bits")]
    Number,
    /// A field with the number zero, or of an unknown wire type.
    #[display("a field of a number or a kind that there isn't")]
    Field,
    /// Text that isn't UTF-8.
    #[display("text that isn't UTF-8")]
    Text,
    /// A field whose value has an unexpected wire type.
    #[display("field {field} has a value of another kind than it should")]
    Kind { field: u64 },
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValue<'m> {
    Number(u64),
    Bytes(&'m [u8]),
    /// Four or eight bytes, which no known field has.
    Fixed,
}

/// The fields of a message, in their order.
#[derive(Clone, Debug)]
pub(crate) struct FieldReader<'m>(&'m [u8]);

impl<'m> FieldReader<'m> {
    pub(crate) const fn of(message: &'m [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, bytes: u64) -> Result<&'m [u8], ProtobufError> {
        let length = usize::try_from(bytes).map_err(|_| ProtobufError::CutShort)?;
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(ProtobufError::CutShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0;
        for (place, byte) in self.0.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if place == 9 && bits > 1 {
                return Err(ProtobufError::Number);
            }
            value |= bits << (7 * place);
            if byte & 0x80 == 0 {
                self.0 = &self.0[place + 1..];
                return Ok(value);
            }
        }
        Err(if self.0.len() < 10 {
            ProtobufError::CutShort
        } else {
            ProtobufError::Number
        })
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'m>), ProtobufError> {
        let tag = self.number()?;
        let field = tag >> 3;
        if field == 0 || field > 0x1fff_ffff {
            return Err(ProtobufError::Field);
        }
        let value = match tag & 7 {
            0 => FieldValue::Number(self.number()?),
            1 => self.take(8).map(|_| FieldValue::Fixed)?,
            2 => {
                let length = self.number()?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| FieldValue::Fixed)?,
            _ => return Err(ProtobufError::Field),
        };
        Ok((field, value))
    }
}

impl<'m> Iterator for FieldReader<'m> {
    type Item = Result<(u64, FieldValue<'m>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'m> FieldValue<'m> {
    pub(crate) const fn number(self, field: u64) -> Result<u64, ProtobufError> {
        match self {
            Self::Number(value) => Ok(value),
            _ => Err(ProtobufError::Kind { field }),
        }
    }

    /// A number as a field of 32 bits: the upper bits are cut off.
    pub(crate) const fn small(self, field: u64) -> Result<u32, ProtobufError> {
        match self {
            #[expect(clippy::cast_possible_truncation, reason = "what the encoding says")]
            Self::Number(value) => Ok(value as u32),
            _ => Err(ProtobufError::Kind { field }),
        }
    }

    pub(crate) const fn message(self, field: u64) -> Result<&'m [u8], ProtobufError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Kind { field }),
        }
    }

    pub(crate) fn text(self, field: u64) -> Result<&'m str, ProtobufError> {
        std::str::from_utf8(self.message(field)?).map_err(|_| ProtobufError::Text)
    }
}

#[cfg(test)]
mod tests {
    use tollgate_http::protobuf::{bytes, message, number, varint};

    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u64, FieldValue<'_>)>, ProtobufError> {
        FieldReader::of(message).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(FieldReader::of(&out).number(), Ok(value));
        }
        let mut out = Vec::new();
        number(&mut out, 3, 7);
        number(&mut out, 4, 0);
        bytes(&mut out, 1, b"abc");
        message(&mut out, 2, |out| bytes(out, 1, &[b'x'; 200]));
        let fields = all(&out).expect("a message");
        assert_eq!(fields[0], (3, FieldValue::Number(7)));
        assert_eq!(fields[1], (1, FieldValue::Bytes(b"abc")));
        let inner = fields[2].1.message(2).expect("a message");
        assert_eq!(all(inner), Ok(vec![(1, FieldValue::Bytes(&[b'x'; 200]))]));
    }

    #[test]
    fn what_is_unknown_is_passed_over_and_what_is_broken_is_told() {
        assert_eq!(
            all(&[0x79, 1, 2, 3, 4, 5, 6, 7, 8]),
            Ok(vec![(15, FieldValue::Fixed)])
        );
        assert_eq!(all(&[0x7d, 1, 2, 3, 4]), Ok(vec![(15, FieldValue::Fixed)]));
        for (message, error) in [
            (&[0x08][..], ProtobufError::CutShort),
            (&[0x0a, 5, b'a'], ProtobufError::CutShort),
            (&[0x09, 0], ProtobufError::CutShort),
            (
                &[
                    0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02,
                ],
                ProtobufError::Number,
            ),
            (
                &[
                    0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00,
                ],
                ProtobufError::Number,
            ),
            (&[0x00, 0], ProtobufError::Field),
            (&[0x0b], ProtobufError::Field),
        ] {
            assert_eq!(all(message), Err(error), "{message:?}");
        }
        assert_eq!(FieldValue::Bytes(&[0xff]).text(1), Err(ProtobufError::Text));
        assert_eq!(
            FieldValue::Fixed.number(3),
            Err(ProtobufError::Kind { field: 3 })
        );
    }
}
