//! Requests whole and in part, and whatever could be read in two ways.

use super::*;

const MOST: RequestBounds = RequestBounds {
    head: 600,
    body: 100,
};

fn whole(text: &str) -> (Request<'_>, usize) {
    match parse_request(text.as_bytes(), &MOST) {
        Ok(ParsedRequest::Complete(request, length)) => (request, length),
        other => panic!("{text:?}: {other:?}"),
    }
}

#[test]
fn a_request_is_found_with_its_body() {
    let text = "POST /v1/check?a=b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
                Content-Length: 2\r\nOrigin: http://a\r\nAuthorization: Bearer t\r\n\r\n{}GET / HTTP/1.1\r\n";
    let (request, length) = whole(text);
    assert_eq!(
        (request.method, request.path, request.query),
        ("POST", "/v1/check", "a=b")
    );
    assert_eq!((&*request.body, request.keep_alive), (&b"{}"[..], true));
    assert_eq!(request.content_type, Some(&b"application/json"[..]));
    assert_eq!(request.origin, Some(&b"http://a"[..]));
    assert_eq!(request.authorization, Some(&b"Bearer t"[..]));
    assert_eq!(&text[length..], "GET / HTTP/1.1\r\n");
}

#[test]
fn chunks_are_joined() {
    let text = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                3;why=not\r\nabc\r\n2\r\nde\r\n0\r\nx: y\r\n\r\nrest";
    let (request, length) = whole(text);
    assert_eq!((&*request.body, &text[length..]), (&b"abcde"[..], "rest"));
}

#[test]
fn what_is_cut_anywhere_is_a_part() {
    for text in [
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabcde",
        "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ] {
        for end in 0..text.len() {
            let found = parse_request(&text.as_bytes()[..end], &MOST);
            assert!(
                matches!(
                    found,
                    Ok(ParsedRequest::Incomplete {
                        asks_to_go_on: false
                    })
                ),
                "{end}: {found:?}"
            );
        }
        assert_eq!(whole(text).1, text.len());
    }
}

#[test]
fn a_client_that_asks_to_go_on_is_heard_until_it_does() {
    let text = "POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}";
    let asks = |length: usize| match parse_request(&text.as_bytes()[..length], &MOST) {
        Ok(ParsedRequest::Incomplete { asks_to_go_on }) => Some(asks_to_go_on),
        _ => None,
    };
    assert_eq!(
        [
            asks(20),
            asks(text.len() - 2),
            asks(text.len() - 1),
            asks(text.len())
        ],
        [Some(false), Some(true), Some(false), None]
    );
}

#[test]
fn connections_are_kept_as_their_version_and_options_say() {
    for (version, option, kept) in [
        ("1.1", "", true),
        ("1.1", "connection: close\r\n", false),
        ("1.1", "Connection: Upgrade, Close\r\n", false),
        ("1.0", "", false),
        ("1.0", "connection: keep-alive\r\n", true),
    ] {
        let text = format!("GET / HTTP/{version}\r\nhost: x\r\n{option}\r\n");
        assert_eq!(whole(&text).0.keep_alive, kept, "{text}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let long = format!("x: {}\r\n", "y".repeat(600));
    let huge = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", 101);
    let endless = format!("transfer-encoding: chunked\r\n\r\n1;{}", "x".repeat(300));
    for (fields, bad) in [
        (
            "content-length: 2\r\ncontent-length: 2\r\n\r\n",
            RequestError::Length,
        ),
        ("content-length: +2\r\n\r\n", RequestError::Length),
        ("content-length: 2, 2\r\n\r\n", RequestError::Length),
        (
            "content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
            RequestError::Length,
        ),
        (
            "transfer-encoding: gzip, chunked\r\n\r\n",
            RequestError::Coding,
        ),
        (
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            RequestError::Coding,
        ),
        ("host: y\r\n\r\n", RequestError::Host),
        (
            "content-length: 101\r\n\r\n",
            RequestError::Body { most: 100 },
        ),
        (
            "content-length: 99999999999999999999\r\n\r\n",
            RequestError::Length,
        ),
        (
            "transfer-encoding: chunked\r\n\r\nxyz\r\n",
            RequestError::Chunks,
        ),
        (
            "transfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
            RequestError::Chunks,
        ),
        ("a b: c\r\n\r\n", RequestError::Syntax),
        (&long, RequestError::Head { most: 600 }),
        (&huge, RequestError::Body { most: 100 }),
        (&endless, RequestError::Chunks),
    ] {
        let text = format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}");
        let found = parse_request(text.as_bytes(), &MOST);
        assert_eq!(found.map(|_| ()), Err(bad), "{fields:?}");
    }
    assert_eq!(
        parse_request(b"GET / HTTP/1.1\r\n\r\n", &MOST).map(|_| ()),
        Err(RequestError::Host)
    );
    assert_eq!(
        parse_request(
            b"GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
            &MOST
        )
        .map(|_| ()),
        Err(RequestError::Coding)
    );
    assert_eq!(
        parse_request(b"PRI * HTTP/2.0\r\n\r\n", &MOST).map(|_| ()),
        Err(RequestError::Version)
    );
}
