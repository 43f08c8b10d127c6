//! One command by the protocol of Redis.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde_json::{Number, Value};

use super::{Ask, ServiceAnswer, told_by_service};
use crate::policy::Fact;
use crate::service_client::{Connection, Place, connect, garbled};

/// The most bytes of an answer.
const MOST: u64 = 1 << 20;

pub(super) fn ask(
    options: &Ask,
    place: &Place,
    password: Option<&str>,
) -> io::Result<ServiceAnswer> {
    let mut reader = BufReader::new(connect(place)?.take(MOST));
    if let Some(password) = password {
        send(reader.get_mut().get_mut(), &["AUTH", password])?;
        reply(&mut reader)?;
    }
    // Decimals and booleans have a form of their own in the third version.
    send(reader.get_mut().get_mut(), &["HELLO", "3"])?;
    reply(&mut reader)?;
    let name = if options.peek { "TG.PEEK" } else { "TG.CHECK" };
    let facts = options.facts.iter().map(Fact::pair);
    let facts: Vec<_> = facts
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let cost = options.cost.to_string();
    let mut words = vec![name];
    words.extend(facts.iter().map(String::as_str));
    words.extend(["COST", &cost]);
    send(reader.get_mut().get_mut(), &words)?;
    match reply(&mut reader)? {
        Value::Object(told) => Ok(told),
        other => Err(garbled(&format!("its answer is no map: {other}"))),
    }
}

fn send(stream: &mut Box<dyn Connection>, words: &[&str]) -> io::Result<()> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes())?;
    stream.flush()
}

/// Reads one reply of the third version.
fn reply(reader: &mut impl BufRead) -> io::Result<Value> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let strange = || garbled("it doesn't speak the protocol of Redis");
    let line = line.strip_suffix("\r\n").ok_or_else(strange)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(strange)?;
    let count = || rest.parse::<usize>().map_err(|_| strange());
    Ok(match kind {
        "-" => return Err(told_by_service(rest)),
        "+" => Value::String(rest.to_owned()),
        "_" => Value::Null,
        "#" => Value::Bool(rest == "t"),
        ":" => Value::Number(rest.parse::<i64>().map_err(|_| strange())?.into()),
        "," => {
            let number = rest.parse::<f64>().ok().and_then(Number::from_f64);
            number.map_or(Value::Null, Value::Number)
        }
        "$" => {
            let mut bytes = vec![0; count()?.min(1 << 20) + 2];
            reader.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Value::String(String::from_utf8_lossy(&bytes).into_owned())
        }
        "*" => {
            let each = (0..count()?).map(|_| reply(reader));
            Value::Array(each.collect::<io::Result<_>>()?)
        }
        "%" => {
            let mut told = ServiceAnswer::new();
            for _ in 0..count()? {
                let name = reply(reader)?;
                let name = name.as_str().ok_or_else(strange)?.to_owned();
                told.insert(name, reply(reader)?);
            }
            Value::Object(told)
        }
        _ => return Err(strange()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sort_of_reply_is_read() {
        let mut text = &b"%3\r\n$7\r\nallowed\r\n#f\r\n$4\r\nrule\r\n_\r\n$5\r\nretry\r\n*2\r\n,1.5\r\n:-3\r\n"[..];
        let told = reply(&mut text).unwrap().to_string();
        assert_eq!(told, r#"{"allowed":false,"retry":[1.5,-3],"rule":null}"#);
        let wrong = reply(&mut &b"-NOAUTH no\r\n"[..]).unwrap_err();
        assert_eq!(wrong.to_string(), "the service couldn't decide: NOAUTH no");
        for other in [&b"HTTP/1.1 400\r\n"[..], b":x\r\n", b"$3"] {
            let kind = reply(&mut &*other).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidData);
        }
    }
}
