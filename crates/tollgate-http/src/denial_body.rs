//! What a denied client reads: a status, the reason, and when to retry.

use tollgate_core::DenyReason;

use crate::json;

/// The HTTP status of a denial: 503 if the server is the cause, 400 for a missing key, else 429.
///
/// ```
/// use tollgate_http::{DenyReason, http_status_of};
///
/// assert_eq!((http_status_of(DenyReason::Rate), http_status_of(DenyReason::Store)), (429, 503));
/// ```
pub const fn http_status_of(reason: DenyReason) -> u16 {
    match reason {
        DenyReason::Shed | DenyReason::Store => 503,
        DenyReason::MissingKey => 400,
        _ => 429,
    }
}

/// The problem type, as registered for RFC 9457; `about:blank` for reasons that the registry doesn't name.
const fn problem_type(reason: DenyReason) -> &'static str {
    match reason {
        DenyReason::Shed | DenyReason::Store => {
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        }
        DenyReason::Blocked => {
            "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
        }
        DenyReason::MissingKey => "about:blank",
        _ => "https://iana.org/assignments/http-problem-types#quota-exceeded",
    }
}

/// The title of a denial, which clients read.
pub(crate) const fn title_of(reason: DenyReason) -> &'static str {
    match reason {
        DenyReason::Rate => "Too many requests: try again later",
        DenyReason::Quota => "The quota of this period is used up",
        DenyReason::Concurrency => "Too many concurrent requests: try again when one has finished",
        DenyReason::TooLarge => {
            "The request costs more than its limit can ever hold: make it smaller"
        }
        DenyReason::Blocked => "Requests like this aren't served",
        DenyReason::MissingKey => "The request lacks the key that it has to be limited by",
        DenyReason::QueueFull => "Too many requests are waiting: try again later",
        DenyReason::Shed => "The server is overloaded: try again later",
        DenyReason::Store => "The limits can't be checked now: try again later",
    }
}

/// A denial, as the body of a response reports it.
///
/// ```
/// use tollgate_http::{DenyReason, DenialBody, http_status_of};
///
/// let refusal = DenialBody { reason: DenyReason::Rate, limit: "per-user", retry_after: Some(2) };
/// assert_eq!(http_status_of(refusal.reason), 429);
/// let mut body = Vec::new();
/// refusal.problem_json(&mut body);
/// assert_eq!(
///     String::from_utf8_lossy(&body),
///     r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests: try again later","status":429,"reason":"rate","violated-policies":["per-user"],"retry_after":2}"#,
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenialBody<'a> {
    /// Why the request was denied.
    pub reason: DenyReason,
    /// The name of the limit; empty if it has no name.
    pub limit: &'a str,
    /// Seconds until a retry can pass; none if a retry never passes.
    pub retry_after: Option<u64>,
}

impl DenialBody<'_> {
    /// The media type of [`problem_json`](Self::problem_json).
    pub const PROBLEM_TYPE: &'static str = "application/problem+json";

    /// Writes the denial as problem details (RFC 9457).
    pub fn problem_json(&self, out: &mut Vec<u8>) {
        self.problem(http_status_of(self.reason), None, out);
    }

    /// Writes the denial of a request that lacks its key. `wanted` is the missing part.
    #[cfg(feature = "guard")]
    pub(crate) fn missing_key_json(&self, status: u16, wanted: &str, out: &mut Vec<u8>) {
        self.problem(status, Some(wanted), out);
    }

    fn problem(&self, status: u16, wanted: Option<&str>, out: &mut Vec<u8>) {
        json::object(out, |object| {
            json::string(object.field("type"), problem_type(self.reason));
            json::string(object.field("title"), title_of(self.reason));
            json::number(object.field("status"), u64::from(status));
            if let Some(wanted) = wanted {
                let detail = format!("The request lacks {wanted}");
                json::string(object.field("detail"), &detail);
            }
            json::string(object.field("reason"), self.reason.name());
            if !self.limit.is_empty() {
                json::array(
                    object.field("violated-policies"),
                    [self.limit],
                    json::string,
                );
            }
            object.optional("retry_after", self.retry_after, json::number);
        });
    }

    /// Writes the denial in two short fields: `{"code":"RATE_LIMIT","limit_dim":"tenant"}`.
    ///
    /// ```
    /// use tollgate_http::{DenyReason, DenialBody};
    ///
    /// let mut body = Vec::new();
    /// DenialBody { reason: DenyReason::Rate, limit: "tenant", retry_after: None }.plain_json(&mut body);
    /// assert_eq!(body, br#"{"code":"RATE_LIMIT","limit_dim":"tenant"}"#);
    /// ```
    pub fn plain_json(&self, out: &mut Vec<u8>) {
        let code = match self.reason {
            DenyReason::Rate => "RATE_LIMIT".to_owned(),
            DenyReason::Store => "UNAVAILABLE".to_owned(),
            other => other.name().to_ascii_uppercase(),
        };
        json::object(out, |object| {
            json::string(object.field("code"), &code);
            json::string(object.field("limit_dim"), self.limit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_whatever_the_limits_name() {
        let refusal = DenialBody {
            reason: DenyReason::Blocked,
            limit: "a\"b\\\n",
            retry_after: None,
        };
        let (mut problem, mut plain) = (Vec::new(), Vec::new());
        refusal.problem_json(&mut problem);
        refusal.plain_json(&mut plain);
        let problem = String::from_utf8(problem).expect("text");
        assert!(
            problem.ends_with(r#""reason":"blocked","violated-policies":["a\"b\\\n"]}"#),
            "{problem}"
        );
        assert_eq!(plain, br#"{"code":"BLOCKED","limit_dim":"a\"b\\\n"}"#);
    }

    #[test]
    fn what_the_server_lacks_is_503() {
        let of = |status| {
            let reasons = DenyReason::ALL.into_iter();
            reasons
                .filter(|reason| http_status_of(*reason) == status)
                .count()
        };
        assert_eq!((of(429), of(400), of(503)), (6, 1, 2));
    }
}
