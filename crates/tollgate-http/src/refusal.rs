//! What a refused client reads: a status, why, and what to do.

use crate::json;

/// What refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Too many in a short time.
    Rate,
    /// The total of a longer period is used up.
    Quota,
    /// Too many at once.
    Concurrency,
    /// The server has too much to do.
    Shed,
    /// It costs more than the limit can ever hold.
    TooLarge,
    /// It is on a list of what isn't served.
    Blocked,
    /// The limits couldn't be asked, and the operator has chosen to refuse then.
    Unavailable,
}

impl Kind {
    /// Its name in a body.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Quota => "quota",
            Self::Concurrency => "concurrency",
            Self::Shed => "shed",
            Self::TooLarge => "too_large",
            Self::Blocked => "blocked",
            Self::Unavailable => "unavailable",
        }
    }

    /// The status that it is answered with: 503 if the server is at fault, else 429.
    pub const fn status(self) -> u16 {
        match self {
            Self::Shed | Self::Unavailable => 503,
            _ => 429,
        }
    }

    /// The type of problem, as registered for RFC 9457.
    const fn problem(self) -> &'static str {
        match self {
            Self::Shed | Self::Unavailable => "temporary-reduced-capacity",
            Self::Blocked => "abnormal-usage-detected",
            _ => "quota-exceeded",
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Rate => "Too many requests: try again later",
            Self::Quota => "The quota of this period is used up",
            Self::Concurrency => "Too many requests at once: try again when one has ended",
            Self::Shed => "The server has too much to do: try again later",
            Self::TooLarge => {
                "The request costs more than its limit can ever hold: make it smaller"
            }
            Self::Blocked => "Requests like this aren't served",
            Self::Unavailable => "The limits can't be asked now: try again later",
        }
    }
}

/// A refusal, as a client is told of it.
///
/// ```
/// use tollgate_http::{Kind, Refusal};
///
/// let refusal = Refusal { kind: Kind::Rate, limit: "per-user", retry_after: Some(2) };
/// assert_eq!(refusal.kind.status(), 429);
/// let mut body = Vec::new();
/// refusal.problem_json(&mut body);
/// assert_eq!(
///     String::from_utf8_lossy(&body),
///     r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests: try again later","status":429,"kind":"rate","violated-policies":["per-user"],"retry_after":2}"#,
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// What refused it.
    pub kind: Kind,
    /// The name of the limit; empty if none has one.
    pub limit: &'a str,
    /// Seconds until it is worth another try; none if it is of no use.
    pub retry_after: Option<u64>,
}

impl Refusal<'_> {
    /// The media type of [`problem_json`](Self::problem_json).
    pub const PROBLEM_TYPE: &'static str = "application/problem+json";

    /// Writes it as problem details (RFC 9457).
    pub fn problem_json(&self, out: &mut Vec<u8>) {
        out.extend(b"{\"type\":\"https://iana.org/assignments/http-problem-types#");
        out.extend(self.kind.problem().as_bytes());
        out.extend(b"\",\"title\":\"");
        out.extend(self.kind.title().as_bytes());
        out.extend(b"\",\"status\":");
        json::number(out, u64::from(self.kind.status()));
        out.extend(b",\"kind\":\"");
        out.extend(self.kind.name().as_bytes());
        out.push(b'"');
        if !self.limit.is_empty() {
            out.extend(b",\"violated-policies\":[");
            json::string(out, self.limit);
            out.push(b']');
        }
        if let Some(seconds) = self.retry_after {
            out.extend(b",\"retry_after\":");
            json::number(out, seconds);
        }
        out.push(b'}');
    }

    /// Writes it as two words: `{"code":"RATE_LIMIT","limit_dim":"tenant"}`.
    ///
    /// ```
    /// use tollgate_http::{Kind, Refusal};
    ///
    /// let mut body = Vec::new();
    /// Refusal { kind: Kind::Rate, limit: "tenant", retry_after: None }.plain_json(&mut body);
    /// assert_eq!(body, br#"{"code":"RATE_LIMIT","limit_dim":"tenant"}"#);
    /// ```
    pub fn plain_json(&self, out: &mut Vec<u8>) {
        let code = match self.kind {
            Kind::Rate => "RATE_LIMIT",
            Kind::Quota => "QUOTA",
            Kind::Concurrency => "CONCURRENCY",
            Kind::Shed => "SHED",
            Kind::TooLarge => "TOO_LARGE",
            Kind::Blocked => "BLOCKED",
            Kind::Unavailable => "UNAVAILABLE",
        };
        out.extend(b"{\"code\":\"");
        out.extend(code.as_bytes());
        out.extend(b"\",\"limit_dim\":");
        json::string(out, self.limit);
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_whatever_the_limits_name() {
        let refusal = Refusal {
            kind: Kind::Blocked,
            limit: "a\"b\\\n",
            retry_after: None,
        };
        let (mut problem, mut plain) = (Vec::new(), Vec::new());
        refusal.problem_json(&mut problem);
        refusal.plain_json(&mut plain);
        let problem = String::from_utf8(problem).expect("text");
        assert!(
            problem.ends_with(r#""kind":"blocked","violated-policies":["a\"b\\\n"]}"#),
            "{problem}"
        );
        assert_eq!(plain, br#"{"code":"BLOCKED","limit_dim":"a\"b\\\n"}"#);
    }

    #[test]
    fn what_the_server_lacks_is_503() {
        let of = |status| {
            let kinds = [
                Kind::Rate,
                Kind::Quota,
                Kind::Concurrency,
                Kind::Shed,
                Kind::TooLarge,
                Kind::Blocked,
                Kind::Unavailable,
            ];
            kinds
                .into_iter()
                .filter(|kind| kind.status() == status)
                .count()
        };
        assert_eq!((of(429), of(503)), (5, 2));
    }
}
