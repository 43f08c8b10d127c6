//! Reads any bytes as RESP commands, for the fuzz target and for the tests that read the target's seeds.

use std::time::Duration;

use super::cl_throttle::{ThrottleCommand, ThrottleOutcome};
use super::frame::{CommandBounds, CommandError, CommandParser};

const MOST: CommandBounds = CommandBounds {
    bytes: 1_000,
    words: 8,
};

/// A command, by its words.
type Command = Vec<Vec<u8>>;

/// Parses all commands. Returns whether the input has nothing else. Byte by byte, the commands are the same.
pub(crate) fn read(input: &[u8]) -> bool {
    let (at_once, end) = commands(input, input.len());
    let (one_by_one, other_end) = commands(input, 1);
    assert_eq!((&at_once, &end), (&one_by_one, &other_end));
    for command in &at_once {
        assert!(command.len() <= MOST.words);
        assert!(command.iter().map(Vec::len).sum::<usize>() <= MOST.bytes);
        if let [name, words @ ..] = &command[..]
            && name.eq_ignore_ascii_case(b"CL.THROTTLE")
        {
            throttle(words);
        }
    }
    end == Ok(input.len())
}

/// All commands, of bytes that come so many at a time: up to where, or what isn't one.
fn commands(input: &[u8], step: usize) -> (Vec<Command>, Result<usize, CommandError>) {
    let (mut frame, mut found) = (CommandParser::default(), Vec::new());
    let (mut used, mut there) = (0, 0);
    loop {
        match frame.read(&input[used..there], &MOST) {
            Ok(Some(length)) => {
                let words = frame.words(&input[used..there]);
                found.push(words.map(<[u8]>::to_vec).collect());
                frame.clear();
                assert!((1..=there - used).contains(&length));
                used += length;
            }
            Ok(None) if there == input.len() => return (found, Ok(used)),
            Ok(None) => there = input.len().min(there + step),
            Err(broken) => {
                assert!(broken.to_string().starts_with("Protocol error: "));
                return (found, Err(broken));
            }
        }
    }
}

/// A command's arguments are valid, or give an error.
fn throttle(words: &[Vec<u8>]) {
    let Ok(asked) = ThrottleCommand::read(words.iter().map(Vec::as_slice)) else {
        return;
    };
    if let Ok(limit) = asked.ask.limit() {
        let unused = ThrottleOutcome {
            is_allowed: true,
            debt: Duration::ZERO,
            wait: None,
        };
        let [limited, most, left, retry_after, reset_after] = limit.answer(&unused, asked.quantity);
        assert!(limited == 0 && most > 0 && left >= most, "{limit:?}");
        assert_eq!((retry_after, reset_after), (-1, 0), "{limit:?}");
        assert_eq!(limit.rate().burst_size(), limit.limit);
    }
}
