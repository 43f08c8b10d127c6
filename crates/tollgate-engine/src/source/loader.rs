//! Reads a policy file and the files that it includes, within bounds.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{LoadError, Sources};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{self, Format, MAX_BYTES, MAX_VALUES, Node, Span, TOO_LARGE};
use crate::envoy;
use crate::native::Problems;
use crate::native::codes;

/// Most files in one policy.
pub const MAX_FILES: usize = 100;
/// Deepest level of includes.
pub const MAX_INCLUDE_DEPTH: usize = 8;

/// The files that were read. Included files come before the files that include them.
#[derive(Debug, Default)]
pub(super) struct LoadedFiles {
    pub(super) sources: Sources,
    pub(super) trees: Vec<Node>,
    pub(super) problems: Problems,
}

pub(super) fn load_path(path: &Path) -> LoadedFiles {
    let mut loader = Loader::default();
    loader.load_file(path, None);
    loader.loaded
}

/// Reads several files that make up one policy.
pub(super) fn load_paths(paths: &[PathBuf]) -> LoadedFiles {
    let mut loader = Loader {
        is_one_of_several: true,
        ..Loader::default()
    };
    for path in paths {
        loader.load_file(path, None);
    }
    loader.loaded
}

pub(super) fn load_text(text: &str, format: Format) -> LoadedFiles {
    let mut loader = Loader::default();
    // A text that is too large to parse isn't worth copying.
    let text = document::strip_byte_order_mark(text);
    let kept = if text.len() > MAX_BYTES { "" } else { text };
    let sources = &mut loader.loaded.sources;
    let file = sources.add("<text>".to_owned(), kept.to_owned(), format);
    if let Some(tree) = loader.parse_tree(text, format, file) {
        for (_, span) in loader.include_names(&tree) {
            let message = "only a file can include others";
            loader.error(codes::INCLUDE, message, span, "read the policy from a path");
        }
        loader.loaded.trees.push(tree);
    }
    loader.loaded
}

/// The text of a file in envoyproxy/ratelimit's form. `None` for a native file, and for an unreadable file: reading
/// it as a native file reports the error.
///
/// # Errors
/// The process has no free file descriptor, so the form is unknown. Other errors are reported when the file is read.
pub(super) fn envoy_text(path: &Path) -> Result<Option<String>, LoadError> {
    if format_of(path) != Some(Format::Yaml) {
        return Ok(None);
    }
    match read(path, MAX_BYTES) {
        Ok((_, text)) => Ok(is_envoy_text(&text).then_some(text)),
        Err(error) if error.code == codes::NO_DESCRIPTORS => Err(rejected(path, error)),
        Err(_) => Ok(None),
    }
}

/// The files of a folder, in the order of [`policy_files_in`](super::policy_files_in).
///
/// # Errors
/// The process has no free file descriptor.
pub(super) fn folder_files(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    match super::list_policy_files(path) {
        Err(error) if is_out_of_descriptors(&error) => {
            Err(rejected(path, unreadable_error(path, &error)))
        }
        listed => Ok(listed.unwrap_or_default()),
    }
}

/// Whether the process or the system has reached its limit of open files.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let codes: &[i32] = if cfg!(windows) { &[4] } else { &[23, 24] };
    let own = error.raw_os_error();
    own.is_some_and(|code| codes.contains(&code))
}

/// Whether a text is in envoyproxy/ratelimit's form. A line that begins with `domain:` decides, because no native
/// field has that name. Other layouts, such as JSON, are parsed to look for the form's fields.
pub(super) fn is_envoy_text(text: &str) -> bool {
    let text = document::strip_byte_order_mark(text);
    if text.lines().any(|line| line.starts_with("domain:")) {
        return true;
    }
    let is_alike = text.contains("domain") || text.contains("descriptors");
    is_alike
        && text.len() <= MAX_BYTES
        && document::parse(text, Format::Yaml, 0).is_ok_and(|tree| envoy::is_envoy_document(&tree))
}

/// An error whose position the caller sets.
fn error_without_span(code: Code, message: String) -> Diagnostic {
    Diagnostic::error(code, message, Span::default())
}

/// Adds a help text to an error that has none.
fn with_default_help(mut problem: Diagnostic, help: &str) -> Diagnostic {
    problem.help.get_or_insert_with(|| help.to_owned());
    problem
}

const GIVE_A_PATH: &str = "give the path of a policy file";

