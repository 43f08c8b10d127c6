//! Header fields of an answer, in one piece of memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::fields::Sink;
use crate::json::digit_bytes;

/// What most answers say of a limit fits here, so that it takes no more memory.
const USUAL: usize = 120;

/// Header fields of an answer: names in lower case, and values.
///
/// ```
/// use tollgate_http::guard::Fields;
///
/// let mut fields = Fields::new();
/// fields.push("retry-after", "7");
/// fields.set("retry-after", "9");
/// assert_eq!(fields.iter().collect::<Vec<_>>(), [("retry-after", "9")]);
/// ```
#[derive(Clone, Default)]
pub struct Fields(Option<Arc<Written>>);

/// Some fields, while they are being written.
#[derive(Clone, Default)]
pub(super) struct Written {
    /// All values, one after the other.
    text: Text,
    lines: SmallVec<[Line; 4]>,
}

#[derive(Clone, Copy)]
struct Line {
    name: &'static str,
    /// Where its value begins; it ends where the next one does.
    begins: usize,
}

/// Bytes in place, or elsewhere if they are many.
#[derive(Clone)]
struct Text {
    inline: [u8; USUAL],
    used: usize,
    many: Option<Vec<u8>>,
}

impl Fields {
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
        self.0.as_ref().map_or(0, |written| written.lines.len())
    }

    /// One more.
    pub fn push(&mut self, name: &'static str, value: &str) {
        Arc::make_mut(self.0.get_or_insert_default()).push(name, value);
    }

    /// This one, in place of all others of its name.
    pub fn set(&mut self, name: &'static str, value: &str) {
        let mut all = Written::default();
        for (own, value) in self.iter().filter(|(own, _)| *own != name) {
            all.push(own, value);
        }
        all.push(name, value);
        *self = all.into();
    }

    /// The value of this name; the first if there are several.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.iter().filter(|(own, _)| *own == name);
        found.next().map(|(_, value)| value)
    }

    /// Names and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.lines().map(|(name, range)| {
            // Only texts are written.
            let value = &self.as_ref()[range];
            (name, str::from_utf8(value).unwrap_or_default())
        })
    }

    /// Names, and where their values are in [all of the text](Self::as_ref): for carriers whose values can share memory.
    #[inline]
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, Range<usize>)> {
        let written = self.0.as_deref();
        let lines = written.map_or(&[][..], |written| &written.lines);
        let ends = lines.iter().skip(1).map(|next| next.begins);
        let ends = ends.chain(std::iter::once(self.as_ref().len()));
        let each = lines.iter().zip(ends);
        each.map(|(line, end)| (line.name, line.begins..end))
    }
}

/// All values, one after the other.
impl AsRef<[u8]> for Fields {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Some(written) => written.text.as_bytes(),
            None => &[],
        }
    }
}

impl Written {
    pub(super) fn push(&mut self, name: &'static str, value: &str) {
        self.field(name);
        self.text(value);
    }
}

impl From<Written> for Fields {
    #[inline]
    fn from(written: Written) -> Self {
        Self((!written.lines.is_empty()).then(|| Arc::new(written)))
    }
}

impl Sink for Written {
    #[inline]
    fn field(&mut self, name: &'static str) {
        let begins = self.text.as_bytes().len();
        self.lines.push(Line { name, begins });
    }

    #[inline]
    fn text(&mut self, text: &str) {
        self.text.push(text.as_bytes());
    }

    #[inline]
    fn number(&mut self, value: u64) {
        self.text.push(digit_bytes(value, &mut [0; 20]));
    }
}

impl Default for Text {
    #[inline]
    fn default() -> Self {
        Self {
            inline: [0; USUAL],
            used: 0,
            many: None,
        }
    }
}

impl Text {
    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match &self.many {
            Some(many) => many,
            None => &self.inline[..self.used],
        }
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        match (&self.many, self.inline.get_mut(self.used..end)) {
            (None, Some(room)) => {
                room.copy_from_slice(bytes);
                self.used = end;
            }
            _ => self.push_to_many(bytes),
        }
    }

    #[cold]
    fn push_to_many(&mut self, bytes: &[u8]) {
        let own = &self.inline[..self.used];
        let many = self.many.get_or_insert_with(|| own.to_vec());
        many.extend_from_slice(bytes);
    }
}

impl fmt::Debug for Fields {
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
        let mut fields = Fields::new();
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
