//! The result of reading a policy: a policy without errors, or all errors.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::diagnostic::Diagnostic;
use crate::native::codes;
use crate::policy::Policy;
use crate::render;
use crate::sources::Sources;

/// A policy without errors, with its warnings.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let text = "limits: [{name: api, key: [user], rate: 10/s burst 80}]";
/// let checked = Policy::from_text(text, Format::Yaml)?;
/// assert_eq!(checked.policy.rules[0].name, "api");
/// assert_eq!(checked.warnings[0].code.0, "burst-ratio");
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Policy,
    /// The warnings, in the order of the files.
    pub warnings: Vec<Diagnostic>,
    /// The files, as they were read.
    pub sources: Sources,
}

/// All errors of files that aren't a valid policy.
///
/// Its text is for people, with the lines in question.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let rejected = Policy::from_text("limitz: []", Format::Yaml).unwrap_err();
/// let text = rejected.to_string();
/// assert!(text.contains("unknown field \"limitz\""));
/// assert!(text.contains("did you mean \"limits\"?"));
/// ```
#[derive(Clone, PartialEq, derive_more::Debug, derive_more::Display, derive_more::Error)]
// `main` prints its error by `Debug`, so this is readable too.
#[debug("the policy has errors\n{self}")]
#[display("{}", render::to_text(errors, sources))]
pub struct LoadError {
    /// The errors, in the order of the files.
    pub errors: Vec<Diagnostic>,
    /// The files, as far as they were read. One that couldn't be read has no text.
    pub sources: Sources,
}

impl LoadError {
    /// Summarizes the likeliest cause in one line, with its position, what to do about it, and the number of further
    /// errors. For example, an unknown field ranks before the missing limit that follows from it.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let rejected = Policy::from_text("limitz: []", Format::Yaml).unwrap_err();
    /// assert_eq!(rejected.summary(), "<text>:1:1: unknown field \"limitz\" in a policy; did you mean \"limits\"?");
    /// ```
    pub fn summary(&self) -> String {
        let reports = render::to_reports(&self.errors, &self.sources);
        // `min_by_key` returns the first of equals, and errors are in the order of the files.
        let Some(first) = reports
            .iter()
            .min_by_key(|report| symptom_rank(report.code))
        else {
            return "the policy has errors".to_owned();
        };
        let place = match first.line {
            // A file as a whole has no position, and is often named in the message already.
            0 if first.message.contains(first.file) => String::new(),
            0 => format!("{}: ", first.file),
            line => format!("{}:{line}:{}: ", first.file, first.column),
        };
        let help = first.help.map(|help| format!("; {help}"));
        let help = help.unwrap_or_default();
        let more = match reports.len() - 1 {
            0 => String::new(),
            more => format!(" ({more} more: see them all by tollgate check)"),
        };
        let line = format!("{place}{}{help}{more}", first.message);
        render::escaped(&line.replace('\n', " ")).into_owned()
    }

    /// Whether a retry may succeed with the same files, because the process had no file descriptor left.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    ///
    /// let missing = Policy::from_path("no such file.yaml").unwrap_err();
    /// assert!(!missing.is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        let mut codes = self.errors.iter().map(|error| error.code);
        codes.any(|code| code == codes::NO_DESCRIPTORS)
    }
}

/// A hash of what was read: the names and texts of the files, and the errors. Two readings of unchanged files have
/// the same one. An empty file counts like a missing one.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::source::fingerprint;
///
/// let read = |text: &str| Policy::from_text(text, Format::Yaml);
/// let (before, after) = ("limits: [{name: a, rate: 5/s}]", "limits: [{name: a, rate: 6/s}]");
/// assert_eq!(fingerprint(&read(before)), fingerprint(&read(before)));
/// assert_ne!(fingerprint(&read(before)), fingerprint(&read(after)));
/// ```
pub fn fingerprint(read: &Result<LoadedPolicy, LoadError>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for source in sources_of_result(read).iter() {
        (source.name(), source.text()).hash(&mut hasher);
    }
    let why = read.as_ref().err().map(LoadError::summary);
    why.hash(&mut hasher);
    hasher.finish()
}

/// Ranks an error by how likely it only follows from another.
fn symptom_rank(code: &str) -> u8 {
    let follows = [
        codes::NO_LIMIT,
        codes::MISSING_FIELD,
        codes::EMPTY,
        codes::UNKNOWN_TIER,
        codes::UNKNOWN_RULE,
        codes::BAD_SHARED,
        codes::CONFLICT,
    ];
    match follows.iter().any(|known| known.0 == code) {
        _ if code == codes::TOO_MANY_ERRORS.0 => 2,
        follows => u8::from(follows),
    }
}

/// The files that were read, with errors or without.
pub(crate) fn sources_of_result(read: &Result<LoadedPolicy, LoadError>) -> &Sources {
    match read {
        Ok(checked) => &checked.sources,
        Err(rejected) => &rejected.sources,
    }
}
