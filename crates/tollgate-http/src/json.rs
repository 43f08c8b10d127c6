//! JSON that is written directly into bytes, without a tree in between.

/// An object that is being written. It adds the commas between fields.
#[derive(Debug)]
pub struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

/// Writes an object; the function writes its fields.
///
/// ```
/// use tollgate_http::json;
///
/// let mut out = Vec::new();
/// json::object(&mut out, |object| {
///     json::string(object.field("name"), "per-user");
///     object.nullable("limit", None, json::number);
///     object.optional("left", None, json::number);
///     json::array(object.field("of"), [1, 2], json::number);
/// });
/// assert_eq!(out, br#"{"name":"per-user","limit":null,"of":[1,2]}"#);
/// ```
#[inline]
pub fn object(out: &mut Vec<u8>, write: impl FnOnce(&mut Object<'_>)) {
    out.push(b'{');
    let is_empty = true;
    write(&mut Object { out, is_empty });
    out.push(b'}');
}

/// Writes an array; the function writes each item.
pub fn array<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (place, item) in items.into_iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

impl Object<'_> {
    /// Begins a field, and returns where its value goes. The name is written as it is, without escapes.
    #[inline]
    pub fn field(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    /// Begins a field with any name, which is escaped.
    pub fn member(&mut self, name: &str) -> &mut Vec<u8> {
        self.comma();
        string(self.out, name);
        self.out.push(b':');
        self.out
    }

    /// Writes a field with the function, or with null if there is no value.
    #[inline]
    pub fn nullable<T>(
        &mut self,
        name: &'static str,
        value: Option<T>,
        write: impl FnOnce(&mut Vec<u8>, T),
    ) {
        let out = self.field(name);
        match value {
            Some(value) => write(out, value),
            None => out.extend_from_slice(b"null"),
        }
    }

    /// Writes a field with the function, or no field if there is no value.
    #[inline]
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        value: Option<T>,
        write: impl FnOnce(&mut Vec<u8>, T),
    ) {
        if let Some(value) = value {
            write(self.field(name), value);
        }
    }

    #[inline]
    fn comma(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
    }
}

/// Writes a string with its quotes.
///
/// ```
/// let mut out = Vec::new();
/// tollgate_http::json::string(&mut out, "say \"hi\"\n");
/// assert_eq!(out, br#""say \"hi\"\n""#);
/// ```
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| needs_escape(*byte)) {
        out.extend_from_slice(&rest[..at]);
        escape(out, rest[at]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

const fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' | b'\\' => out.extend([b'\\', byte]),
        b'\n' => out.extend(b"\\n"),
        b'\r' => out.extend(b"\\r"),
        b'\t' => out.extend(b"\\t"),
        _ => {
            out.extend(b"\\u00");
            out.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// Writes a whole number.
///
/// ```
/// let mut out = Vec::new();
/// tollgate_http::json::number(&mut out, 1_250);
/// assert_eq!(out, b"1250");
/// ```
pub fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes a duration in seconds, with as many decimals as it needs.
///
/// ```
/// use std::time::Duration;
///
/// let mut out = Vec::new();
/// tollgate_http::json::seconds(&mut out, Duration::from_millis(1_250));
/// assert_eq!(out, b"1.25");
/// ```
pub fn seconds(out: &mut Vec<u8>, time: std::time::Duration) {
    number(out, time.as_secs());
    let mut rest = time.subsec_nanos();
    if rest == 0 {
        return;
    }
    out.push(b'.');
    let mut digits = [b'0'; 9];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789"[(rest % 10) as usize];
        rest /= 10;
    }
    let last = digits.iter().rposition(|digit| *digit != b'0');
    out.extend_from_slice(&digits[..last.map_or(0, |last| last + 1)]);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_is_as_it_was() {
        let mut out = Vec::new();
        string(&mut out, "\u{0}\u{1f}\u{7f}é\u{2028}/\t\r");
        assert_eq!(out, "\"\\u0000\\u001f\u{7f}é\u{2028}/\\t\\r\"".as_bytes());
    }

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        let powers = (0..20).map(|power| 10_u64.pow(power));
        let near = powers.flat_map(|power| [power - 1, power, power + 1, power / 2 * 3]);
        for value in near.chain(0..1_100).chain([u64::MAX - 1, u64::MAX]) {
            let mut out = Vec::new();
            number(&mut out, value);
            assert_eq!(String::from_utf8(out), Ok(value.to_string()));
        }
    }

    #[test]
    fn times_are_exact() {
        for (time, text) in [
            (Duration::ZERO, "0"),
            (Duration::from_nanos(1), "0.000000001"),
            (Duration::from_millis(100), "0.1"),
            (Duration::from_micros(2_780_000), "2.78"),
            (
                Duration::new(u64::MAX, 999_999_999),
                "18446744073709551615.999999999",
            ),
        ] {
            let mut out = Vec::new();
            seconds(&mut out, time);
            assert_eq!(out, text.as_bytes());
        }
    }
}
