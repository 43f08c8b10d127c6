//! Header fields of an answer, in one piece of memory.

use std::fmt;

use smallvec::SmallVec;

use crate::fields::Sink;

/// What most answers say of a limit fits here, so that it takes no memory of its own.
const USUAL: usize = 96;

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
pub struct Fields {
    /// All values, one after the other.
    text: SmallVec<[u8; USUAL]>,
    lines: SmallVec<[Line; 3]>,
}

#[derive(Clone, Copy)]
struct Line {
    name: &'static str,
    /// Where its value begins; it ends where the next one does.
    begins: usize,
}

impl Fields {
    /// None.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// One more.
    pub fn push(&mut self, name: &'static str, value: &str) {
        self.field(name);
        self.text(value);
    }

    /// This one, in place of all others of its name.
    pub fn set(&mut self, name: &'static str, value: &str) {
        let others: Self = {
            let mut others = Self::new();
            for (own, value) in self.iter().filter(|(own, _)| *own != name) {
                others.push(own, value);
            }
            others
        };
        *self = others;
        self.push(name, value);
    }

    /// The value of this name; the first if there are several.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.iter().filter(|(own, _)| *own == name);
        found.next().map(|(_, value)| value)
    }

    /// Names and values, in their order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let ends = self.lines.iter().skip(1).map(|next| next.begins);
        let ends = ends.chain(std::iter::once(self.text.len()));
        self.lines.iter().zip(ends).map(|(line, end)| {
            let value = &self.text[line.begins..end];
            // Only texts are written.
            (line.name, str::from_utf8(value).unwrap_or_default())
        })
    }
}

impl Sink for Fields {
    #[inline]
    fn field(&mut self, name: &'static str) {
        self.lines.push(Line {
            name,
            begins: self.text.len(),
        });
    }

    #[inline]
    fn text(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
