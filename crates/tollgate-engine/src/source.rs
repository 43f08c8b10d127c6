//! Policies from files: what was read, so that a diagnostic can show it, and what came of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::Path;

use crate::diagnostic::Diagnostic;
use crate::document::columns::Columns;
use crate::document::{Format, Place, Span, without_mark};
use crate::policy::Policy;
use crate::{envoy, lint, native, render};

mod folder;
mod load;

pub use folder::files_in;
pub use load::{MOST_FILES, MOST_INCLUDE_DEPTH};

/// A policy without errors, with what may not be meant.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let text = "limits: [{name: api, key: [user], rate: 10/s burst 80}]";
/// let checked = Policy::from_text(text, Format::Yaml)?;
/// assert_eq!(checked.policy.rules[0].name, "api");
/// assert_eq!(checked.warnings[0].code.0, "burst-ratio");
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// What the files say.
    pub policy: Policy,
    /// What may not be meant, in the order of the files.
    pub warnings: Vec<Diagnostic>,
    /// The files, as they were read.
    pub sources: Sources,
}

/// Files that are no policy: every error in them at once.
///
/// Its text is what people read, with the lines in question.
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
#[derive(Clone, PartialEq)]
pub struct Rejected {
    /// What is wrong, in the order of the files.
    pub errors: Vec<Diagnostic>,
    /// The files, as far as they were read.
    pub sources: Sources,
}

/// The same as `Display`, because a `main` that returns it prints this.
impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the policy has errors\n{self}")
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render::human(&self.errors, &self.sources))
    }
}

impl std::error::Error for Rejected {}

/// The files of a policy, in the order in which they were read; the first includes the others.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let sources = Policy::from_text("limits: 5", Format::Yaml).unwrap_err().sources;
/// assert_eq!(sources.iter().count(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    files: Vec<Source>,
}

/// One file, as it was read.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let sources = Policy::from_text("limits: 5", Format::Yaml).unwrap_err().sources;
/// let source = sources.get(0).expect("one text");
/// assert_eq!((source.name(), source.text(), source.line(1)), ("<text>", "limits: 5", Some("limits: 5")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: String,
    text: String,
    /// Where its lines begin, in bytes.
    starts: Vec<usize>,
    columns: Columns,
}

impl Policy {
    /// Reads a policy from a `.yaml`, `.yml` or `.toml` file and those that it includes. A YAML file
    /// with a `domain` is read in envoyproxy/ratelimit's form. The files of a folder are read as one policy.
    ///
    /// # Errors
    /// Every error in these files.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    ///
    /// let rejected = Policy::from_path("no/such/file.yaml").unwrap_err();
    /// assert_eq!(rejected.errors[0].code.0, "unreadable");
    /// ```
    pub fn from_path(path: impl AsRef<Path>) -> Result<Checked, Rejected> {
        let path = path.as_ref();
        let files = files_in(path);
        if !files.is_empty() {
            return folder::from_files(&files);
        }
        match load::envoy_text(path) {
            Some(text) => check_envoy(&[(path.display().to_string(), text)]),
            None => check(load::from_path(path)),
        }
    }

    /// Reads several files, each a policy of its own, in their order. A domain that an earlier one has is an
    /// error: who reads all of them, as envoyproxy/ratelimit does, would get one of the two.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    ///
    /// # let folder = std::env::temp_dir().join(format!("tollgate-from-paths-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let paths = ["a.yaml", "b.yaml"].map(|name| folder.join(name));
    /// for path in &paths {
    ///     std::fs::write(path, "domain: edge\n")?;
    /// }
    /// let read = Policy::from_paths(&paths);
    /// assert!(read[0].is_ok());
    /// let error = &read[1].as_ref().expect_err("the same domain").errors[0];
    /// assert_eq!(error.to_string(), "error[duplicate-domain]: domain \"edge\" is given twice");
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn from_paths(paths: &[impl AsRef<Path>]) -> Vec<Result<Checked, Rejected>> {
        let mut first = BTreeMap::new();
        let paths = paths.iter().map(AsRef::as_ref);
        let read = paths.map(|path| only_once(path, Self::from_path(path), &mut first));
        read.collect()
    }

    /// Reads several files that make up one policy in envoyproxy/ratelimit's form: a domain each, or
    /// several.
    ///
    /// # Errors
    /// Every error in these files.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    ///
    /// let file = |domain: &str| (format!("{domain}.yaml"), format!("domain: {domain}\n"));
    /// let checked = Policy::from_envoy_files(&[file("edge"), file("mesh")])?;
    /// assert_eq!(checked.policy.domains.len(), 2);
    /// assert!(Policy::from_envoy_files(&[file("edge"), file("edge")]).is_err());
    /// # Ok::<(), tollgate_engine::Rejected>(())
    /// ```
    pub fn from_envoy_files(files: &[(String, String)]) -> Result<Checked, Rejected> {
        check_envoy(files)
    }

