//! Recorded traces of other rate limiters: where they are and how they are read.
//!
//! A set is `NAME.jsonl.gz`, with one recorded sequence in each line. The folder is this crate's `vectors/`, or
//! that of the environment variable `TOLLGATE_VECTORS`.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;

/// The environment variable with another folder of sets.
pub const FOLDER_VARIABLE: &str = "TOLLGATE_VECTORS";

/// Why a set could not be read, with the path that was tried.
#[derive(Debug)]
#[non_exhaustive]
pub enum VectorsError {
    /// The file can't be opened.
    Missing {
        /// The file that was looked for.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is not text, or not a sequence of the expected form.
    Malformed {
        /// The file that was read.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error.
        source: io::Error,
    },
}

impl fmt::Display for VectorsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path, source } => write!(
                f,
                "no recorded traces at {}: {source}; {FOLDER_VARIABLE} names the folder, \
                 without it the crate's own is read",
                path.display()
            ),
            Self::Malformed { path, line, source } => {
                write!(f, "{} line {line}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for VectorsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing { source, .. } | Self::Malformed { source, .. } => Some(source),
        }
    }
}

/// The folder of the sets.
pub fn vectors_folder() -> PathBuf {
    env::var_os(FOLDER_VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"),
        PathBuf::from,
    )
}

/// All sequences of the set `name`, from [`vectors_folder`].
///
/// ```
/// let sequences: Vec<serde_json::Value> = tollgate_testkit::test_vectors::load_vectors("governor")?;
/// assert!(!sequences.is_empty());
/// # Ok::<(), tollgate_testkit::test_vectors::VectorsError>(())
/// ```
///
/// # Errors
/// If the file is missing or a line is not a `T`; the error names the path.
pub fn load_vectors<T: DeserializeOwned>(name: &str) -> Result<Vec<T>, VectorsError> {
    load_from(&vectors_folder(), name)
}

/// All sequences of the set `name` from a folder.
///
/// ```
/// use std::path::Path;
///
/// let missing = tollgate_testkit::test_vectors::load_from::<u64>(Path::new("no-such-folder"), "governor");
/// assert!(missing.is_err());
/// ```
///
/// # Errors
/// If the file is missing or a line is not a `T`; the error names the path.
pub fn load_from<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Vec<T>, VectorsError> {
    let path = folder.join(format!("{name}.jsonl.gz"));
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(source) => return Err(VectorsError::Missing { path, source }),
    };
    let mut sequences = Vec::new();
    for (index, line) in BufReader::new(MultiGzDecoder::new(file))
        .lines()
        .enumerate()
    {
        let parsed = line.and_then(|line| match line.trim() {
            "" => Ok(None),
            text => Ok(Some(serde_json::from_str(text)?)),
        });
        match parsed {
            Ok(sequence) => sequences.extend(sequence),
            Err(source) => {
                let line = index + 1;
                return Err(VectorsError::Malformed { path, line, source });
            }
        }
    }
    Ok(sequences)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_missing_set_is_named_by_its_path() {
        let error = load_from::<u64>(Path::new("/no/such/folder"), "nothing").unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("no recorded traces at /no/such/folder/nothing.jsonl.gz: "),
            "{text}"
        );
        assert!(error.source().is_some());
    }

    #[test]
    fn a_line_of_another_form_is_named_by_its_number() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
        let text = load_from::<u64>(&own, "governor").unwrap_err().to_string();
        assert!(text.contains("governor.jsonl.gz line 1: "), "{text}");
    }
}
