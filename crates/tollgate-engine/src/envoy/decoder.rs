//! Decodes envoyproxy/ratelimit's YAML into trees of descriptors. Reports all errors of all files together.

use std::collections::BTreeMap;

use super::field_names::ScalarText;
use super::reader::DocumentReader;
use super::{DUPLICATE_DOMAIN, DescriptorDomains, Diagnostic, Node, Problems, TOO_MANY_ERRORS};
use crate::diagnostic::Severity;
use crate::document::{self, Format, MAX_BYTES, MAX_VALUES, Span, TOO_LARGE};
use crate::policy::{DescriptorRule, Domain};

/// The content of files in envoyproxy/ratelimit's form.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let file = "domain: edge\ndescriptors: [{key: a, shadow_mode: true}]";
/// let decoded = envoy::decode(&[(0, file)]).expect("a configuration");
/// assert_eq!(decoded.domains["edge"].descriptors[0].key, "a");
/// assert_eq!(decoded.warnings[0].code, envoy::MODE_WITHOUT_LIMIT);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedDomains {
    /// Trees of descriptors by domain.
    pub domains: DescriptorDomains,
    /// Warnings about settings that may be mistakes.
    pub warnings: Vec<Diagnostic>,
}

/// Decodes files, each with its number among the policy's files. A file has one or several YAML documents, and a
/// document has one domain.
///
/// # Errors
/// All errors in all files, together with the warnings.
///
/// ```
/// use tollgate_engine::envoy;
///
/// let wrong = "domain: edge\ndescriptors:\n- key: user\n  rate_limit: {unit: minuet}\n";
/// let problems = envoy::decode(&[(0, wrong)]).expect_err("no such unit");
/// assert_eq!(problems[0].to_string(), "error[bad-unit]: \"minuet\" is no unit");
/// assert_eq!(problems[0].help.as_deref(), Some("did you mean \"minute\"?"));
/// assert_eq!(problems[0].span.start.line, 4);
/// ```
pub fn decode(files: &[(u32, &str)]) -> Result<DecodedDomains, Vec<Diagnostic>> {
    let mut decoder = Decoder::default();
    for &(file, text) in files {
        decoder.decode_file(file, text);
    }
    let (domains, mut problems) = (decoder.domains.into_iter(), decoder.problems);
    problems.sort_by_key(|problem| problem.span);
    let is_error = |problem: &Diagnostic| problem.severity == Severity::Error;
    let has_errors = problems.iter().any(is_error);
    if has_errors && problems.len() > MAX_PROBLEMS {
        problems.retain(is_error);
    }
    truncate_problems(&mut problems);
    if has_errors {
        return Err(problems);
    }
    let domains = domains.map(|(name, (_, domain))| (name, domain));
    Ok(DecodedDomains {
        domains: domains.collect(),
        warnings: problems,
    })
}

/// The names of a file's domains and their positions, whatever else is wrong with the file.
pub(crate) fn domain_spans(text: &str) -> Vec<(String, Span)> {
    let mut decoder = Decoder::default();
    decoder.decode_file(0, text);
    let domains = decoder.domains.into_iter();
    domains.map(|(name, (span, _))| (name, span)).collect()
}

/// Most problems that are reported.
const MAX_PROBLEMS: usize = 1_000;

/// Drops the problems beyond [`MAX_PROBLEMS`], and adds their number.
fn truncate_problems(problems: &mut Problems) {
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    if let Some(last) = problems.last().filter(|_| more > 0) {
        let span = Span::of_file(last.span.file);
        let told = Diagnostic {
            severity: last.severity,
            ..Diagnostic::error(TOO_MANY_ERRORS, format!("{more} more are not shown"), span)
        };
        problems.push(told.with_help("correct these first, then check again"));
    }
}

#[derive(Default)]
struct Decoder {
    /// Each domain with the position of its name.
    domains: BTreeMap<String, (Span, Domain)>,
    problems: Problems,
    /// The number of values so far, in all files.
    value_count: usize,
    /// The length of the paths of all limits, in all files.
    path_bytes: usize,
}

/// Most bytes for the paths of all limits. Each limit keeps its whole path, so a deep tree could take far more memory
/// than its file.
const MAX_PATH_BYTES: usize = 64 << 20;

