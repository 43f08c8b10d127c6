//! Policies from files: loads them, and keeps their texts so that diagnostics can show them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::{Path, PathBuf};

use crate::diagnostic::Diagnostic;
use crate::document::{Format, Span, strip_byte_order_mark};
use crate::native::codes;
use crate::policy::Policy;
use crate::{envoy, lint, native};

mod loader;
mod single_text;

pub use crate::load_result::{LoadError, LoadedPolicy, fingerprint};
pub use crate::sources::{Source, Sources};
pub use loader::{MAX_FILES, MAX_INCLUDE_DEPTH};

impl Policy {
    /// Reads a policy from a `.yaml`, `.yml` or `.toml` file and the files that it includes. A YAML file with a
    /// `domain` is read in envoyproxy/ratelimit's form. The files of a folder are read as one policy.
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
    pub fn from_path(path: impl AsRef<Path>) -> Result<LoadedPolicy, LoadError> {
        let path = path.as_ref();
        let files = loader::folder_files(path)?;
        if !files.is_empty() {
            return read_folder(&files);
        }
        match loader::envoy_text(path)? {
            Some(text) => check_envoy(&[(path.display().to_string(), text)]),
            None => check_loaded(loader::load_path(path)),
        }
    }

    /// Reads several files in order, each as a policy of its own. A domain that an earlier file has is an error: a
    /// server that loads all of them, as envoyproxy/ratelimit does, would use only one of the two.
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
    pub fn from_paths(paths: &[impl AsRef<Path>]) -> Vec<Result<LoadedPolicy, LoadError>> {
        let mut first = BTreeMap::new();
        let paths = paths.iter().map(AsRef::as_ref);
        let read =
            paths.map(|path| reject_duplicate_domains(path, Self::from_path(path), &mut first));
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
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn from_envoy_files(files: &[(String, String)]) -> Result<LoadedPolicy, LoadError> {
        check_envoy(files)
    }

    /// Reads files at these paths as [`from_envoy_files`](Self::from_envoy_files) does. Together they may have at
    /// most [`MAX_BYTES`](crate::document::MAX_BYTES) bytes. A path that isn't a regular file, such as a pipe, isn't
    /// read.
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
    pub fn from_envoy_paths(paths: &[impl AsRef<Path>]) -> Result<LoadedPolicy, LoadError> {
        check_envoy(&loader::envoy_files(paths)?)
    }

    /// Reads a policy from a text, which can't include files.
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
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn from_text(text: &str, format: Format) -> Result<LoadedPolicy, LoadError> {
        if format == Format::Yaml && loader::is_envoy_text(text) {
            return check_envoy(&[("<text>".to_owned(), text.to_owned())]);
        }
        check_loaded(loader::load_text(text, format))
    }
}

fn check_loaded(loaded: loader::LoadedFiles) -> Result<LoadedPolicy, LoadError> {
    let loader::LoadedFiles {
        sources,
        trees,
        mut problems,
    } = loaded;
    let decoded = native::decode(&trees, &sources, &mut problems);
    let errors = problems.into_sorted();
    if !errors.is_empty() {
        return Err(LoadError { errors, sources });
    }
    let warnings = lint::lint_with_spans(&decoded.policy, &decoded.places);
    Ok(LoadedPolicy {
        policy: decoded.policy,
        warnings,
        sources,
    })
}

/// The position of a domain: the file, and the line.
type DomainPlace = (String, u32);

/// Rejects a file with a domain that an earlier file has. Otherwise its domains join `first`.
fn reject_duplicate_domains(
    path: &Path,
    read: Result<LoadedPolicy, LoadError>,
    first: &mut BTreeMap<String, DomainPlace>,
) -> Result<LoadedPolicy, LoadError> {
    let Ok(Some(text)) = loader::envoy_text(path) else {
        return read;
    };
    let mut twice = Vec::new();
    for (domain, span) in envoy::domain_spans(&text) {
        match first.entry(domain) {
            Entry::Occupied(first) => {
                let (file, line) = first.get();
                let message = format!("domain {:?} is given twice", first.key());
                let problem = Diagnostic::error(envoy::DUPLICATE_DOMAIN, message, span);
                let help = format!("the first is on line {line} of {file}; merge them");
                twice.push(problem.with_help(help));
            }
            Entry::Vacant(place) => {
                place.insert((path.display().to_string(), span.start.line));
            }
        }
    }
    if twice.is_empty() {
        return read;
    }
    let (mut errors, sources) = match read {
        Ok(checked) => (Vec::new(), checked.sources),
        Err(rejected) => (rejected.errors, rejected.sources),
    };
    errors.extend(twice);
    errors.sort_by_key(|error| error.span);
    Err(LoadError { errors, sources })
}

/// The most warnings about files in Envoy's form.
const MAX_WARNINGS: usize = 1_000;

fn check_envoy(files: &[(String, String)]) -> Result<LoadedPolicy, LoadError> {
    let mut sources = Sources::default();
    for (name, text) in files {
        sources.add(
            name.clone(),
            strip_byte_order_mark(text).to_owned(),
            Format::Yaml,
        );
    }
    let numbered: Vec<_> = (0..).zip(sources.iter().map(Source::text)).collect();
    match envoy::decode(&numbered) {
        Ok(decoded) => {
            let mut warnings = decoded.warnings;
            warnings.extend(lint::lint_domains(&decoded.domains));
            warnings.sort_by_key(|warning| warning.span);
            warnings.truncate(MAX_WARNINGS);
            Ok(LoadedPolicy {
                policy: Policy {
                    domains: decoded.domains,
                    ..Policy::default()
                },
                warnings,
                sources,
            })
        }
        Err(errors) => Err(LoadError { errors, sources }),
    }
}

/// The policy files in a folder, by their extension, sorted by name. Files in folders below aren't listed, nor are
/// those whose name begins with a dot, which belong to editors or to kubelet. Empty if the path isn't a folder.
///
/// ```
/// use tollgate_engine::source::policy_files_in;
///
/// # let folder = std::env::temp_dir().join(format!("tollgate-files-in-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// for name in ["b.yaml", "a.toml", "README", ".b.yaml"] {
///     std::fs::write(folder.join(name), "")?;
/// }
/// assert_eq!(policy_files_in(&folder), [folder.join("a.toml"), folder.join("b.yaml")]);
/// assert!(policy_files_in(folder.join("a.toml")).is_empty());
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn policy_files_in(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    list_policy_files(folder.as_ref()).unwrap_or_default()
}

/// The policy files in a folder, or why it can't be read.
fn list_policy_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = folder.read_dir()?.flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| {
        !is_hidden_file(file) && loader::format_of(file).is_some() && file.is_file()
    });
    files.sort();
    Ok(files)
}

fn is_hidden_file(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

/// Reads the files of a folder as one policy: as if one native file included them all, or as envoyproxy/ratelimit
/// reads them.
fn read_folder(files: &[PathBuf]) -> Result<LoadedPolicy, LoadError> {
    let mut theirs = Vec::with_capacity(files.len());
    for file in files {
        if loader::envoy_text(file)?.is_some() {
            theirs.push(file);
        }
    }
    if theirs.len() == files.len() {
        return Policy::from_envoy_paths(files);
    }
    if let Some(odd) = theirs.first() {
        let message =
            "a folder with this file of envoyproxy/ratelimit's form has files of ours too";
        let problem = Diagnostic::error(codes::CONFLICT, message, Span::default());
        let problem = problem.with_help("keep them in two folders, or convert theirs");
        return Err(loader::rejected(odd, problem));
    }
    check_loaded(loader::load_paths(files))
}
