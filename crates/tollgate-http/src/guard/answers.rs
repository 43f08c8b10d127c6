//! How those who asked are told: header fields, a status, a body.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate::{Clock, Decision, Outcome, clock::Wall};

use super::request::Request;
use crate::{Dialect, Kind, Refusal, Shown, fields, grpc, retry_after};

/// Header fields of an answer: names in lower case, and values.
pub type Fields = SmallVec<[(&'static str, String); 4]>;

/// How a refused client is told why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
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
/// use tollgate_http::Dialect;
/// use tollgate_http::guard::{Answers, Form};
///
/// let answers = Answers::new().dialects([Dialect::Draft8, Dialect::Github]).form(Form::Plain).expose();
/// # let _ = answers;
/// ```
#[derive(Clone, Debug)]
pub struct Answers {
    dialects: Vec<Dialect>,
    form: Form,
    /// The value of `access-control-expose-headers`; none if that isn't written.
    exposed: Option<String>,
}

/// How a refusal is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Http,
    /// By fields alone, as gRPC does.
    Grpc,
}

impl Speaks {
    pub(super) fn of(request: &impl Request) -> Self {
        match request.line("content-type") {
            Some(content_type) if grpc::is_call(content_type) => Self::Grpc,
            _ => Self::Http,
        }
    }
}

/// A refusal that is ready to be sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Refused {
    /// What refused.
    pub kind: Kind,
    /// The status of HTTP.
    pub status: u16,
    /// Header fields.
    pub fields: Fields,
    /// The body, which may be empty.
    pub body: Vec<u8>,
}

impl Default for Answers {
    fn default() -> Self {
        Self::new()
    }
}

impl Answers {
    /// The IETF's eighth draft, and problem details.
    pub fn new() -> Self {
        Self {
            dialects: vec![Dialect::Draft8],
            form: Form::Problem,
            exposed: None,
        }
    }

    /// What is left is told in these; in none, nobody is told unless refused.
    #[must_use]
    pub fn dialects(mut self, dialects: impl IntoIterator<Item = Dialect>) -> Self {
        self.dialects = dialects.into_iter().collect();
        self.exposed = self.exposed.is_some().then(|| self.names());
        self
    }

    /// The body of refusals.
    #[must_use]
    pub const fn form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Scripts of other origins may read the fields (`access-control-expose-headers`).
    #[must_use]
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

    /// What goes along with the answer to a request that passed.
    pub(super) fn passed<'s>(&self, shown: impl FnOnce() -> Option<Shown<'s>>) -> Fields {
        let mut fields = Fields::new();
        self.show(shown, &mut fields);
        fields
    }

    /// What a refused request is answered.
    pub(super) fn refused<'s>(
        &self,
        speaks: Speaks,
        (kind, limit): (Kind, &str),
        decision: &Decision,
        shown: impl FnOnce() -> Option<Shown<'s>>,
    ) -> Refused {
        let refusal = Refusal {
            kind,
            limit,
            retry_after: retry_after(decision),
        };
        let mut fields = Fields::new();
        if speaks == Speaks::Grpc {
            let wait = wait_of(decision);
            fields.push(("content-type", "application/grpc".to_owned()));
            grpc::write(&refusal, wait, |name, value| {
                fields.push((name, value.to_owned()))
            });
            return Refused {
                kind,
                status: 200,
                fields,
                body: Vec::new(),
            };
        }
        self.show(shown, &mut fields);
        if let Some(seconds) = refusal.retry_after {
            fields.push(("retry-after", seconds.to_string()));
        }
        let mut body = Vec::new();
        match self.form {
            Form::Problem => {
                fields.push(("content-type", Refusal::PROBLEM_TYPE.to_owned()));
                body.reserve(256);
                refusal.problem_json(&mut body);
            }
            Form::Plain => {
                fields.push(("content-type", "application/json".to_owned()));
                refusal.plain_json(&mut body);
            }
            Form::Empty => {}
        }
        Refused {
            kind,
            status: kind.status(),
            fields,
            body,
        }
    }

    /// What a request is answered that couldn't be decided.
    pub(super) fn unavailable(&self, speaks: Speaks) -> Refused {
        let soon = Duration::from_secs(1);
        let decision = Decision::new(Outcome::Denied, 0, 0, soon, soon);
        self.refused(speaks, (Kind::Unavailable, ""), &decision, || None)
    }

    fn show<'s>(&self, shown: impl FnOnce() -> Option<Shown<'s>>, fields: &mut Fields) {
        if self.dialects.is_empty() {
            return;
        }
        let Some(shown) = shown() else {
            return;
        };
        let now = if self.dialects.contains(&Dialect::Github) {
            Wall.now().as_nanos() / 1_000_000_000
        } else {
            0
        };
        fields::write(&self.dialects, &[shown], now, |name, value| {
            fields.push((name, value.to_owned()));
        });
        if let Some(names) = &self.exposed {
            fields.push(("access-control-expose-headers", names.clone()));
        }
    }
}

/// How long to wait; none if it never passes.
fn wait_of(decision: &Decision) -> Option<Duration> {
    (decision.outcome == Outcome::Denied).then_some(decision.retry_after)
}