impl Decoder {
    fn decode_file(&mut self, file: u32, text: &str) {
        if text.len() > MAX_BYTES {
            // The parser rejects a text of this size before it reads it, with the right error.
            if let Err(problems) = document::parse(text, Format::Yaml, file) {
                self.problems.extend(problems);
            }
            return;
        }
        let text = document::strip_byte_order_mark(text);
        let scalars = ScalarText::new(text);
        for (lines_before, part) in split_documents(text) {
            match document::parse_yaml_document(part, file, lines_before) {
                Ok(root) => {
                    self.value_count = self.value_count.saturating_add(root.count_values());
                    if self.value_count > MAX_VALUES {
                        let message = format!("more than {MAX_VALUES} values in all documents");
                        let problem = Diagnostic::error(TOO_LARGE, message, root.span);
                        return self.problems.push(problem);
                    }
                    self.decode_document(&root, &scalars);
                }
                Err(problems) => self.problems.extend(problems),
            }
        }
    }

    fn decode_document(&mut self, root: &Node, scalars: &ScalarText) {
        let mut reader = DocumentReader::new(scalars);
        let (name, domain) = reader.read_root(root);
        reader.check_replaced_names(&domain.descriptors);
        let above = name.as_ref().map_or(0, |(name, _)| name.len());
        self.path_bytes = self
            .path_bytes
            .saturating_add(path_bytes(&domain.descriptors, above));
        if self.path_bytes > MAX_PATH_BYTES {
            let message = format!("the paths of all limits take more than {MAX_PATH_BYTES} bytes");
            let problem = Diagnostic::error(TOO_LARGE, message, root.span.first());
            let problem = problem.with_help("shorten the values that many limits are below");
            return self.problems.push(problem);
        }
        self.problems.append(&mut reader.problems);
        let Some((name, span)) = name else { return };
        if let Some((first, _)) = self.domains.get(&name) {
            let message = format!("domain {name:?} is given twice");
            let line = first.start.line;
            let help = if first.file == span.file {
                format!("the first is on line {line}; merge them")
            } else {
                format!("the first is on line {line} of another file; merge them")
            };
            let problem = Diagnostic::error(DUPLICATE_DOMAIN, message, span);
            self.problems.push(problem.with_help(help));
        } else {
            self.domains.insert(name, (span, domain));
        }
    }
}

/// The documents of a file, each with the number of lines before it.
///
/// A line that begins with `---` begins a document wherever it stands, even inside a block scalar.
fn split_documents(text: &str) -> Vec<(u32, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line) = (0, 0);
    let (mut at, mut line_number) = (0, 0_u32);
    let mut has_content = false;
    for line in text.split_inclusive('\n') {
        let marker = line
            .strip_prefix("---")
            .filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if marker.is_some() && has_content {
            parts.push((start_line, &text[start..at]));
            (start, start_line, has_content) = (at, line_number, false);
        }
        let content = marker.unwrap_or(line).trim_start();
        has_content |= marker.is_some()
            || !(content.is_empty() || content.starts_with('#') || line.starts_with('%'));
        at += line.len();
        line_number = line_number.saturating_add(count_line_breaks(line));
    }
    parts.push((start_line, &text[start..]));
    parts
}

/// The number of YAML lines in a line of text. In YAML, a carriage return alone also ends a line.
fn count_line_breaks(line: &str) -> u32 {
    let ended = line.strip_suffix("\r\n").or(line.strip_suffix('\n'));
    let alone = ended.unwrap_or(line).matches('\r').count();
    u32::try_from(alone).unwrap_or(u32::MAX).saturating_add(1)
}

/// The length of the paths of all limits in a tree below a path of length `above`.
fn path_bytes(level: &[DescriptorRule], above: usize) -> usize {
    level.iter().fold(0, |sum: usize, rule| {
        let value = rule.value.as_ref().map_or(0, String::len);
        let here = above.saturating_add(rule.key.len()).saturating_add(value);
        let own = rule.limit.as_ref().map_or(0, |_| here);
        sum.saturating_add(own)
            .saturating_add(path_bytes(&rule.descriptors, here))
    })
}
