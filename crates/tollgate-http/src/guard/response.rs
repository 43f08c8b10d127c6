//! The responses that clients read: header fields, a status, a body.

use std::time::Duration;

use bytes::Bytes;
use tollgate::{Clock, clock::Wall};

use super::denial::Denial;
use super::field_cache;
use super::fields::{FieldWriter, HeaderFields};
use super::missing_key::{KeySource, MissingKey};
use super::request::Request;
use crate::{DenialBody, DenyReason, HeaderDialect, ShownLimit, fields, grpc, retry_after};

const PROBLEM_TYPE: Bytes = Bytes::from_static(DenialBody::PROBLEM_TYPE.as_bytes());
const JSON_TYPE: Bytes = Bytes::from_static(b"application/json");
/// No cache may keep a denial, whatever its status.
const NO_STORE: Bytes = Bytes::from_static(b"no-store");

/// The body format of denials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenialBodyFormat {
    /// `application/problem+json` (RFC 9457).
    #[default]
    Problem,
    /// `{"code":"RATE_LIMIT","limit_dim":"per-user"}`.
    Plain,
    /// No body: only the status and the header fields.
    Empty,
}

/// The format of responses.
///
/// ```
/// use tollgate_http::HeaderDialect;
/// use tollgate_http::guard::{ResponseFormat, DenialBodyFormat};
///
/// let format = ResponseFormat::new()
///     .dialects([HeaderDialect::Draft8, HeaderDialect::XRateLimit])
///     .form(DenialBodyFormat::Plain)
///     .expose();
/// # let _ = format;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ResponseFormat {
    dialects: Vec<HeaderDialect>,
    form: DenialBodyFormat,
    /// The value of `access-control-expose-headers`; none if it isn't written.
    exposed: Option<String>,
}

/// A denial that is ready to be sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeniedResponse {
    /// The reason.
    pub reason: DenyReason,
    /// The HTTP status.
    pub status: u16,
    /// Header fields.
    pub fields: HeaderFields,
    /// The body; it may be empty.
    pub body: Bytes,
}

impl Default for ResponseFormat {
    fn default() -> Self {
        Self::new()
    }
}

impl ResponseFormat {
    /// The eighth IETF draft, and problem details.
    pub fn new() -> Self {
        Self {
            dialects: vec![HeaderDialect::Draft8],
            form: DenialBodyFormat::Problem,
            exposed: None,
        }
    }

    /// Sets the dialects of the header fields. With none, responses to allowed requests have no such fields.
    pub fn dialects(mut self, dialects: impl IntoIterator<Item = HeaderDialect>) -> Self {
        self.dialects = dialects.into_iter().collect();
        self.exposed = self.exposed.is_some().then(|| self.names());
        self
    }

    /// Sets the body format of denials.
    pub const fn form(mut self, form: DenialBodyFormat) -> Self {
        self.form = form;
        self
    }

    /// Lets scripts of other origins read the fields (`access-control-expose-headers`).
    pub fn expose(mut self) -> Self {
        self.exposed = Some(self.names());
        self
    }

    fn names(&self) -> String {
        let own = self.dialects.iter().flat_map(|one| one.field_names());
        let mut names = vec!["retry-after"];
        for name in own {
            if !names.contains(name) {
                names.push(name);
            }
        }
        names.join(", ")
    }

    /// Whether responses to allowed requests have no fields.
    #[inline]
    pub(super) const fn are_silent(&self) -> bool {
        self.dialects.is_empty()
    }