/// The error for a file that can't be read. The caller sets its position, and adds help if the path is at fault.
fn unreadable_error(path: &Path, error: &io::Error) -> Diagnostic {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    };
    let message = format!("can't read {:?}: {why}", path.display().to_string());
    let problem = |code| error_without_span(code, message);
    match error.kind() {
        _ if is_out_of_descriptors(error) => problem(codes::NO_DESCRIPTORS)
            .with_help("raise the limit of open files (LimitNOFILE, ulimit -n)"),
        io::ErrorKind::InvalidData => problem(codes::UNREADABLE).with_help("save it as UTF-8"),
        _ => problem(codes::UNREADABLE),
    }
}

/// The result for a policy whose path can't be read at all.
pub(super) fn rejected(path: &Path, mut error: Diagnostic) -> LoadError {
    let mut sources = Sources::default();
    let file = sources.add(path.display().to_string(), String::new(), Format::Yaml);
    error.span = Span::of_file(file);
    let errors = vec![error];
    LoadError { errors, sources }
}

#[derive(Default)]
struct Loader {
    loaded: LoadedFiles,
    /// Whether several files were given.
    is_one_of_several: bool,
    /// The files that are being read, outermost first.
    open_files: Vec<PathBuf>,
    /// The position of each file's first include. `None` for a file that was given.
    included_at: HashMap<PathBuf, Option<Span>>,
    bytes: usize,
    nodes: usize,
}

impl Loader {
    /// Reads a file. `from` is the position of its include, or `None` for a file that was given.
    fn load_file(&mut self, path: &Path, from: Option<Span>) {
        let shown = path.display().to_string();
        let opened = match self.open_file(path, &shown, from) {
            Ok(opened) => opened,
            Err(problem) => {
                // The file is added even without content, so that a watch waits for it to appear.
                let sources = &mut self.loaded.sources;
                let file = sources.add(shown, String::new(), Format::Yaml);
                let span = from.unwrap_or_else(|| Span::of_file(file));
                return self.push(Diagnostic { span, ..problem });
            }
        };
        let Some((canonical, text, format)) = opened else {
            return;
        };
        self.included_at.insert(canonical.clone(), from);
        let file = self.loaded.sources.add(shown, text.clone(), format);
        let Some(tree) = self.parse_tree(&text, format, file) else {
            return;
        };
        // The file stays open while its includes are read, so that a cycle is found.
        self.open_files.push(canonical);
        self.load_includes(&tree, path.parent().unwrap_or(Path::new("")));
        self.open_files.pop();
        self.loaded.trees.push(tree);
    }

    /// The file's canonical path, text and format. `None` if the file was read already, which is allowed if several
    /// files were given. The caller sets the position of an error.
    fn open_file(
        &mut self,
        path: &Path,
        shown: &str,
        from: Option<Span>,
    ) -> Result<Option<(PathBuf, String, Format)>, Diagnostic> {
        if path.is_dir() {
            // A given folder was already replaced by its files, so a folder here has no policy file.
            let (message, help) = match from {
                Some(_) => (
                    format!("{shown:?} is a folder, not a policy file"),
                    "include the files in it",
                ),
                None => (
                    format!("the folder {shown:?} has no policy file in it"),
                    "give a folder with files named .yaml, .yml or .toml, or the path of one",
                ),
            };
            return Err(error_without_span(codes::UNREADABLE, message).with_help(help));
        }
        let format = format_of(path).ok_or_else(|| {
            let message = format!("{shown:?} is neither YAML nor TOML by its name");
            error_without_span(codes::UNREADABLE, message)
                .with_help("name it with .yaml, .yml or .toml")
        })?;
        let help = match from {
            Some(_) => "an included file is looked for beside the file that includes it",
            None => GIVE_A_PATH,
        };
        let (canonical, text) = self
            .read(path)
            .map_err(|problem| with_default_help(problem, help))?;
        let Some(first) = self.included_at.get(&canonical) else {
            return Ok(Some((canonical, text, format)));
        };
        if self.open_files.contains(&canonical) {
            let message = format!("{shown:?} includes itself, through the files in between");
            let help = "take what both need into a third file";
            return Err(error_without_span(codes::INCLUDE, message).with_help(help));
        }
        if self.is_one_of_several && (first.is_none() || from.is_none()) {
            // The file was both given and included by another given file. It is read once.
            return Ok(None);
        }
        let help = match first {
            None => "it is the first file".to_owned(),
            Some(first) => {
                let by = self.loaded.sources.get(first.file);
                let by = by.map_or("", |source| source.name());
                format!("{by} line {} includes it already", first.start.line)
            }
        };
        let message = format!("{shown:?} is included twice");
        Err(error_without_span(codes::INCLUDE, message).with_help(help))
    }

