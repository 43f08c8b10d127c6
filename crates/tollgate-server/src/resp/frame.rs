//! Parses RESP commands in the input, without copying.
//!
//! A client sends arrays of bulk strings (`*1\r\n$4\r\nPING\r\n`), a person at a terminal a line of words. Parsing an
//! incomplete command continues where it stopped, so that bytes that trickle in cost no more than others.

use std::ops::Range;
use std::slice;

use derive_more::Display;

/// The longest length line: `*1024\r\n`, `$65536\r\n`.
const LONGEST_LINE: usize = 32;
/// The first byte of a TLS handshake. No command begins with it, and read as a line it might never end.
const TLS: u8 = 0x16;
/// The number of words that most commands have at most.
const FEW_WORDS: usize = 16;

/// The size limits of one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandBounds {
    /// Of its bytes, with the lengths around the words.
    pub(crate) bytes: usize,
    /// Of its number of words.
    pub(crate) words: usize,
}

/// The state of parsing a command: the ranges of its words, from its first byte on.
#[derive(Debug, Default)]
pub(crate) struct CommandParser {
    words: Vec<Range<usize>>,
    /// How many bytes are parsed.
    at: usize,
    /// Words still to come, once their number is known.
    missing: Option<usize>,
}

/// A protocol error. The connection is closed after the error reply.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("Protocol error: {_variant}")]
pub(crate) enum CommandError {
    /// A malformed number of words or bytes.
    #[display("invalid {} length", if *of == "words" { "multibulk" } else { "bulk" })]
    Number { of: &'static str },
    /// A word that doesn't begin with `$`.
    #[display("expected '$', got '{}'", _0.escape_ascii())]
    NoWord(u8),
    /// A word that doesn't end where its length says.
    #[display("a bulk string doesn't end with CR LF where its length says")]
    Unterminated,
    /// More words than the limit.
    #[display("{found} arguments, more than the {most} that are taken")]
    Words { found: usize, most: usize },
    /// More bytes than the limit.
    #[display("a command of more than the {most} bytes that are taken")]
    Bytes { most: usize },
    /// An unbalanced quote, or text right behind a closing quote.
    #[display("unbalanced quotes in request")]
    Quotes,
    /// A client that speaks HTTP, such as a web browser: cross-protocol requests must not run commands.
    #[display("this isn't HTTP")]
    Http,
    /// A client that begins with TLS, on a listener without TLS.
    #[display("this isn't TLS")]
    Tls,
}

/// The words of a command.
#[derive(Clone, Debug)]
pub(crate) struct Words<'i> {
    input: &'i [u8],
    rest: slice::Iter<'i, Range<usize>>,
}

impl<'i> Iterator for Words<'i> {
    type Item = &'i [u8];

    fn next(&mut self) -> Option<&'i [u8]> {
        self.rest.next().map(|word| &self.input[word.clone()])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl ExactSizeIterator for Words<'_> {}

impl CommandParser {
    /// Continues to parse the command at the start of `input`. Returns its length once it is complete.
    pub(crate) fn read(
        &mut self,
        input: &[u8],
        most: &CommandBounds,
    ) -> Result<Option<usize>, CommandError> {
        let Some(first) = input.first() else {
            return Ok(None);
        };
        if self.missing.is_none() {
            if *first == TLS {
                return Err(CommandError::Tls);
            }
            if *first != b'*' {
                return self.read_line(input, most);
            }
            let Some(count) = self.number(input, "words")? else {
                return Ok(None);
            };
            if count > most.words {
                let most = most.words;
                return Err(CommandError::Words { found: count, most });
            }
            self.missing = Some(count);
        }
        while self.missing > Some(0) {
            match input.get(self.at) {
                None => return Ok(None),
                Some(b'$') => {}
                Some(other) => return Err(CommandError::NoWord(*other)),
            }
            let before = self.at;
            let Some(length) = self.number(input, "bytes")? else {
                return Ok(None);
            };
            let end = self.at.saturating_add(length);
            if end > most.bytes {
                return Err(CommandError::Bytes { most: most.bytes });
            }
            if input.len() < end + 2 {
                // The length line is parsed again with the next input, as the word's bytes are missing.
                self.at = before;
                return Ok(None);
            }
            if input[end..end + 2] != *b"\r\n" {
                return Err(CommandError::Unterminated);
            }
            self.words.push(self.at..end);
            self.at = end + 2;
            self.missing = self.missing.map(|missing| missing - 1);
        }
        Ok(Some(self.at))
    }

