//! One request by HTTP and JSON.

use std::io::{self, Read, Write};

use serde_json::{Map, Value, json};

use super::stream::{connect, garbled, shown};
use super::{Ask, Told, told_by_service};
use crate::admin::Place;

/// The most bytes of an answer.
const MOST: u64 = 1 << 20;

pub(super) fn ask(
    options: &Ask,
    (place, facts): (&Place, Map<String, Value>),
    token: Option<&str>,
) -> io::Result<Told> {
    let path = if options.peek {
        "/v1/peek"
    } else {
        "/v1/check"
    };
    let body = json!({"facts": facts, "cost": options.cost}).to_string();
    let host = match place {
        Place::Tcp { .. } => shown(place),
        Place::Unix(_) => "localhost".to_owned(),
    };
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {}content-length: {}\r\n\r\n{body}",
        token.unwrap_or_default(),
        body.len()
    );
    let mut stream = connect(place)?;
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer).map_err(|_| garbled("it doesn't speak HTTP"))?;
    read(&answer)
}

fn read(answer: &str) -> io::Result<Told> {
    let status = answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    let (Some(status), Some((_, body))) = (status, answer.split_once("\r\n\r\n")) else {
        return Err(garbled("it doesn't speak HTTP"));
    };
    let body: Value = serde_json::from_str(body)
        .map_err(|error| garbled(&format!("its answer can't be read: {error}")))?;
    match body {
        Value::Object(told) if told.contains_key("allowed") => Ok(told),
        body => {
            let detail = body["detail"].as_str();
            let why = detail.map_or_else(|| format!("status {status}"), str::to_owned);
            Err(told_by_service(&why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_read_whatever_its_status_and_all_else_is_a_failure() {
        let denied =
            "HTTP/1.1 429 Too Many Requests\r\nx: y\r\n\r\n{\"allowed\":false,\"rule\":\"a\"}";
        assert_eq!(read(denied).unwrap()["allowed"], false);
        let wrong = "HTTP/1.1 400 Bad Request\r\n\r\n{\"detail\":\"no facts\"}";
        let told = read(wrong).unwrap_err().to_string();
        assert_eq!(told, "the service couldn't decide: no facts");
        for other in ["", "SSH-2.0", "HTTP/1.1 200 OK\r\n\r\nOK"] {
            let kind = read(other).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidData, "{other}");
        }
    }
}