    /// Reads the files that a file in this folder includes.
    fn load_includes(&mut self, tree: &Node, folder: &Path) {
        for (name, span) in self.include_names(tree) {
            if self.open_files.len() >= MAX_INCLUDE_DEPTH {
                let message = format!("included deeper than {MAX_INCLUDE_DEPTH} levels");
                let help = "include it from the first file";
                self.error(codes::INCLUDE, message, span, help);
            } else if self.included_at.len() >= MAX_FILES {
                let message = format!("more than {MAX_FILES} files");
                let help = "join some of the files into one";
                self.error(codes::INCLUDE, message, span, help);
                break;
            } else {
                self.load_file(&folder.join(name), Some(span));
            }
        }
    }

    /// The file's canonical path and text, within the rest of the bound on all files.
    fn read(&mut self, path: &Path) -> Result<(PathBuf, String), Diagnostic> {
        let (canonical, text) = read(path, MAX_BYTES.saturating_sub(self.bytes))?;
        self.bytes += text.len();
        Ok((canonical, text))
    }

    fn parse_tree(&mut self, text: &str, format: Format, file: u32) -> Option<Node> {
        match document::parse(text, format, file) {
            Ok(tree) => {
                self.nodes = self.nodes.saturating_add(tree.count_values());
                if self.nodes <= MAX_VALUES {
                    return Some(tree);
                }
                let message = format!("the files of a policy have more than {MAX_VALUES} values");
                let help = "split it into several policies";
                self.error(TOO_LARGE, message, Span::of_file(file), help);
            }
            Err(problems) => {
                let all = &mut self.loaded.problems;
                problems.into_iter().for_each(|problem| all.push(problem));
            }
        }
        self.loaded.problems.mark_partial();
        None
    }

    /// The names under `include`. The decoder reports values that aren't names.
    fn include_names(&self, tree: &Node) -> Vec<(String, Span)> {
        let mut fields = tree.as_fields().iter();
        let field = fields.find(|(name, _)| name.as_text() == Some("include"));
        let names = field.map_or(&[][..], |(_, node)| node.as_items());
        let names = names
            .iter()
            .filter_map(|node| Some((node.as_text()?.to_owned(), node.span)));
        names.filter(|(name, _)| !name.is_empty()).collect()
    }

    fn error(
        &mut self,
        code: Code,
        message: impl Into<String>,
        span: Span,
        help: impl Into<String>,
    ) {
        self.push(Diagnostic::error(code, message, span).with_help(help));
    }

    fn push(&mut self, problem: Diagnostic) {
        self.loaded.problems.push(problem);
        // The unread file may define names that others refer to.
        self.loaded.problems.mark_partial();
    }
}

/// A file's canonical path and its text without a byte order mark, if the file has at most `left` bytes.
fn read(path: &Path, left: usize) -> Result<(PathBuf, String), Diagnostic> {
    let cant = |error: &io::Error| unreadable_error(path, error);
    let canonical = path.canonicalize().map_err(|error| cant(&error))?;
    // The type is checked before the file is opened: opening a pipe would block until another process writes to it.
    if !canonical.metadata().is_ok_and(|about| about.is_file()) {
        return Err(cant(&io::Error::other("it is not a file")));
    }
    let file = File::open(&canonical).map_err(|error| cant(&error))?;
    let most = u64::try_from(left).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| cant(&error))?;
    if bytes.len() > left {
        let message = format!("the files of a policy have more than {MAX_BYTES} bytes");
        let problem = error_without_span(TOO_LARGE, message);
        return Err(problem.with_help("split it into several policies"));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        let kind = io::ErrorKind::InvalidData;
        cant(&io::Error::new(kind, "it is not UTF-8 text"))
    })?;
    let text = match document::strip_byte_order_mark(&text) {
        marked if marked.len() < text.len() => marked.to_owned(),
        _ => text,
    };
    Ok((canonical, text))
}

/// The texts of files in envoyproxy/ratelimit's form, each with its name.
///
/// # Errors
/// A file can't be read. The error has no text to show.
pub(super) fn envoy_files(paths: &[impl AsRef<Path>]) -> Result<Vec<(String, String)>, LoadError> {
    let mut loader = Loader::default();
    let read = |path: &Path| match loader.read(path) {
        Ok((_, text)) => Ok((path.display().to_string(), text)),
        Err(problem) => Err(rejected(path, with_default_help(problem, GIVE_A_PATH))),
    };
    paths.iter().map(AsRef::as_ref).map(read).collect()
}

pub(super) fn format_of(path: &Path) -> Option<Format> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "yaml" | "yml" => Some(Format::Yaml),
        "toml" => Some(Format::Toml),
        _ => None,
    }
}
