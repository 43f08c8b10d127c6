//! Sends one command over the Redis protocol.

use std::io::{self, BufRead, BufReader, Read, Write};

use serde_json::{Number, Value};

use super::{AskOptions, ServiceAnswer, service_error};
use crate::policy::FactArg;
use crate::service_client::{Connection, ServiceAddress, connect, invalid_response};

/// The largest response in bytes.
const MAX_RESPONSE_BYTES: u64 = 1 << 20;

pub(super) fn query_resp(
    options: &AskOptions,
    place: &ServiceAddress,
    password: Option<&str>,
) -> io::Result<ServiceAnswer> {
    let mut reader = BufReader::new(connect(place)?.take(MAX_RESPONSE_BYTES));
    if let Some(password) = password {
        send_command(reader.get_mut().get_mut(), &["AUTH", password])?;
        read_reply(&mut reader)?;
    }
    // Only version 3 of the protocol has decimals and booleans.
    send_command(reader.get_mut().get_mut(), &["HELLO", "3"])?;
    read_reply(&mut reader)?;
    let name = if options.peek { "TG.PEEK" } else { "TG.CHECK" };
    let facts = options.facts.iter().map(FactArg::pair);
    let facts: Vec<_> = facts
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let cost = options.cost.to_string();
    let mut words = vec![name];
    words.extend(facts.iter().map(String::as_str));
    words.extend(["COST", &cost]);
    send_command(reader.get_mut().get_mut(), &words)?;
    match read_reply(&mut reader)? {
        Value::Object(told) => Ok(told),
        other => Err(invalid_response(&format!("its answer is no map: {other}"))),
    }
}

fn send_command(stream: &mut Box<dyn Connection>, words: &[&str]) -> io::Result<()> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes())?;
    stream.flush()
}

/// Reads one reply of version 3.
fn read_reply(reader: &mut impl BufRead) -> io::Result<Value> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let strange = || invalid_response("it doesn't speak the protocol of Redis");
    let line = line.strip_suffix("\r\n").ok_or_else(strange)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(strange)?;
    let count = || rest.parse::<usize>().map_err(|_| strange());
    Ok(match kind {
        "-" => return Err(service_error(rest)),
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
            let each = (0..count()?).map(|_| read_reply(reader));
            Value::Array(each.collect::<io::Result<_>>()?)
        }
        "%" => {
            let mut told = ServiceAnswer::new();
            for _ in 0..count()? {
                let name = read_reply(reader)?;
                let name = name.as_str().ok_or_else(strange)?.to_owned();
                told.insert(name, read_reply(reader)?);
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
        let told = read_reply(&mut text).unwrap().to_string();
        assert_eq!(told, r#"{"allowed":false,"retry":[1.5,-3],"rule":null}"#);
        let wrong = read_reply(&mut &b"-NOAUTH no\r\n"[..]).unwrap_err();
        assert_eq!(wrong.to_string(), "the service couldn't decide: NOAUTH no");
        for other in [&b"HTTP/1.1 400\r\n"[..], b":x\r\n", b"$3"] {
            let kind = read_reply(&mut &*other).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidData);
        }
    }
}
