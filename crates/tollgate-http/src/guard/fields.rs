//! Header fields of an answer: names, and values that carriers take over as they are.

use std::cell::Cell;
use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

use super::field_cache;
use crate::ShownLimit;
use crate::fields::{self, FieldSink, whole_seconds};

/// Most values fit here while they are being written.
const USUAL: usize = 64;

/// Header fields of an answer: names in lower case, and values.
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

/// As many as the refusals of most dialects have.
type FieldLines = SmallVec<[FieldLine; 5]>;

/// A name and its value.
type FieldLine = (&'static str, Bytes);

thread_local! {
    /// Where the fields of an answer were that was sent, for those of the next.
    static SPARE: Cell<Option<Box<FieldLines>>> = const { Cell::new(None) };
}

/// Some fields, while they are being written.
pub(super) struct FieldWriter {
    /// In the place where they stay: they are too many to be moved.
    lines: Box<FieldLines>,
    /// The name of the one that is being written.
    name: Option<&'static str>,
    value: InlineBytes,
}

/// Bytes in place, or elsewhere if they are many.
struct InlineBytes {
    inline: [u8; USUAL],
    used: usize,
    spilled: Vec<u8>,
}

impl HeaderFields {
    /// None.
    #[inline]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |lines| lines.len())
    }

    /// One more.
    pub fn push(&mut self, name: &'static str, value: &str) {
        let lines = self.0.get_or_insert_default();
        lines.push((name, Bytes::copy_from_slice(value.as_bytes())));
    }

    /// This one, in place of all others of its name.
    pub fn set(&mut self, name: &'static str, value: &str) {
        if let Some(lines) = &mut self.0 {
            lines.retain(|(own, _)| *own != name);
        }
        self.push(name, value);
    }

    /// The value of this name; the first if there are several.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.iter().filter(|(own, _)| *own == name);
        found.next().map(|(_, value)| value)
    }

    /// Names and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let lines = self.0.iter().flat_map(|lines| lines.iter());
        // Only texts are written.
        lines.map(|(name, value)| (*name, str::from_utf8(value).unwrap_or_default()))
    }

    /// Hands each name and value to a carrier, which keeps the value.
    #[inline]
    pub fn for_each_owned(self, mut put: impl FnMut(&'static str, Bytes)) {
        let Some(mut lines) = self.0 else { return };
        for (name, value) in lines.iter_mut() {
            put(name, std::mem::take(value));
        }
        if !lines.spilled() {
            lines.clear();
            // Threads that end have no use for it.
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

    /// A field whose value is known already.
    #[inline]
    pub(super) fn push_value(&mut self, name: &'static str, value: Bytes) {
        self.end();
        self.lines.push((name, value));
    }

    /// The field that is being written is complete.
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
            // No time is told in so many seconds.
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

    /// All of it, and then it is empty.
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
