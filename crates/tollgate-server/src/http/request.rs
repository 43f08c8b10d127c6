//! Parses HTTP/1 requests from the input. A request is parsed once all of it has arrived.
//!
//! A request that two readers could understand differently is rejected: two lengths, a length beside chunks, an unknown
//! transfer coding. Otherwise a proxy and this service could disagree about where a request ends.

use std::borrow::Cow;

use derive_more::Display;

/// The most header fields of a request, as docs/reference/cli.md states.
const FIELDS: usize = 64;
/// The longest line before a chunk: a size, and extensions that are ignored.
const CHUNK_LINE: usize = 256;
/// The longest trailer behind the last chunk.
const TRAILER: usize = 1_024;

/// The size limits of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestBounds {
    /// Of its head: the request line and the header fields.
    pub(crate) head: usize,
    /// Of its body.
    pub(crate) body: usize,
}

/// A complete request.
#[derive(Debug, Default)]
pub(crate) struct Request<'i> {
    pub(crate) method: &'i str,
    pub(crate) path: &'i str,
    /// The part of the target behind the question mark.
    pub(crate) query: &'i str,
    pub(crate) host: Option<&'i [u8]>,
    pub(crate) origin: Option<&'i [u8]>,
    /// The origin of the page that sends the request, as browsers state it: `same-origin`, `cross-site`.
    pub(crate) fetch_site: Option<&'i [u8]>,
    pub(crate) content_type: Option<&'i [u8]>,
    pub(crate) content_encoding: Option<&'i [u8]>,
    pub(crate) authorization: Option<&'i [u8]>,
    pub(crate) accept: Option<&'i [u8]>,
    pub(crate) body: Cow<'i, [u8]>,
    /// The client may send another request on this connection.
    pub(crate) keep_alive: bool,
    /// HTTP/1.0, whose clients expect a confirmation that the connection is kept.
    pub(crate) is_http_1_0: bool,
}

impl<'i> Request<'i> {
    /// The bearer token.
    pub(crate) fn bearer(&self) -> Option<&'i [u8]> {
        let (scheme, told) = self.authorization?.split_at_checked(b"Bearer ".len())?;
        let is_it = scheme.eq_ignore_ascii_case(b"Bearer ");
        is_it.then(|| told.trim_ascii_start())
    }
}

/// The outcome of parsing the input.
#[derive(Debug)]
pub(crate) enum ParsedRequest<'i> {
    /// A complete request, and its length in bytes.
    Complete(Request<'i>, usize),
    /// Not complete yet. With `Expect: 100-continue` the client waits for an interim response.
    Incomplete { asks_to_go_on: bool },
}

/// A request that can't be answered. The connection is closed after the error response.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// It isn't HTTP/1.
    #[display("this isn't a request of HTTP/1")]
    Syntax,
    /// A version other than 1.0 and 1.1.
    #[display("only HTTP/1.0 and HTTP/1.1 are spoken here")]
    Version,
    /// The head is longer than the limit.
    #[display("the first lines are more than the {most} that are taken")]
    Head { most: usize },
    /// More header fields than the limit.
    #[display("a request has at most {FIELDS} header fields")]
    Fields,
    /// The body is longer than the limit.
    #[display("the body is longer than the {most} bytes that are taken")]
    Body { most: usize },
    /// A length that is no number, two lengths, or a length beside chunks.
    #[display("Content-Length is no number, is sent twice, or stands beside Transfer-Encoding")]
    Length,
    /// A transfer coding other than chunked.
    #[display("no Transfer-Encoding but chunked is understood")]
    Coding,
    /// No `Host`, or two.
    #[display("a request of HTTP/1.1 has one field Host, which is the same as in its first line")]
    Host,
    /// Malformed chunks.
    #[display("the chunks of the body can't be read")]
    Chunks,
}

/// How the length of a body is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyLength {
    Known(usize),
    Chunks,
}

/// The head of a request.
struct RequestHead<'i> {
    request: Request<'i>,
    bytes: usize,
    length: BodyLength,
    expects_continue: bool,
}

