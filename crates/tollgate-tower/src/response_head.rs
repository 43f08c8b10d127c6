//! The head of a response: the fields that a layer writes, and the parts that limits read.

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use tollgate_http::guard::{
    ActualCost, BodyPermit, HeaderFields, HoldRequest, RequestPermit, ResponseHead,
};

use crate::field_names;

/// Writes the header fields of the limit, and returns what is held until the body has ended.
#[inline(always)]
pub(crate) fn write_limit_fields<O, E, H: HoldRequest>(
    result: &mut Result<Response<O>, E>,
    ticket: RequestPermit<H>,
) -> Option<BodyPermit<H>> {
    let Ok(response) = result else {
        ticket.failed();
        return None;
    };
    let (fields, rest) = ticket.replied(&TowerResponse(response));
    if !fields.is_empty() {
        write(fields, response.headers_mut(), add);
    }
    rest
}

/// Writes the fields with `put`, which is [`add`] or [`replace`].
pub(crate) fn write(
    fields: HeaderFields,
    headers: &mut HeaderMap,
    put: impl Fn(&mut HeaderMap, HeaderName, HeaderValue),
) {
    fields.for_each_owned(|name, value| {
        // Our own values are printable. A handler may have added a value that isn't: it is skipped.
        let Ok(value) = HeaderValue::from_maybe_shared(value) else {
            return;
        };
        match field_names::known(name) {
            Some(name) => put(headers, name, value),
            None => write_unknown(name, value, headers),
        }
    });
}

/// For a response of the service: fields of an inner layer stay, as that layer knows better why it denied the
/// request. Lists of limits (draft 8, whose items begin with a quote) are extended.
fn add(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let is_list = |value: &HeaderValue| value.as_bytes().starts_with(b"\"");
    match headers.entry(name) {
        Entry::Vacant(place) => {
            place.insert(value);
        }
        Entry::Occupied(mut own) if is_list(own.get()) && is_list(&value) => own.append(value),
        Entry::Occupied(_) => {}
    }
}

/// For a denial: the last value counts.
pub(crate) fn replace(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.insert(name, value);
}

#[cold]
fn write_unknown(name: &'static str, value: HeaderValue, headers: &mut HeaderMap) {
    let Ok(name) = HeaderName::try_from(name) else {
        return;
    };
    if name == http::header::ACCESS_CONTROL_EXPOSE_HEADERS {
        headers.append(name, value);
    } else {
        headers.insert(name, value);
    }
}

/// The head of a response, as limits read it.
struct TowerResponse<'r, O>(&'r Response<O>);

impl<O> ResponseHead for TowerResponse<'_, O> {
    fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    fn line(&self, field: &str) -> Option<&[u8]> {
        self.0.headers().get(field).map(HeaderValue::as_bytes)
    }

    fn used(&self) -> Option<u64> {
        self.0.extensions().get::<ActualCost>().map(|used| used.0)
    }
}