    /// The words of a complete command.
    pub(crate) fn words<'i>(&'i self, input: &'i [u8]) -> Words<'i> {
        let rest = self.words.iter();
        Words { input, rest }
    }

    /// Resets the parser for the next command.
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        (self.at, self.missing) = (0, None);
    }

    /// Frees memory that few commands need.
    pub(crate) fn shrink(&mut self) {
        self.words.shrink_to(FEW_WORDS);
    }

    /// Parses `*12\r\n` or `$12\r\n` at the current position, and moves behind it. An array of -1 words is empty; a
    /// word of length -1 is an error.
    fn number(&mut self, input: &[u8], of: &'static str) -> Result<Option<usize>, CommandError> {
        let rest = &input[self.at..];
        let within = &rest[..rest.len().min(LONGEST_LINE)];
        let Some(end) = memchr::memchr(b'\n', within) else {
            return match within.len() {
                LONGEST_LINE => Err(CommandError::Number { of }),
                _ => Ok(None),
            };
        };
        let Some(digits) = within[1..end].strip_suffix(b"\r") else {
            return Err(CommandError::Number { of });
        };
        let number = match digits {
            b"-1" if of == "words" => 0,
            digits => parse_number(digits).ok_or(CommandError::Number { of })?,
        };
        self.at += end + 1;
        Ok(Some(number))
    }

    /// Parses a line of words.
    fn read_line(
        &mut self,
        input: &[u8],
        most: &CommandBounds,
    ) -> Result<Option<usize>, CommandError> {
        // Only new bytes are searched for the line's end.
        let Some(found) = memchr::memchr(b'\n', &input[self.at..]) else {
            self.at = input.len();
            if self.at > most.bytes {
                return Err(CommandError::Bytes { most: most.bytes });
            }
            return Ok(None);
        };
        let end = self.at + found;
        if end > most.bytes {
            return Err(CommandError::Bytes { most: most.bytes });
        }
        let mut at = 0;
        while let Some((word, behind)) = next_word(&input[..end], at)? {
            self.words.push(word);
            at = behind;
        }
        if self.words.len() > most.words {
            let (found, most) = (self.words.len(), most.words);
            return Err(CommandError::Words { found, most });
        }
        let first = self.words.first().map(|word| &input[word.clone()]);
        if first.is_some_and(|word| {
            word.eq_ignore_ascii_case(b"POST") || word.eq_ignore_ascii_case(b"Host:")
        }) {
            return Err(CommandError::Http);
        }
        Ok(Some(end + 1))
    }
}

/// The next word of a line, with or without quotes, and the position behind it.
fn next_word(line: &[u8], mut at: usize) -> Result<Option<(Range<usize>, usize)>, CommandError> {
    while line.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    let Some(first) = line.get(at) else {
        return Ok(None);
    };
    if let b'"' | b'\'' = first {
        let start = at + 1;
        let length = memchr::memchr(*first, &line[start..]).ok_or(CommandError::Quotes)?;
        let end = start + length;
        return match line.get(end + 1) {
            Some(behind) if !behind.is_ascii_whitespace() => Err(CommandError::Quotes),
            _ => Ok(Some((start..end, end + 1))),
        };
    }
    let length = line[at..].iter().position(u8::is_ascii_whitespace);
    let end = length.map_or(line.len(), |length| at + length);
    Ok(Some((at..end, end)))
}

/// Parses a number of at most nine digits.
fn parse_number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    digits.iter().try_fold(0, |sum, digit| match digit {
        b'0'..=b'9' => Some(sum * 10 + usize::from(digit - b'0')),
        _ => None,
    })
}

