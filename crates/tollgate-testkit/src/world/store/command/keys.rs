//! Commands on keys of any type, and on strings.

use super::{number, option};
use crate::redis::Reply;
use crate::world::store::error::{Answer, NO_INTEGER, SYNTAX, ServerError};
use crate::world::store::number::integer;
use crate::world::store::space::{Entry, Keyspace, Value};

pub(super) fn time(space: &mut Keyspace, _: &[&[u8]]) -> Answer {
    let part = |number: u64| Reply::Bulk(number.to_string().into_bytes());
    let (seconds, micros) = (space.now / 1_000_000, space.now % 1_000_000);
    Ok(Reply::Array(vec![part(seconds), part(micros)]))
}

pub(super) fn get(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let text = space.text(words[1])?;
    Ok(text.map_or(Reply::Nil, |text| Reply::Bulk(text.to_vec())))
}

pub(super) fn set(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    enum SetExpiry<'a> {
        Endless,
        Kept,
        For(&'a [u8]),
        Until(&'a [u8]),
    }
    let syntax = || ServerError::new(SYNTAX);
    let (key, value) = (words[1], words[2]);
    let (mut life, mut only_if_there) = (SetExpiry::Endless, None);
    let mut rest = words[3..].iter();
    while let Some(word) = rest.next() {
        match (option(word), &life) {
            ("NX", _) if only_if_there != Some(true) => only_if_there = Some(false),
            ("XX", _) if only_if_there != Some(false) => only_if_there = Some(true),
            ("KEEPTTL", SetExpiry::Endless | SetExpiry::Kept) => life = SetExpiry::Kept,
            ("PX", SetExpiry::Endless | SetExpiry::For(_)) => {
                life = SetExpiry::For(rest.next().ok_or_else(syntax)?)
            }
            ("PXAT", SetExpiry::Endless | SetExpiry::Until(_)) => {
                life = SetExpiry::Until(rest.next().ok_or_else(syntax)?)
            }
            _ => return Err(syntax()),
        }
    }
    let invalid = || ServerError::new("ERR invalid expire time in 'set' command");
    let millis = |text| {
        let millis = integer(text).ok_or_else(|| ServerError::new(NO_INTEGER))?;
        Some(millis)
            .filter(|millis| *millis > 0)
            .ok_or_else(invalid)
    };
    let expires = match life {
        SetExpiry::Endless => None,
        SetExpiry::Kept => space.peek_entry(key).and_then(|entry| entry.expires),
        SetExpiry::For(text) => Some(
            space
                .millis()
                .checked_add(millis(text)?)
                .ok_or_else(invalid)?,
        ),
        SetExpiry::Until(text) => Some(millis(text)?),
    };
    if only_if_there.is_some_and(|wanted| wanted != space.peek_entry(key).is_some()) {
        return Ok(Reply::Nil);
    }
    let value = Value::Text(value.to_vec());
    space.put(key, Entry { value, expires });
    Ok(Reply::Status("OK".to_owned()))
}

pub(super) fn delete(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let keys = words[1..].iter();
    number(keys.filter(|key| take(space, key)).count())
}

/// Removes a key. Returns whether it was there.
fn take(space: &mut Keyspace, key: &[u8]) -> bool {
    let is_there = space.peek_entry(key).is_some();
    if is_there {
        space.remove(key);
    }
    is_there
}

pub(super) fn exist(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let keys = words[1..].iter();
    number(keys.filter(|key| space.peek_entry(key).is_some()).count())
}

pub(super) fn type_of(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let name = match space.peek_entry(words[1]).map(|entry| &entry.value) {
        None => "none",
        Some(Value::Text(_)) => "string",
        Some(Value::Sorted(_)) => "zset",
    };
    Ok(Reply::Status(name.to_owned()))
}

pub(super) fn expire_in(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    expire(space, words, space.millis(), "pexpire")
}

pub(super) fn expire_at(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    expire(space, words, 0, "pexpireat")
}

/// Sets the expiry of a key, relative to `from`. An expiry that isn't in the future deletes the key.
fn expire(space: &mut Keyspace, words: &[&[u8]], from: i64, name: &str) -> Answer {
    let options = &words[3..];
    let known = ["NX", "XX", "GT", "LT"];
    if let Some(word) = options.iter().find(|word| !known.contains(&option(word))) {
        let word = String::from_utf8_lossy(word);
        return Err(ServerError::new(format!("ERR Unsupported option {word}")));
    }
    let has = |name| options.iter().any(|word| option(word) == name);
    if has("NX") && (has("XX") || has("GT") || has("LT")) {
        return Err(ServerError::new(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    if has("GT") && has("LT") {
        return Err(ServerError::new(
            "ERR GT and LT options at the same time are not compatible",
        ));
    }
    let millis = integer(words[2]).ok_or_else(|| ServerError::new(NO_INTEGER))?;
    let invalid = || ServerError::new(format!("ERR invalid expire time in '{name}' command"));
    let expires = from.checked_add(millis).ok_or_else(invalid)?;
    let now = space.millis();
    let Some(entry) = space.change(words[1]) else {
        return number(0);
    };
    let is_refused = match entry.expires {
        None => has("XX") || has("GT"),
        Some(old) => has("NX") || has("GT") && expires <= old || has("LT") && expires >= old,
    };
    if is_refused {
        return number(0);
    }
    entry.expires = Some(expires);
    if expires <= now {
        space.remove(words[1]);
    }
    number(1)
}

pub(super) fn persist(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let entry = space.change(words[1]);
    number(usize::from(
        entry.is_some_and(|entry| entry.expires.take().is_some()),
    ))
}

pub(super) fn expires_at(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    Ok(Reply::Integer(match space.peek_entry(words[1]) {
        None => -2,
        Some(entry) => entry.expires.unwrap_or(-1),
    }))
}

pub(super) fn life_left(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let now = space.millis();
    Ok(Reply::Integer(match space.peek_entry(words[1]) {
        None => -2,
        Some(entry) => entry.expires.map_or(-1, |expires| expires - now),
    }))
}