    /// The same, of files at these paths. Together they have at most
    /// [so many](crate::document::MOST_BYTES) bytes, and what is no file, such as a pipe, isn't read.
    ///
    /// # Errors
    /// A file that can't be read, or every error in these files.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    ///
    /// let rejected = Policy::from_envoy_paths(&["no/such/file.yaml"]).unwrap_err();
    /// assert_eq!(rejected.errors[0].message, "can't read \"no/such/file.yaml\": there is no such file");
    /// ```
    pub fn from_envoy_paths(paths: &[impl AsRef<Path>]) -> Result<Checked, Rejected> {
        match load::envoy_files(paths) {
            Ok(files) => check_envoy(&files),
            Err(loaded) => Err(Rejected {
                errors: loaded.problems.into_sorted(),
                sources: loaded.sources,
            }),
        }
    }

    /// Reads a policy from text, which can't include files.
    ///
    /// # Errors
    /// Every error in it.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "[[limits]]\nname = \"all\"\nrate = \"1000/s\"\n";
    /// let checked = Policy::from_text(text, Format::Toml)?;
    /// assert_eq!(checked.policy.rules.len(), 1);
    /// # Ok::<(), tollgate_engine::Rejected>(())
    /// ```
    pub fn from_text(text: &str, format: Format) -> Result<Checked, Rejected> {
        if format == Format::Yaml && load::is_envoy_text(text) {
            return check_envoy(&[("<text>".to_owned(), text.to_owned())]);
        }
        check(load::from_text(text, format))
    }
}

fn check(loaded: load::Loaded) -> Result<Checked, Rejected> {
    let load::Loaded {
        sources,
        trees,
        mut problems,
    } = loaded;
    let decoded = native::decode(&trees, &sources, &mut problems);
    let errors = problems.into_sorted();
    if !errors.is_empty() {
        return Err(Rejected { errors, sources });
    }
    let warnings = lint::lint_at(&decoded.policy, &decoded.places);
    Ok(Checked {
        policy: decoded.policy,
        warnings,
        sources,
    })
}

/// Where a domain stands: the file, and the line.
type FirstPlace = (String, u32);

/// What a file came to, if none of its domains is among the first ones of others, which its own then join.
fn only_once(
    path: &Path,
    read: Result<Checked, Rejected>,
    first: &mut BTreeMap<String, FirstPlace>,
) -> Result<Checked, Rejected> {
    let Some(text) = load::envoy_text(path) else {
        return read;
    };
    let mut twice = Vec::new();
    for (domain, span) in envoy::names(&text) {
        match first.entry(domain) {
            Entry::Occupied(first) => {
                let (file, line) = first.get();
                let message = format!("domain {:?} is given twice", first.key());
                let problem = Diagnostic::error(envoy::DUPLICATE_DOMAIN, message, span);
                let help = format!("the first is on line {line} of {file}; merge them");
                twice.push(problem.help(help));
            }
            Entry::Vacant(place) => {
                place.insert((path.display().to_string(), span.start.line));
            }
        }
    }
    if twice.is_empty() {
        return read;
    }
    let mut rejected = read.map_or_else(
        |rejected| rejected,
        |checked| Rejected {
            errors: Vec::new(),
            sources: checked.sources,
        },
    );
    rejected.errors.extend(twice);
    rejected.errors.sort_by_key(|error| error.span);
    Err(rejected)
}

/// Most warnings that are told of files in their form.
const MOST_WARNINGS: usize = 1_000;

fn check_envoy(files: &[(String, String)]) -> Result<Checked, Rejected> {
    let mut sources = Sources::default();
    for (name, text) in files {
        sources.add(name.clone(), without_mark(text).to_owned(), Format::Yaml);
    }
    let numbered: Vec<_> = (0..)
        .zip(files.iter().map(|(_, text)| without_mark(text)))
        .collect();
    match envoy::decode(&numbered) {
        Ok(decoded) => {
            let mut warnings = decoded.warnings;
            warnings.extend(lint::lint_domains(&decoded.domains));
            warnings.sort_by_key(|warning| warning.span);
            warnings.truncate(MOST_WARNINGS);
            Ok(Checked {
                policy: Policy {
                    domains: decoded.domains,
                    ..Policy::default()
                },
                warnings,
                sources,
            })
        }
        Err(errors) => Err(Rejected { errors, sources }),
    }
}

impl Sources {
    /// The file that a [`Span`] speaks of.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits:\n- {name: all, rate: 5/s}";
    /// let sources = Policy::from_text(text, Format::Yaml)?.sources;
    /// let file = sources.get(0).expect("one file");
    /// assert_eq!((file.name(), file.line(1)), ("<text>", Some("limits:")));
    /// assert!(sources.get(1).is_none());
    /// # Ok::<(), tollgate_engine::Rejected>(())
    /// ```
    pub fn get(&self, file: u32) -> Option<&Source> {
        self.files.get(usize::try_from(file).ok()?)
    }