    /// The header fields for a request that passed.
    #[inline]
    pub(super) fn passed<'s>(
        &self,
        shown: impl FnOnce() -> Option<ShownLimit<'s>>,
    ) -> HeaderFields {
        if self.dialects.is_empty() {
            return HeaderFields::new();
        }
        match shown() {
            Some(shown) => self.listed(&[shown]),
            None => HeaderFields::new(),
        }
    }

    /// The header fields for a request that passed these limits.
    pub(super) fn listed(&self, limits: &[ShownLimit<'_>]) -> HeaderFields {
        if self.dialects.is_empty() || limits.is_empty() {
            return HeaderFields::new();
        }
        let mut written = FieldWriter::default();
        self.show(limits, &mut written);
        written.into()
    }

    /// The response to a denied request, with this retry delay in seconds.
    pub(super) fn refused(&self, denial: &Denial, retry_after: Option<u64>) -> DeniedResponse {
        let refusal = denial.refusal(retry_after);
        let mut fields = FieldWriter::default();
        denial.show_limits(|limits| match limits {
            [_, ..] if !self.dialects.is_empty() => self.show(limits, &mut fields),
            _ => self.show_names(&mut fields),
        });
        let status = denial.status();
        let field_cache::DenialTexts { body, retry_after } = match &denial.missing {
            Some(missing) => self.denial_texts(&refusal, Some(missing)),
            None => {
                field_cache::denial_texts(self.form, &refusal, || self.denial_texts(&refusal, None))
            }
        };
        if status == 401 {
            // RFC 9110 requires a challenge in each 401.
            fields.push("www-authenticate", "Bearer");
        }
        if !retry_after.is_empty() {
            fields.push_value("retry-after", retry_after);
        }
        match self.form {
            DenialBodyFormat::Problem => fields.push_value("content-type", PROBLEM_TYPE),
            DenialBodyFormat::Plain => fields.push_value("content-type", JSON_TYPE),
            DenialBodyFormat::Empty => {}
        }
        fields.push_value("cache-control", NO_STORE);
        DeniedResponse {
            reason: denial.reason,
            status,
            fields: fields.into(),
            body,
        }
    }

    /// Writes the texts of a denial, with the missing key if there is one: the client can supply it.
    fn denial_texts(
        &self,
        refusal: &DenialBody<'_>,
        missing: Option<&MissingKey>,
    ) -> field_cache::DenialTexts {
        let mut body = Vec::new();
        match (self.form, missing) {
            (DenialBodyFormat::Problem, Some(missing)) => {
                refusal.missing_key_json(missing.source.status(), &missing.wanted, &mut body);
            }
            (DenialBodyFormat::Problem, None) => refusal.problem_json(&mut body),
            (DenialBodyFormat::Plain, _) => refusal.plain_json(&mut body),
            (DenialBodyFormat::Empty, _) => {}
        }
        let seconds = refusal.retry_after.map(|seconds| seconds.to_string());
        field_cache::DenialTexts {
            body: body.into(),
            retry_after: seconds.unwrap_or_default().into(),
        }
    }

    fn show(&self, limits: &[ShownLimit<'_>], fields: &mut FieldWriter) {
        let now = if self.dialects.contains(&HeaderDialect::XRateLimit) {
            Wall.now().as_nanos() / 1_000_000_000
        } else {
            0
        };
        fields::write_to(&self.dialects, limits, now, fields);
        self.show_names(fields);
    }

    fn show_names(&self, fields: &mut FieldWriter) {
        if let Some(names) = &self.exposed {
            fields.push("access-control-expose-headers", names);
        }
    }
}

/// The response if there is no decision: 500 without a body, or the equivalent for gRPC.
#[cold]
pub(super) fn server_error(request: &(impl Request + ?Sized)) -> DeniedResponse {
    let mut fields = FieldWriter::default();
    let status = if request.is_grpc() {
        fields.push("content-type", "application/grpc");
        let message = "The server can't tell whose request this is: its log says why";
        grpc::write_failure(grpc::INTERNAL, message, |name, value| {
            fields.push(name, value)
        });
        200
    } else {
        fields.push_value("cache-control", NO_STORE);
        500
    };
    DeniedResponse {
        reason: DenyReason::MissingKey,
        status,
        fields: fields.into(),
        body: Bytes::new(),
    }
}

impl DeniedResponse {
    /// The response to a denied request with the default format.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_http::guard::{Denial, DeniedResponse};
    ///
    /// let refused = DeniedResponse::http(&Denial::blocked("denied", Some(Duration::from_secs(2))));
    /// assert_eq!((refused.status, refused.fields.get("retry-after")), (429, Some("2")));
    /// ```
    pub fn http(denial: &Denial) -> Self {
        ResponseFormat::new().refused(denial, retry_after(&denial.decision))
    }

    /// The response to a denied gRPC call, which is in header fields alone.
    pub fn grpc(denial: &Denial) -> Self {
        grpc_refused(denial, retry_after(&denial.decision))
    }
}

/// A denial in header fields alone, as gRPC needs it.
pub(super) fn grpc_refused(denial: &Denial, retry_after: Option<u64>) -> DeniedResponse {
    // Milliseconds are more exact than `Retry-After`, unless a random time was added to that: then the longer one
    // counts.
    let stated = retry_after.map(Duration::from_secs);
    let wait = denial.wait().map(|wait| match stated {
        Some(stated) if stated > wait.saturating_add(Duration::from_secs(1)) => stated,
        _ => wait,
    });
    let mut fields = FieldWriter::default();
    fields.push("content-type", "application/grpc");
    match &denial.missing {
        Some(missing) => {
            let code = match missing.source {
                KeySource::Credentials => grpc::UNAUTHENTICATED,
                _ => grpc::INVALID_ARGUMENT,
            };
            let message = format!("The call lacks {}", missing.wanted);
            grpc::write_failure(code, &message, |name, value| fields.push(name, value));
        }
        None => {
            let refusal = denial.refusal(retry_after);
            grpc::write(&refusal, wait, |name, value| fields.push(name, value));
        }
    }
    DeniedResponse {
        reason: denial.reason,
        status: 200,
        fields: fields.into(),
        body: Bytes::new(),
    }
}
