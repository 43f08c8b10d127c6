//! RESP replies, in version 2 or 3 of the protocol.

use std::time::Duration;

use tollgate_http::json;

/// The protocol version of a client: 2, unless it sends `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    #[default]
    Two,
    Three,
}

/// Writes replies, in the order of their commands.
#[derive(Debug)]
pub(crate) struct ReplyWriter<'o> {
    pub(crate) bytes: &'o mut Vec<u8>,
    pub(crate) version: Version,
}

impl ReplyWriter<'_> {
    /// A simple string: `+OK`.
    pub(crate) fn simple(&mut self, word: &str) {
        self.line(b'+', word.as_bytes());
    }

    /// An error, whose first word is its kind: `-ERR no such command`.
    pub(crate) fn error(&mut self, what: &str) {
        self.bytes.push(b'-');
        let shown = what
            .bytes()
            .map(|byte| if byte.is_ascii_control() { b' ' } else { byte });
        self.bytes.extend(shown);
        self.bytes.extend(b"\r\n");
    }

    /// An integer.
    pub(crate) fn integer(&mut self, value: i64) {
        self.bytes.push(b':');
        if value < 0 {
            self.bytes.push(b'-');
        }
        json::number(self.bytes, value.unsigned_abs());
        self.bytes.extend(b"\r\n");
    }

    /// A count, cut to the largest integer of the protocol.
    pub(crate) fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// A bulk string of text.
    pub(crate) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// A name and its value, as bulk strings.
    pub(crate) fn pair(&mut self, name: &str, value: &str) {
        self.text(name);
        self.text(value);
    }

    /// A constant bulk string, already encoded: `$5\r\nlimit\r\n`.
    pub(crate) fn word(&mut self, bulk: &'static [u8]) {
        self.bytes.extend_from_slice(bulk);
    }

    /// A bulk string.
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend(b"\r\n");
    }

    /// Null.
    pub(crate) fn null(&mut self) {
        self.bytes.extend(match self.version {
            Version::Two => &b"$-1\r\n"[..],
            Version::Three => b"_\r\n",
        });
    }

    /// A null array.
    pub(crate) fn null_array(&mut self) {
        self.bytes.extend(match self.version {
            Version::Two => &b"*-1\r\n"[..],
            Version::Three => b"_\r\n",
        });
    }

    /// A boolean; an integer in version 2.
    pub(crate) fn boolean(&mut self, value: bool) {
        match self.version {
            Version::Two => self.integer(i64::from(value)),
            Version::Three => self.line(b'#', if value { b"t" } else { b"f" }),
        }
    }

    /// A duration in seconds: a double, or a bulk string in version 2.
    pub(crate) fn seconds(&mut self, time: Duration) {
        let start = self.bytes.len();
        match self.version {
            Version::Three => self.bytes.push(b','),
            Version::Two => {}
        }
        json::seconds(self.bytes, time);
        if self.version == Version::Two {
            // The length comes first, but is known last: it is written behind the digits, and rotated before them.
            let digits = self.bytes.len() - start;
            self.head(b'$', digits);
            self.bytes[start..].rotate_left(digits);
        }
        self.bytes.extend(b"\r\n");
    }

    /// The head of an array of this many replies.
    pub(crate) fn array(&mut self, answers: usize) {
        self.head(b'*', answers);
    }

    /// The head of a map of this many pairs; a flat array in version 2.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.head(b'*', pairs * 2),
            Version::Three => self.head(b'%', pairs),
        }
    }

    fn head(&mut self, kind: u8, length: usize) {
        self.bytes.push(kind);
        json::number(self.bytes, length as u64);
        self.bytes.extend(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(version: Version, say: impl Fn(&mut ReplyWriter<'_>)) -> String {
        let mut bytes = Vec::new();
        say(&mut ReplyWriter {
            version,
            bytes: &mut bytes,
        });
        String::from_utf8(bytes).expect("text")
    }

    type Say = dyn Fn(&mut ReplyWriter<'_>);

    #[test]
    fn each_answer_has_its_form_in_both_versions() {
        let forms: [(&Say, &str, &str); 9] = [
            (&|out| out.simple("OK"), "+OK\r\n", "+OK\r\n"),
            (
                &|out| out.error("ERR a\r\nb"),
                "-ERR a  b\r\n",
                "-ERR a  b\r\n",
            ),
            (
                &|out| out.integer(i64::MIN),
                ":-9223372036854775808\r\n",
                ":-9223372036854775808\r\n",
            ),
            (
                &|out| out.count(u64::MAX),
                ":9223372036854775807\r\n",
                ":9223372036854775807\r\n",
            ),
            (&|out| out.text("é"), "$2\r\né\r\n", "$2\r\né\r\n"),
            (&|out| out.null(), "$-1\r\n", "_\r\n"),
            (&|out| out.boolean(true), ":1\r\n", "#t\r\n"),
            (
                &|out| out.seconds(Duration::from_millis(1_500)),
                "$3\r\n1.5\r\n",
                ",1.5\r\n",
            ),
            (&|out| out.map(3), "*6\r\n", "%3\r\n"),
        ];
        for (say, two, three) in forms {
            assert_eq!(said(Version::Two, say), two);
            assert_eq!(said(Version::Three, say), three);
        }
    }
}