/// Parses the request at the start of `input`.
pub(crate) fn parse_request<'i>(
    input: &'i [u8],
    most: &RequestBounds,
) -> Result<ParsedRequest<'i>, RequestError> {
    let within = &input[..input.len().min(most.head)];
    let Some(head) = parse_head(within)? else {
        if input.len() > most.head {
            return Err(RequestError::Head { most: most.head });
        }
        return Ok(ParsedRequest::Incomplete {
            asks_to_go_on: false,
        });
    };
    let rest = &input[head.bytes..];
    let body = match head.length {
        BodyLength::Known(length) if length > most.body => {
            return Err(RequestError::Body { most: most.body });
        }
        BodyLength::Known(length) => rest.get(..length).map(|body| (Cow::Borrowed(body), length)),
        BodyLength::Chunks => {
            join_chunks(rest, most.body)?.map(|(body, length)| (Cow::Owned(body), length))
        }
    };
    let Some((body, length)) = body else {
        let asks_to_go_on = head.expects_continue && rest.is_empty();
        return Ok(ParsedRequest::Incomplete { asks_to_go_on });
    };
    let request = Request {
        body,
        ..head.request
    };
    Ok(ParsedRequest::Complete(request, head.bytes + length))
}

fn parse_head(input: &[u8]) -> Result<Option<RequestHead<'_>>, RequestError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let bytes = match parsed.parse(input) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(RequestError::Fields),
        Err(httparse::Error::Version) => return Err(RequestError::Version),
        Err(_) => return Err(RequestError::Syntax),
    };
    if has_bare_line_feed(&input[..bytes]) {
        return Err(RequestError::Syntax);
    }
    let is_new = parsed.version == Some(1);
    let (authority, target) = split_target(parsed.path.unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = Request {
        method: parsed.method.unwrap_or_default(),
        path,
        query,
        keep_alive: is_new,
        is_http_1_0: !is_new,
        ..Request::default()
    };
    let mut head = RequestHead {
        request,
        bytes,
        length: BodyLength::Known(0),
        expects_continue: false,
    };
    let mut body = BodyFields::default();
    for field in parsed.headers.iter() {
        let value = field.value.trim_ascii();
        if !body.read(field.name, value, is_new)? {
            head.read(field.name, value, is_new)?;
        }
    }
    if is_new && head.request.host.is_none() {
        return Err(RequestError::Host);
    }
    if let Some(named) = authority
        && head.request.host.replace(named.as_bytes()) != Some(named.as_bytes())
        && is_new
    {
        return Err(RequestError::Host);
    }
    head.length = body.length()?;
    Ok(Some(head))
}

/// The host of a target in absolute form, as proxies receive it, and the path with its query.
fn split_target(target: &str) -> (Option<&str>, &str) {
    let scheme = target.find("://").filter(|end| {
        let scheme = &target[..*end];
        scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
    });
    let Some(scheme) = scheme else {
        return (None, target);
    };
    let rest = &target[scheme + "://".len()..];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    (Some(host), if path.is_empty() { "/" } else { path })
}

/// Whether a line ends without CR: some readers take what follows for the same line.
fn has_bare_line_feed(lines: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', lines).any(|end| end == 0 || lines[end - 1] != b'\r')
}

/// The header fields about the body's length.
#[derive(Default)]
struct BodyFields {
    length: Option<usize>,
    is_chunked: bool,
}

