//! Reads any bytes as HTTP requests, for the fuzz target and for the tests that read the target's seeds.

use super::request::{ParsedRequest, RequestBounds, RequestError, parse_request};

const MOST: RequestBounds = RequestBounds {
    head: 600,
    body: 1_000,
};

/// Parses all requests. Returns whether the input has nothing else.
pub(crate) fn read(input: &[u8]) -> bool {
    let mut rest = input;
    loop {
        match parse_request(rest, &MOST) {
            Ok(ParsedRequest::Complete(request, length)) => {
                assert!((1..=rest.len()).contains(&length));
                assert!(request.body.len() <= MOST.body);
                assert!(!request.method.is_empty());
                comes_in_parts(&rest[..length], Ok(length));
                rest = &rest[length..];
            }
            Ok(ParsedRequest::Incomplete { .. }) => {
                comes_in_parts(rest, Ok(rest.len() + 1));
                return rest.is_empty() && !input.is_empty();
            }
            Err(bad) => {
                assert!((400..=505).contains(&bad.status()) && !bad.to_string().is_empty());
                comes_in_parts(rest, Err(bad));
                return false;
            }
        }
    }
}

/// However much of a request is there at first, in the end the same is found: the place where it is whole, or what is bad.
fn comes_in_parts(input: &[u8], end: Result<usize, RequestError>) {
    let step = 1 + input.len() / 100;
    for there in (0..input.len()).step_by(step) {
        match (parse_request(&input[..there], &MOST), end) {
            (Ok(ParsedRequest::Incomplete { .. }), _) => {}
            (Err(bad), Err(end)) => return assert_eq!(bad, end, "{}", input.escape_ascii()),
            (found, _) => panic!(
                "{found:?} at {there}, not {end:?}: {}",
                input.escape_ascii()
            ),
        }
    }
}
