//! HTTP/1 responses: a status, header fields, and a body with a known length.

use http::StatusCode;
use jiff::fmt::rfc2822::DateTimePrinter;
use tollgate::Timestamp;
use tollgate::clock::{Clock, Wall};
use tollgate_http::json;

use crate::connection::IDLE_BUFFER_BYTES;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

static DATES: DateTimePrinter = DateTimePrinter::new();

/// A response under construction.
#[derive(Debug, Default)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// The header fields, as lines with their ends.
    pub(crate) fields: Vec<u8>,
    pub(crate) body: Vec<u8>,
    /// The `date` field, as a line with its end.
    date: Vec<u8>,
    /// When the date has to be written anew.
    date_until: Timestamp,
}

impl HttpResponse {
    /// Updates the date once a second has passed. `now` is of any steady clock, as reading the wall clock for each
    /// request would cost more.
    #[inline]
    pub(crate) fn refresh_date(&mut self, now: Timestamp) {
        if now >= self.date_until {
            self.write_date(now);
        }
    }

    #[cold]
    fn write_date(&mut self, now: Timestamp) {
        let wall = Wall.now().as_nanos();
        self.date_until = now.plus_nanos(SECOND - wall % SECOND);
        self.date.clear();
        let date = i64::try_from(wall / SECOND).ok();
        let date = date.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        let shown = date.map(|date| DATES.timestamp_to_rfc9110_string(&date));
        if let Some(Ok(shown)) = shown {
            self.date.extend(b"date: ");
            self.date.extend(shown.as_bytes());
            self.date.extend(b"\r\n");
        }
    }

    /// Resets the response for the next request.
    pub(crate) fn clear(&mut self) {
        (self.status, self.content_type) = (200, "application/json");
        self.fields.clear();
        self.body.clear();
    }

    /// Clears a written response, and frees memory that few responses need.
    pub(crate) fn shrink(&mut self) {
        self.clear();
        self.fields.shrink_to(IDLE_BUFFER_BYTES);
        self.body.shrink_to(IDLE_BUFFER_BYTES);
    }

    /// Adds a header field. Neither part may contain a line break.
    pub(crate) fn field(&mut self, name: &str, value: &str) {
        self.fields.extend_from_slice(name.as_bytes());
        self.fields.extend(b": ");
        self.fields.extend_from_slice(value.as_bytes());
        self.fields.extend(b"\r\n");
    }

    /// Adds a header field with a whole number.
    pub(crate) fn number_field(&mut self, name: &str, value: u64) {
        self.fields.extend_from_slice(name.as_bytes());
        self.fields.extend(b": ");
        json::number(&mut self.fields, value);
        self.fields.extend(b"\r\n");
    }

    /// Makes the response a problem (RFC 9457) with this detail.
    pub(crate) fn write_problem(&mut self, status: u16, detail: &str) {
        (self.status, self.content_type) = (status, "application/problem+json");
        self.body.clear();
        json::object(&mut self.body, |object| {
            json::string(object.field("type"), "about:blank");
            json::string(object.field("title"), reason_phrase(status));
            json::number(object.field("status"), u64::from(status));
            json::string(object.field("detail"), detail);
        });
    }

    /// Writes the response. For `HEAD`, the body is left out, but `content-length` has its length.
    pub(crate) fn write(&self, out: &mut Vec<u8>, keep_alive: bool, is_head: bool) {
        out.extend(b"HTTP/1.1 ");
        json::number(out, u64::from(self.status));
        out.push(b' ');
        out.extend_from_slice(reason_phrase(self.status).as_bytes());
        out.extend(b"\r\ncontent-type: ");
        out.extend_from_slice(self.content_type.as_bytes());
        out.extend(b"\r\ncontent-length: ");
        json::number(out, self.body.len() as u64);
        out.extend(b"\r\n");
        out.extend_from_slice(&self.date);
        out.extend_from_slice(&self.fields);
        if self.status >= 400 {
            out.extend(b"cache-control: no-store\r\n");
        }
        if !keep_alive {
            out.extend(b"connection: close\r\n");
        }
        out.extend(b"\r\n");
        if !is_head {
            out.extend_from_slice(&self.body);
        }
    }
}

/// The reason phrase of a status.
fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        // The names of RFC 9110, which are newer than those of the `http` crate.
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        _ => {
            let known = StatusCode::from_u16(status).ok();
            known
                .and_then(|known| known.canonical_reason())
                .unwrap_or("Error")
        }
    }
}
