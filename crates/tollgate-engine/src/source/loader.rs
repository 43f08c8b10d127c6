//! Reads a file and those that it includes, all of it bounded.

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

/// Most files of one policy.
pub const MAX_FILES: usize = 100;
/// How deep files may include one another.
pub const MAX_INCLUDE_DEPTH: usize = 8;

/// What was read: included files come before those that include them.
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

/// Several files that make up one policy.
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
    // What is too large to be read isn't worth a copy.
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

/// The text of a file in envoyproxy/ratelimit's form; nothing of any other, or one that can't be
/// read, which is reported when it is read as ours.
///
/// # Errors
/// There is no file descriptor to find out. What else can't be read is in no form, and is told where it is read.
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

/// The files of a folder, as [`files_in`](super::policy_files_in) has them.
///
/// # Errors
/// There is no file descriptor to look with.
pub(super) fn folder_files(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    match super::list_policy_files(path) {
        Err(error) if is_out_of_descriptors(&error) => {
            Err(rejected(path, unreadable_error(path, &error)))
        }
        listed => Ok(listed.unwrap_or_default()),
    }
}

/// Whether the process, or the system, has as many files open as it may.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let codes: &[i32] = if cfg!(windows) { &[4] } else { &[23, 24] };
    let own = error.raw_os_error();
    own.is_some_and(|code| codes.contains(&code))
}

/// Whether a line at the margin begins a domain, as no field of ours has that name; or, should it be
/// written in another way, such as in JSON, whether the file has their fields.
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

/// An error of which it isn't known yet where it stands.
fn error_without_span(code: Code, message: String) -> Diagnostic {
    Diagnostic::error(code, message, Span::default())
}

/// The same with what to do about it, unless it says so.
fn with_default_help(mut problem: Diagnostic, help: &str) -> Diagnostic {
    problem.help.get_or_insert_with(|| help.to_owned());
    problem
}

const GIVE_A_PATH: &str = "give the path of a policy file";

/// Why a file wasn't read, without help if it lies with the path. Its place is for the caller to say.
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

/// All that is known of a policy at this path.
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
    /// Whether others are given beside each file.
    is_one_of_several: bool,
    /// Those that are being read, outermost first.
    open_files: Vec<PathBuf>,
    /// Where each was included first.
    included_at: HashMap<PathBuf, Option<Span>>,
    bytes: usize,
    nodes: usize,
}

impl Loader {
    /// Reads a file that `from` asks for, or that was given first.
    fn load_file(&mut self, path: &Path, from: Option<Span>) {
        let shown = path.display().to_string();
        let opened = match self.open_file(path, &shown, from) {
            Ok(opened) => opened,
            Err(problem) => {
                // Named even if there is nothing of it to show: whoever looks after the files waits for this one too.
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
        self.open_files.push(canonical);
        self.load_includes(&tree, path.parent().unwrap_or(Path::new("")));
        self.open_files.pop();
        self.loaded.trees.push(tree);
    }

    /// The file's identity, text and format; none if it was read already, as may be where several are given. The place of an
    /// error is for the caller to say.
    fn open_file(
        &mut self,
        path: &Path,
        shown: &str,
        from: Option<Span>,
    ) -> Result<Option<(PathBuf, String, Format)>, Diagnostic> {
        if path.is_dir() {
            // One that was given stands for the files in it, so one that comes here has none.
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
            // It was given, and one beside it includes it: it is read once.
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

    /// Reads the files that one in this folder includes.
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

    /// The file's identity and text, within what is left of the bound on all files together.
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

    /// The names under `include`. The decoder reports what is no name.
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
        // What wasn't read may have had what others refer to.
        self.loaded.problems.mark_partial();
    }
}

/// A file's identity and text, without a byte order mark, if it has no more than so many bytes.
fn read(path: &Path, left: usize) -> Result<(PathBuf, String), Diagnostic> {
    let cant = |error: &io::Error| unreadable_error(path, error);
    let canonical = path.canonicalize().map_err(|error| cant(&error))?;
    // Asked by name first: to open a pipe would wait for someone to write to it.
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
/// Why one can't be read, with nothing of it to show.
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