impl BodyFields {
    /// Reads a field, if it is about the body's length.
    fn read(&mut self, name: &str, value: &[u8], is_new: bool) -> Result<bool, RequestError> {
        if name.eq_ignore_ascii_case("content-length") {
            let told = parse_length(value).ok_or(RequestError::Length)?;
            if self.length.replace(told).is_some() {
                return Err(RequestError::Length);
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") || !is_new {
                return Err(RequestError::Coding);
            }
            self.is_chunked = true;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn length(&self) -> Result<BodyLength, RequestError> {
        match (self.length, self.is_chunked) {
            (Some(_), true) => Err(RequestError::Length),
            (None, true) => Ok(BodyLength::Chunks),
            (length, false) => Ok(BodyLength::Known(length.unwrap_or(0))),
        }
    }
}

impl<'i> RequestHead<'i> {
    /// Reads a field that isn't about the body's length.
    fn read(&mut self, name: &str, value: &'i [u8], is_new: bool) -> Result<(), RequestError> {
        if name.eq_ignore_ascii_case("connection") {
            self.request.keep_alive = keeps_alive(value, self.request.keep_alive);
        } else if name.eq_ignore_ascii_case("host") {
            if self.request.host.replace(value).is_some() {
                return Err(RequestError::Host);
            }
        } else if name.eq_ignore_ascii_case("expect") {
            self.expects_continue = is_new && value.eq_ignore_ascii_case(b"100-continue");
        } else if name.eq_ignore_ascii_case("content-type") {
            self.request.content_type = Some(value);
        } else if name.eq_ignore_ascii_case("content-encoding") {
            self.request.content_encoding = Some(value);
        } else if name.eq_ignore_ascii_case("origin") {
            self.request.origin = Some(value);
        } else if name.eq_ignore_ascii_case("sec-fetch-site") {
            self.request.fetch_site = Some(value);
        } else if name.eq_ignore_ascii_case("authorization") {
            self.request.authorization = Some(value);
        } else if name.eq_ignore_ascii_case("accept") {
            self.request.accept = Some(value);
        }
        Ok(())
    }
}

/// Whether the `Connection` options keep the connection; without a known option, `assumed`.
fn keeps_alive(options: &[u8], assumed: bool) -> bool {
    options
        .split(|byte| *byte == b',')
        .fold(assumed, |keep, option| {
            let option = option.trim_ascii();
            if option.eq_ignore_ascii_case(b"close") {
                false
            } else {
                keep || option.eq_ignore_ascii_case(b"keep-alive")
            }
        })
}

fn parse_length(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Joins the chunks of a body; `None` until the last chunk has arrived. Chunk overhead may be as large as the body
/// itself.
fn join_chunks(input: &[u8], most: usize) -> Result<Option<(Vec<u8>, usize)>, RequestError> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line = &input[at..input.len().min(at + CHUNK_LINE)];
        // `parse_chunk_size` would read a line without a digit as the last chunk.
        if line.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
            return Err(RequestError::Chunks);
        }
        let (start, size) = match httparse::parse_chunk_size(line) {
            // Some readers end the line at a bare line feed.
            Ok(httparse::Status::Complete((start, _))) if line[..start - 1].contains(&b'\n') => {
                return Err(RequestError::Chunks);
            }
            Ok(httparse::Status::Complete((start, size))) => (at + start, size),
            Ok(httparse::Status::Partial) if line.len() == CHUNK_LINE => {
                return Err(RequestError::Chunks);
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(RequestError::Chunks),
        };
        if size == 0 {
            return Ok(trailer_length(&input[start..])?.map(|length| (body, start + length)));
        }
        // The body's size, and then the overhead around the chunks, have the same bound.
        let size = usize::try_from(size).map_err(|_| RequestError::Body { most })?;
        if size > most - body.len() || start - body.len() > most {
            return Err(RequestError::Body { most });
        }
        let end = start + size;
        let Some(behind) = input.get(end..end + 2) else {
            return Ok(None);
        };
        if behind != b"\r\n" {
            return Err(RequestError::Chunks);
        }
        body.extend_from_slice(&input[start..end]);
        at = end + 2;
    }
}

/// The length of the trailer: ignored fields, and an empty line.
fn trailer_length(input: &[u8]) -> Result<Option<usize>, RequestError> {
    let input = &input[..input.len().min(TRAILER)];
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    match httparse::parse_headers(input, &mut fields) {
        Ok(httparse::Status::Complete((length, _))) if has_bare_line_feed(&input[..length]) => {
            Err(RequestError::Chunks)
        }
        Ok(httparse::Status::Complete((length, _))) => Ok(Some(length)),
        Ok(httparse::Status::Partial) if input.len() == TRAILER => Err(RequestError::Chunks),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(_) => Err(RequestError::Chunks),
    }
}

impl RequestError {
    /// The status of the error response.
    pub(crate) const fn status(self) -> u16 {
        match self {
            Self::Head { .. } | Self::Fields => 431,
            Self::Body { .. } => 413,
            Self::Coding => 501,
            Self::Version => 505,
            _ => 400,
        }
    }

    /// Whether a size limit was exceeded.
    pub(crate) const fn is_too_large(self) -> bool {
        matches!(self, Self::Head { .. } | Self::Body { .. })
    }
}

#[cfg(test)]
mod tests;
