//! Commands on sorted sets.

use std::ops::Range;

use super::{number, option};
use crate::redis::Reply;
use crate::world::store::error::{Answer, NO_INTEGER, SYNTAX, ServerError};
use crate::world::store::number as numbers;
use crate::world::store::sorted::{Bounds, Sorted};
use crate::world::store::space::{Entry, Keyspace, Value};

pub(super) fn add(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    const FLAGS: [&str; 5] = ["NX", "XX", "GT", "LT", "CH"];
    let flags = words[2..].iter().map(|word| option(word));
    let flags: Vec<&str> = flags.take_while(|name| FLAGS.contains(name)).collect();
    let has = |name| flags.contains(&name);
    let pairs = &words[2 + flags.len()..];
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(ServerError::new(SYNTAX));
    }
    if has("NX") && has("XX") {
        return Err(ServerError::new(
            "ERR XX and NX options at the same time are not compatible",
        ));
    }
    if has("GT") && (has("NX") || has("LT")) || has("LT") && has("NX") {
        return Err(ServerError::new(
            "ERR GT, LT, and/or NX options at the same time are not compatible",
        ));
    }
    let pairs = pairs.chunks_exact(2).map(|pair| {
        let score = numbers::score(pair[0]);
        let score = score.ok_or_else(|| ServerError::new("ERR value is not a valid float"))?;
        Ok((score, pair[1]))
    });
    let pairs = pairs.collect::<Result<Vec<_>, ServerError>>()?;
    if space.sorted(words[1])?.is_none() {
        if has("XX") {
            return number(0);
        }
        let value = Value::Sorted(Sorted::default());
        let expires = None;
        space.put(words[1], Entry { value, expires });
    }
    let put = |set: &mut Sorted| {
        let (mut added, mut changed) = (0, 0);
        for (score, member) in pairs {
            match set.score(member) {
                None if !has("XX") => added += 1,
                Some(old) if old != score && !has("NX") => {
                    if has("GT") && score < old || has("LT") && score > old {
                        continue;
                    }
                    changed += 1;
                }
                _ => continue,
            }
            set.insert(member, score);
        }
        added + if has("CH") { changed } else { 0 }
    };
    number(space.change_sorted(words[1], put)?.unwrap_or(0))
}

pub(super) fn range(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let shown = match words[4..] {
        [] => RangeReply::Members,
        [word] if option(word) == "WITHSCORES" => RangeReply::Scores,
        _ => return Err(ServerError::new(SYNTAX)),
    };
    let (first, last) = (integer(words[2])?, integer(words[3])?);
    let set = space.sorted(words[1])?;
    Ok(list(set, |set| set.between(first, last), shown))
}

pub(super) fn range_by_score(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let (mut shown, mut skipped, mut most) = (RangeReply::Members, 0, -1);
    let mut rest = &words[4..];
    while let [word, after @ ..] = rest {
        (rest, skipped, most) = match (option(word), after) {
            ("WITHSCORES", _) => {
                shown = RangeReply::Scores;
                (after, skipped, most)
            }
            ("LIMIT", [skip, count, after @ ..]) => (after, integer(skip)?, integer(count)?),
            _ => return Err(ServerError::new(SYNTAX)),
        };
    }
    let bounds = bounds(words)?;
    let places = |set: &Sorted| {
        let Range { start, end } = set.within(bounds);
        // A count above the number of members is none of them; a negative one is all.
        let start = usize::try_from(skipped).map_or(end, |skipped| end.min(start + skipped));
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        start..end.min(start.saturating_add(most))
    };
    Ok(list(space.sorted(words[1])?, places, shown))
}

pub(super) fn count(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let bounds = bounds(words)?;
    number(
        space
            .sorted(words[1])?
            .map_or(0, |set| set.within(bounds).len()),
    )
}

pub(super) fn size(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    number(space.sorted(words[1])?.map_or(0, Sorted::len))
}

pub(super) fn score(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let score = space.sorted(words[1])?.and_then(|set| set.score(words[2]));
    Ok(score.map_or(Reply::Nil, score_reply))
}

pub(super) fn rank(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    match space.sorted(words[1])?.and_then(|set| set.rank(words[2])) {
        None => Ok(Reply::Nil),
        Some(rank) => number(rank),
    }
}

pub(super) fn remove(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let members = words[2..].iter();
    let remove = |set: &mut Sorted| members.filter(|member| set.remove(member)).count();
    number(space.change_sorted(words[1], remove)?.unwrap_or(0))
}

pub(super) fn remove_by_score(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let bounds = bounds(words)?;
    let remove = |set: &mut Sorted| set.remove_at(set.within(bounds));
    number(space.change_sorted(words[1], remove)?.unwrap_or(0))
}

pub(super) fn remove_by_rank(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let (first, last) = (integer(words[2])?, integer(words[3])?);
    let remove = |set: &mut Sorted| set.remove_at(set.between(first, last));
    number(space.change_sorted(words[1], remove)?.unwrap_or(0))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeReply {
    Members,
    Scores,
}

/// Members, each with its score if requested.
fn list(
    set: Option<&Sorted>,
    places: impl FnOnce(&Sorted) -> Range<usize>,
    shown: RangeReply,
) -> Reply {
    let members = set.map_or(&[][..], |set| set.at(places(set)));
    let mut items = Vec::new();
    for (score, member) in members {
        items.push(Reply::Bulk(member.to_vec()));
        if shown == RangeReply::Scores {
            items.push(score_reply(*score));
        }
    }
    Reply::Array(items)
}

fn score_reply(score: f64) -> Reply {
    Reply::Bulk(numbers::print(score).into_bytes())
}

fn bounds(words: &[&[u8]]) -> Result<Bounds, ServerError> {
    let bounds = Bounds::read(words[2], words[3]);
    bounds.ok_or_else(|| ServerError::new("ERR min or max is not a float"))
}

fn integer(word: &[u8]) -> Result<i64, ServerError> {
    numbers::integer(word).ok_or_else(|| ServerError::new(NO_INTEGER))
}
