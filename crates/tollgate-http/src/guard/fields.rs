//! Header fields of a response: names, and values that adapters take over without a copy.

use std::cell::Cell;
use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

use super::field_cache;
use crate::ShownLimit;
use crate::fields::{self, FieldSink, whole_seconds};

/// Most values fit into this many bytes while they are written.
const USUAL: usize = 64;

/// Header fields of a response: names in lower case, and values.
///
/// ```
/// use tollgate_http::guard::HeaderFields;
///
/// let mut fields = HeaderFields::new();
/// fields.push("retry-after", "7");
/// fields.set("retry-after", "9");
/// assert_eq!(fields.iter().collect::<Vec<_>>(), [("retry-after", "9")]);
/// ```
#[derive(Clone, Default)]
pub struct HeaderFields(Option<Box<FieldLines>>);

/// As many as the denials of most dialects have.
type FieldLines = SmallVec<[FieldLine; 5]>;

/// A name and its value.
type FieldLine = (&'static str, Bytes);

thread_local! {
    /// The box of the last response's fields, for the next one: it saves an allocation.
    static SPARE: Cell<Option<Box<FieldLines>>> = const { Cell::new(None) };
}

/// Fields that are being written.
pub(super) struct FieldWriter {
    /// Boxed from the start: moving the array later would take longer.
    lines: Box<FieldLines>,
    /// The name of the field that is being written.
    name: Option<&'static str>,
    value: InlineBytes,
}

/// Bytes in an array, or in a vector if they don't fit.
struct InlineBytes {
    inline: [u8; USUAL],
    used: usize,
    spilled: Vec<u8>,
}

impl HeaderFields {
    /// No fields.
    #[inline]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Whether there are no fields.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |lines| lines.len())
    }

    /// Adds a field.
    pub fn push(&mut self, name: &'static str, value: &str) {
        let lines = self.0.get_or_insert_default();
        lines.push((name, Bytes::copy_from_slice(value.as_bytes())));
    }

    /// Adds a field, and removes all others of this name.
    pub fn set(&mut self, name: &'static str, value: &str) {
        if let Some(lines) = &mut self.0 {
            lines.retain(|(own, _)| *own != name);
        }
        self.push(name, value);
    }

    /// The first value of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.iter().filter(|(own, _)| *own == name);
        found.next().map(|(_, value)| value)
    }

    /// Names and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let lines = self.0.iter().flat_map(|lines| lines.iter());
        // Only text is ever written, so every value is valid UTF-8.
        lines.map(|(name, value)| (*name, str::from_utf8(value).unwrap_or_default()))
    }

    /// Passes each name and value to an adapter, which keeps the value.
    #[inline]
    pub fn for_each_owned(self, mut put: impl FnMut(&'static str, Bytes)) {
        let Some(mut lines) = self.0 else { return };
        for (name, value) in lines.iter_mut() {
            put(name, std::mem::take(value));
        }
        if !lines.spilled() {
            lines.clear();
            // Fails while the thread ends, when no more responses need the box.
            let _ = SPARE.try_with(|spare| spare.set(Some(lines)));
        }
    }
}

impl Default for FieldWriter {
    #[inline]
    fn default() -> Self {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        Self {
            lines: spare.unwrap_or_default(),
            name: None,
            value: InlineBytes::default(),
        }
    }
}

impl FieldWriter {
    pub(super) fn push(&mut self, name: &'static str, value: &str) {
        self.field(name);
        self.text(value);
    }

    /// Adds a field whose value is already written.
    #[inline]
    pub(super) fn push_value(&mut self, name: &'static str, value: Bytes) {
        self.end();
        self.lines.push((name, value));
    }

    /// Completes the field that is being written.
    #[inline]
    fn end(&mut self) {
        if let Some(name) = self.name.take() {
            self.lines.push((name, self.value.take()));
        }
    }
}

impl From<FieldWriter> for HeaderFields {
    #[inline]
    fn from(mut written: FieldWriter) -> Self {
        written.end();
        Self((!written.lines.is_empty()).then_some(written.lines))
    }
}

impl FieldSink for FieldWriter {
    #[inline]
    fn field(&mut self, name: &'static str) {
        self.end();
        self.name = Some(name);
    }

    #[inline]
    fn text(&mut self, text: &str) {
        self.value.push(text.as_bytes());
    }

    #[inline]
    fn draft8(&mut self, limit: &ShownLimit<'_>) {
        let written = |write: fn(&mut Self, &ShownLimit<'_>)| {
            let mut written = Self::default();
            write(&mut written, limit);
            written.value.take()
        };
        let texts = || field_cache::PolicyTexts {
            policy: written(fields::policy_item),
            name: written(fields::left_name),
        };
        if limit.remaining == 0 {
            field_cache::policy_texts(limit, texts, |same| {
                self.push_value("ratelimit-policy", same.policy.clone());
            });
            // `u64::MAX` marks a limit without a refill time, so its text is cached apart.
            let seconds = if limit.tells_time() {
                whole_seconds(limit.more_after)
            } else {
                u64::MAX
            };
            let value =
                field_cache::exhausted_text(limit.name, seconds, || written(fields::left_item));
            self.push_value("ratelimit", value);
            return;
        }
        field_cache::policy_texts(limit, texts, |same| {
            self.push_value("ratelimit-policy", same.policy.clone());
            self.name = Some("ratelimit");
            self.value.push(&same.name);
        });
        fields::left_counts(self, limit);
    }
}

impl Default for InlineBytes {
    #[inline]
    fn default() -> Self {
        Self {
            inline: [0; USUAL],
            used: 0,
            spilled: Vec::new(),
        }
    }
}

impl InlineBytes {
    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        match self.inline.get_mut(self.used..end) {
            Some(room) if self.spilled.is_empty() => {
                room.copy_from_slice(bytes);
                self.used = end;
            }
            _ => self.push_to_many(bytes),
        }
    }

    #[cold]
    fn push_to_many(&mut self, bytes: &[u8]) {
        if self.spilled.is_empty() {
            self.spilled.extend_from_slice(&self.inline[..self.used]);
        }
        self.spilled.extend_from_slice(bytes);
    }

    /// The bytes; leaves the buffer empty.
    #[inline]
    fn take(&mut self) -> Bytes {
        let used = std::mem::take(&mut self.used);
        if self.spilled.is_empty() {
            Bytes::copy_from_slice(&self.inline[..used])
        } else {
            std::mem::take(&mut self.spilled).into()
        }
    }
}

impl fmt::Debug for HeaderFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_and_long_fields_are_kept_as_they_are() {
        let long = "x".repeat(1_000);
        let values = ["", "1", &long, "2", "", &long, "3"];
        let mut fields = HeaderFields::new();
        for value in values {
            fields.push("name", value);
        }
        let found: Vec<_> = fields.iter().map(|(_, value)| value).collect();
        assert_eq!((found, fields.len()), (values.to_vec(), values.len()));
        fields.set("name", "only");
        assert_eq!(fields.get("name"), Some("only"));
        assert_eq!((fields.len(), fields.is_empty()), (1, false));
    }
}
