//! Reads a text as a policy and calls everything on it, for the tests and for the fuzz target of `fuzz/`.

use std::convert::Infallible;
use std::future::ready;

use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, CheckResult};
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Policy, envoy, lint, render};

/// Allows everything, which is enough to compile a policy.
struct Open;

impl Backend for Open {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        _checks: &'a [Check<'a>],
        _: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        ready(Ok(Answer::new(None, Decision::UNLIMITED)))
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

/// Reads a text, formats its diagnostics, and uses the policy.
///
/// # Panics
/// If anything of that can't be done.
pub(crate) fn read(text: &str, format: Format) {
    let (found, sources) = match Policy::from_text(text, format) {
        Ok(checked) => {
            used(&checked.policy);
            (checked.warnings, checked.sources)
        }
        Err(rejected) => {
            assert!(!rejected.errors.is_empty(), "refused without a reason");
            (rejected.errors, rejected.sources)
        }
    };
    assert!(found.len() <= 1_001);
    let shown = render::to_text(&found, &sources);
    let hidden = |sign: char| sign.is_control() && !matches!(sign, '\n' | '\t');
    assert!(!shown.contains(hidden), "{shown:?}");
    // A place is a place of the file.
    let lines = text.split(['\n', '\r']).count() + 1;
    for diagnostic in &found {
        let span = diagnostic.span;
        let line = usize::try_from(span.start.line).expect("a small number");
        assert!(line <= lines, "{diagnostic:?}");
        assert!(span.start <= span.end, "{diagnostic:?}");
    }
    let json = render::to_json(&found, &sources);
    let list: Vec<serde_json::Value> = serde_json::from_str(&json).expect("JSON");
    assert_eq!(list.len(), found.len());
}

/// A policy without an error can be put in force, and one in Envoy's format can be converted.
fn used(policy: &Policy) {
    lint::lint(policy);
    if let Err(error) = Engine::new(policy.clone(), Open) {
        panic!("accepted, and can't be put in force: {error}");
    }
    if policy.domains.is_empty() {
        return;
    }
    let converted = envoy::convert_to_rules(&policy.domains);
    let ours = match envoy::convert_to_yaml(policy) {
        Ok(ours) => ours,
        Err(rejected) => panic!("can't be said: {rejected}"),
    };
    match Policy::from_text(&ours, Format::Yaml) {
        Ok(again) => assert_eq!(again.policy.rules.len(), converted.rules.len(), "{ours}"),
        Err(rejected) => assert!(converted.rules.is_empty(), "{ours}\n{rejected}"),
    }
}
