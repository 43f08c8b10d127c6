//! How those who asked are told: header fields, a status, a body.

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
/// No cache keeps a denial, whatever its status is and whoever would be answered by it.
const NO_STORE: Bytes = Bytes::from_static(b"no-store");

/// How a refused client is told why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenialBodyFormat {
    /// `application/problem+json` (RFC 9457).
    #[default]
    Problem,
    /// `{"code":"RATE_LIMIT","limit_dim":"per-user"}`.
    Plain,
    /// Nothing but the status and the header fields.
    Empty,
}

/// How clients are told.
///
/// ```
/// use tollgate_http::HeaderDialect;
/// use tollgate_http::guard::{ResponseFormat, DenialBodyFormat};
///
/// let answers = ResponseFormat::new().dialects([HeaderDialect::Draft8, HeaderDialect::XRateLimit]).form(DenialBodyFormat::Plain).expose();
/// # let _ = answers;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ResponseFormat {
    dialects: Vec<HeaderDialect>,
    form: DenialBodyFormat,
    /// The value of `access-control-expose-headers`; none if that isn't written.
    exposed: Option<String>,
}

/// A refusal that is ready to be sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeniedResponse {
    /// What refused.
    pub reason: DenyReason,
    /// The status of HTTP.
    pub status: u16,
    /// Header fields.
    pub fields: HeaderFields,
    /// The body, which may be empty.
    pub body: Bytes,
}

impl Default for ResponseFormat {
    fn default() -> Self {
        Self::new()
    }
}

impl ResponseFormat {
    /// The IETF's eighth draft, and problem details.
    pub fn new() -> Self {
        Self {
            dialects: vec![HeaderDialect::Draft8],
            form: DenialBodyFormat::Problem,
            exposed: None,
        }
    }

    /// What is left is told in these; in none, nobody is told unless refused.
    pub fn dialects(mut self, dialects: impl IntoIterator<Item = HeaderDialect>) -> Self {
        self.dialects = dialects.into_iter().collect();
        self.exposed = self.exposed.is_some().then(|| self.names());
        self
    }

    /// The body of refusals.
    pub const fn form(mut self, form: DenialBodyFormat) -> Self {
        self.form = form;
        self
    }

    /// Scripts of other origins may read the fields (`access-control-expose-headers`).
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

    /// Whether nobody is told anything unless refused.
    #[inline]
    pub(super) const fn are_silent(&self) -> bool {
        self.dialects.is_empty()
    }

    /// What goes along with the answer to a request that passed.
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

    /// What goes along with the answer to a request that passed these limits.
    pub(super) fn listed(&self, limits: &[ShownLimit<'_>]) -> HeaderFields {
        if self.dialects.is_empty() || limits.is_empty() {
            return HeaderFields::new();
        }
        let mut written = FieldWriter::default();
        self.show(limits, &mut written);
        written.into()
    }

    /// What a refused request is answered, which is told to come again after so many seconds.
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
            // RFC 9110 wants a challenge in each 401.
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

    /// Says what the request lacks, if that is why, as its client can mend that.
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

/// The answer to a request of which nothing can be said: 500 without a word, or what gRPC has in its place.
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
    /// What a denied request is answered, unless a guard's settings say otherwise.
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

    /// The same for a call of gRPC, which reads header fields alone.
    pub fn grpc(denial: &Denial) -> Self {
        grpc_refused(denial, retry_after(&denial.decision))
    }
}

/// By fields alone, as gRPC does.
pub(super) fn grpc_refused(denial: &Denial, retry_after: Option<u64>) -> DeniedResponse {
    // A client that waits for whole seconds doesn't come before the time that it was told.
    let told = retry_after.map(Duration::from_secs);
    let wait = denial.wait().map(|wait| match told {
        Some(told) if told > wait.saturating_add(Duration::from_secs(1)) => told,
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
