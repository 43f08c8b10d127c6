//! One request of HTTP/1.1 and its answer, on a stream that is closed afterwards. No more is read than is bounded.

use std::io::{self, Read, Write};

use serde_json::{Map, Value};

use super::AdminFailure;

/// The most bytes of an answer.
const MOST: usize = 64 << 20;

/// What is asked.
#[derive(Debug)]
pub(super) struct Question {
    method: &'static str,
    path: String,
    body: String,
}

/// What is answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Question {
    /// What changes nothing.
    pub(super) fn read(path: &str) -> Self {
        Self {
            method: "GET",
            path: path.to_owned(),
            body: String::new(),
        }
    }

    /// What may change something.
    pub(super) fn change(method: &'static str, path: &str, body: &Map<String, Value>) -> Self {
        Self {
            method,
            path: path.to_owned(),
            // An object of text and numbers always has a form in JSON.
            body: serde_json::to_string(body).unwrap_or_default(),
        }
    }

    /// Sends it, and reads what is answered.
    pub(super) fn ask(
        &self,
        stream: &mut (impl Read + Write),
        (host, token): (&str, &str),
    ) -> io::Result<Reply> {
        let Self { method, path, body } = self;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let mut read = Vec::new();
        loop {
            if let Some(reply) = Reply::of(&read)? {
                return Ok(reply);
            }
            let mut bytes = [0; 16 * 1024];
            match stream.read(&mut bytes) {
                Ok(0) => return Err(wrong("it ended before its answer did")),
                Ok(length) => read.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if read.len() > MOST {
                return Err(wrong("its answer is longer than anything that it says"));
            }
        }
    }
}

impl Reply {
    /// What has come, once all of it has.
    fn of(read: &[u8]) -> io::Result<Option<Self>> {
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(None);
        };
        let (head, body) = (&read[..end], &read[end + 4..]);
        let head = std::str::from_utf8(head).map_err(|_| wrong("it doesn't speak HTTP"))?;
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| wrong("it doesn't speak HTTP"))?;
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            value.trim().parse::<usize>().ok().filter(|_| is_length)
        });
        let length = length.ok_or_else(|| wrong("its answer has no length"))?;
        let Some(body) = body.get(..length) else {
            return Ok(None);
        };
        let body = std::str::from_utf8(body).map_err(|_| wrong("its answer is no text"))?;
        Ok(Some(Self {
            status,
            body: body.to_owned(),
        }))
    }

    /// What it says, or why it says no.
    pub(super) fn said(self) -> Result<String, AdminFailure> {
        if self.status == 200 {
            return Ok(self.body);
        }
        let problem: Option<Value> = serde_json::from_str(&self.body).ok();
        let detail = problem
            .as_ref()
            .and_then(|problem| problem["detail"].as_str());
        let why = super::text::plain(detail.unwrap_or("no reason was given"));
        Err(AdminFailure::Refused(match self.status {
            401 => format!("the service takes another token: {why}"),
            404 if why.starts_with("nothing is at ") => {
                format!("this is no admin listener, or one of another version: {why}")
            }
            _ => why,
        }))
    }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_once_all_of_it_is_there() {
        let text = "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\n{}";
        for end in 0..text.len() {
            let found = Reply::of(&text.as_bytes()[..end]).unwrap();
            assert!(found.is_none(), "{end}");
        }
        let reply = Reply::of(text.as_bytes()).unwrap().unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (200, "{}"));
        for other in ["SSH-2.0-x\r\n\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(Reply::of(other.as_bytes()).is_err(), "{other}");
        }
    }
}