impl CommandError {
    /// Whether a size limit was exceeded.
    pub(crate) const fn is_too_large(&self) -> bool {
        matches!(self, Self::Words { .. } | Self::Bytes { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: CommandBounds = CommandBounds {
        bytes: 1_000,
        words: 8,
    };

    fn whole_of(input: &[u8]) -> Result<Option<(Vec<String>, usize)>, CommandError> {
        let mut frame = CommandParser::default();
        let read = frame.read(input, &MOST)?;
        Ok(read.map(|length| (texts(&frame, input), length)))
    }

    fn texts(frame: &CommandParser, input: &[u8]) -> Vec<String> {
        frame
            .words(input)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    #[test]
    fn commands_are_found_in_what_was_read() {
        let input = b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*1\r\n$4\r\nPING\r\n";
        let (words, length) = whole_of(input).expect("a command").expect("whole");
        assert_eq!(
            (words, length),
            (vec!["ECHO".to_owned(), "hi".to_owned()], 22)
        );
        let (words, length) = whole_of(&input[22..]).expect("a command").expect("whole");
        assert_eq!((words, length), (vec!["PING".to_owned()], 14));
    }

    #[test]
    fn lines_of_words_are_commands_too() {
        for (line, words) in [
            ("PING\r\n", &["PING"][..]),
            ("  TG.CHECK  user=42 \n", &["TG.CHECK", "user=42"]),
            ("ECHO 'a b' \"c d\"\r\n", &["ECHO", "a b", "c d"]),
            ("\r\n", &[]),
        ] {
            let (found, length) = whole_of(line.as_bytes()).expect("a line").expect("whole");
            assert_eq!(
                (found, length),
                (
                    words.iter().map(|word| (*word).to_owned()).collect(),
                    line.len()
                )
            );
        }
    }

    #[test]
    fn empty_arrays_have_no_words() {
        for input in ["*0\r\n", "*-1\r\n"] {
            assert_eq!(
                whole_of(input.as_bytes()),
                Ok(Some((Vec::new(), input.len())))
            );
        }
    }

    #[test]
    fn what_comes_byte_by_byte_is_read_as_if_at_once() {
        for input in [
            &b"*3\r\n$1\r\na\r\n$0\r\n\r\n$3\r\n\r\n$\r\n"[..],
            b"GET 'a b' c\r\n",
        ] {
            let mut frame = CommandParser::default();
            for end in 0..input.len() {
                assert_eq!(frame.read(&input[..end], &MOST), Ok(None), "{end}");
            }
            assert_eq!(frame.read(input, &MOST), Ok(Some(input.len())));
            let found = texts(&frame, input);
            assert_eq!(
                Some((found, input.len())),
                whole_of(input).expect("a command")
            );
            frame.clear();
            assert_eq!(frame.read(input, &MOST), Ok(Some(input.len())));
        }
    }

    #[test]
    fn what_no_client_sends_is_told_by_name() {
        let long = format!("*1\r\n$1001\r\n{}", "x".repeat(1_003));
        let endless = "x".repeat(1_001);
        for (input, said) in [
            ("*x\r\n", "invalid multibulk length"),
            ("*1\n", "invalid multibulk length"),
            ("*99999999999\r\n", "invalid multibulk length"),
            (
                "*00000000000000000000000000000000000",
                "invalid multibulk length",
            ),
            ("*9\r\n", "9 arguments, more than the 8 that are taken"),
            ("*1\r\n:1\r\n", "expected '$', got ':'"),
            ("*1\r\n$x\r\n", "invalid bulk length"),
            (
                "*1\r\n$1\r\nabc\r\n",
                "a bulk string doesn't end with CR LF where its length says",
            ),
            (
                &long,
                "a command of more than the 1000 bytes that are taken",
            ),
            (
                &endless,
                "a command of more than the 1000 bytes that are taken",
            ),
            ("ECHO 'a\r\n", "unbalanced quotes in request"),
            ("ECHO 'a'b\r\n", "unbalanced quotes in request"),
            (
                "a b c d e f g h i\r\n",
                "9 arguments, more than the 8 that are taken",
            ),
            ("POST / HTTP/1.1\r\n", "this isn't HTTP"),
            ("host: example\r\n", "this isn't HTTP"),
        ] {
            let error = whole_of(input.as_bytes()).expect_err(input);
            assert_eq!(
                error.to_string(),
                format!("Protocol error: {said}"),
                "{input:?}"
            );
        }
    }

    #[test]
    fn a_length_that_is_too_much_is_refused_before_its_bytes_come() {
        assert_eq!(
            whole_of(b"*1\r\n$999999999\r\n"),
            Err(CommandError::Bytes { most: 1_000 })
        );
    }
}