    /// All files, in the order in which they were read.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.files.iter()
    }

    /// Keeps a file and says which number it has.
    pub(crate) fn add(&mut self, name: String, text: String, format: Format) -> u32 {
        let breaks = text.match_indices(['\n', '\r']).filter(|(at, sign)| {
            // In YAML a carriage return alone ends a line too.
            let alone = format == Format::Yaml && text.as_bytes().get(at + 1) != Some(&b'\n');
            *sign == "\n" || alone
        });
        let starts = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1));
        let starts = starts.collect();
        let columns = Columns::new(&text);
        self.files.push(Source {
            name,
            text,
            starts,
            columns,
        });
        u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX)
    }

    /// The text on the line where a span begins, from there to its end or that of the line.
    pub(crate) fn slice(&self, span: Span) -> Option<&str> {
        let source = self.get(span.file)?;
        let line = source.line(span.start.line)?;
        let start = source.byte_of(span.start.line, span.start.column)?;
        let end = if span.end.line > span.start.line {
            line.len()
        } else {
            let end = source.byte_of(span.start.line, span.end.column);
            end.unwrap_or(line.len())
        };
        line.get(start..end)
    }

    /// Where a part of a scalar stands, given in characters of its value; the whole if the file
    /// spells the value in another way, as with escapes or an alias.
    pub(crate) fn within(&self, span: Span, value: &str, from: usize, length: usize) -> Span {
        let raw = self.slice(span).unwrap_or("");
        let Some(at) = raw.find(value).filter(|_| !value.is_empty()) else {
            return span;
        };
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let before = small(raw[..at].chars().count());
        let column = |chars: usize| {
            let column = span.start.column.saturating_add(before);
            column.saturating_add(small(chars))
        };
        let place = |chars: usize| Place {
            line: span.start.line,
            column: column(chars),
        };
        Span {
            file: span.file,
            start: place(from),
            end: place(from + length),
        }
    }
}

impl Source {
    /// What to call it: its path as it was given or included.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// One of its lines, counted from 1, without its end.
    pub fn line(&self, line: u32) -> Option<&str> {
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        let start = *self.starts.get(index)?;
        let end = self
            .starts
            .get(index + 1)
            .map_or(self.text.len(), |next| *next);
        let line = self.text.get(start..end)?;
        let line = line.strip_suffix('\n').unwrap_or(line);
        Some(line.strip_suffix('\r').unwrap_or(line))
    }

    /// The byte of a line at which a column, counted in characters from 1, begins.
    fn byte_of(&self, number: u32, column: u32) -> Option<usize> {
        let index = usize::try_from(column).ok()?.checked_sub(1)?;
        let start = *self
            .starts
            .get(usize::try_from(number).ok()?.checked_sub(1)?)?;
        let before = self.columns.characters(&self.text, start);
        let byte = self.columns.byte(&self.text, before.checked_add(index)?)?;
        // One past the last character is a place too.
        byte.checked_sub(start)
            .filter(|byte| self.line(number).is_some_and(|line| *byte <= line.len()))
    }

    /// A part of a line, from a column counted in characters from 1, and whether there is more.
    pub(crate) fn window(&self, number: u32, from: u32, most: usize) -> (&str, bool) {
        let line = self.line(number).unwrap_or("");
        let start = self.byte_of(number, from);
        let rest = start.and_then(|start| line.get(start..)).unwrap_or("");
        match rest.char_indices().nth(most) {
            Some((end, _)) => (&rest[..end], true),
            None => (rest, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u32, end: u32) -> Span {
        let place = |column| Place { line: 2, column };
        Span {
            file: 0,
            start: place(start),
            end: place(end),
        }
    }

    #[test]
    fn lines_are_found_whatever_ends_them() {
        let mut sources = Sources::default();
        let text = "one\r\ntwo\n\rfour";
        sources.add("a.yaml".into(), text.into(), Format::Yaml);
        let file = sources.get(0).unwrap();
        let lines: Vec<_> = (0..7).map(|line| file.line(line)).collect();
        let expect = [
            None,
            Some("one"),
            Some("two"),
            Some(""),
            Some("four"),
            None,
            None,
        ];
        assert_eq!(lines, expect);
    }

    #[test]
    fn a_part_of_a_value_has_its_own_place() {
        let mut sources = Sources::default();
        let text = "\nä: \"10/x\" # 10/x";
        sources.add("a.yaml".into(), text.into(), Format::Yaml);
        assert_eq!(sources.slice(span(4, 10)), Some("\"10/x\""));
        // Inside the quotes: the x is the fifth character of the quoted text, at column 8.
        assert_eq!(sources.within(span(4, 10), "10/x", 3, 1), span(8, 9));
        // A value that the file spells otherwise is shown whole.
        assert_eq!(sources.within(span(4, 10), "11/x", 3, 1), span(4, 10));
    }
}
