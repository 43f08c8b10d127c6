//! Secrets that clients and operators tell: compared in a time that doesn't depend on what is told, and never shown.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// So many secrets may hold at the same time: the one before, the next, and some to spare.
const MAX_LINES: usize = 4;
const MOST_BYTES: usize = 64 << 10;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A password or a token, kept in a file. Clones are the same one, and know when it is changed.
///
/// Each line of the file is a secret, and any of them will do: to change one without a gap, add the next as a line, let
/// everybody change to it, and then remove the one before.
///
/// ```
/// use tollgate_server::Secret;
///
/// let file = std::env::temp_dir().join(format!("tollgate-secret-{}", std::process::id()));
/// std::fs::write(&file, "open sesame\n")?;
/// let secret = Secret::from_file(&file)?;
/// assert_eq!(format!("{secret:?}"), "Secret(…)");
/// # std::fs::remove_file(&file)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Secret(…)")]
pub struct Secret(Arc<SecretFile>);

struct SecretFile {
    file: PathBuf,
    lines: RwLock<Vec<Box<[u8]>>>,
}

impl Secret {
    /// The lines of a file.
    ///
    /// # Errors
    /// If it can't be read, has nothing on it, or more than four lines.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, String> {
        let file = path.as_ref().to_owned();
        let lines = RwLock::new(read(&file)?);
        Ok(Self(Arc::new(SecretFile { file, lines })))
    }

    /// Reads the file again: whether it has changed, or why what is on it can't be used. What held before holds then.
    pub(crate) fn renew(&self) -> Result<bool, String> {
        let next = read(&self.0.file)?;
        let mut lines = self.0.lines.write().unwrap_or_else(PoisonError::into_inner);
        let has_changed = *lines != next;
        *lines = next;
        Ok(has_changed)
    }

    /// Where it is kept.
    pub(crate) fn file(&self) -> &Path {
        &self.0.file
    }

    /// Whether this is it. It takes as long whatever differs; only the lengths may show.
    pub(crate) fn matches(&self, told: &[u8]) -> bool {
        let lines = self.0.lines.read().unwrap_or_else(PoisonError::into_inner);
        // All are compared, so that nobody learns which one it was.
        lines
            .iter()
            .fold(false, |found, own| found | is_same(own, told))
    }
}

fn is_same(own: &[u8], told: &[u8]) -> bool {
    let differ = own.iter().zip(told).fold(0, |differ, (own, other)| {
        std::hint::black_box(differ | (own ^ other))
    });
    differ == 0 && own.len() == told.len()
}

fn read(path: &Path) -> Result<Vec<Box<[u8]>>, String> {
    let shown = path.display();
    let text = read_file(path, MOST_BYTES).map_err(|error| format!("{shown}: {error}"))?;
    // Some editors write it before the text, and nobody tells it.
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<Box<[u8]>> = lines
        .filter(|line| !line.is_empty())
        .map(Into::into)
        .collect();
    match lines.len() {
        0 => Err(format!("{shown}: it is empty, and should have the secret")),
        1..=MAX_LINES => Ok(lines),
        found => Err(format!(
            "{shown}: it has {found} lines, and each is a secret: at most {MAX_LINES} may hold at the same time"
        )),
    }
}

/// Why a file isn't as secret as what is on it, if everybody on this machine may read it.
pub(crate) fn open_file_warning(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o004 != 0).then(|| {
        let shown = path.display();
        format!("{shown} can be read by everybody on this machine (mode {mode:04o}): chmod o-r")
    })
}

/// Reads a file of at most so many bytes. It is read again and again while the service runs, so whatever becomes of it, that
/// ends: what is no file, such as a pipe, isn't read.
pub(crate) fn read_file(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    // Asked by name first: to open a pipe would wait for somebody to write to it.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use tollgate_testkit::temp_folder::TempFolder;

    use super::*;

    #[test]
    fn only_the_secret_is_it() {
        let scratch = TempFolder::new("secrets");
        let file = scratch.path("secret");
        let write = |text: &str| fs::write(&file, text).unwrap();
        write("abc\r\n");
        let secret = Secret::from_file(&file).unwrap();
        assert!(secret.matches(b"abc"));
        for other in [&b""[..], b"ab", b"abd", b"abcd", b"ABC", b"abc\r", b"next"] {
            assert!(!secret.matches(other));
        }
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        // Both hold while one takes the other's place; no line is part of another.
        let same = secret.clone();
        for (text, holding, ended) in [
            (
                "abc\n\nnext\n",
                &[&b"abc"[..], b"next"][..],
                &b"abc\n\nnext"[..],
            ),
            ("next", &[b"next"], b"abc"),
        ] {
            write(text);
            assert_eq!((secret.renew(), secret.renew()), (Ok(true), Ok(false)));
            assert!(holding.iter().all(|told| same.matches(told)), "{text:?}");
            assert!(!same.matches(ended), "{text:?}");
        }
        // What can't be used changes nothing.
        for text in ["", " \n\n", "1\n2\n3\n4\n5\n"] {
            write(text);
            assert!(
                secret.renew().is_err() && secret.matches(b"next"),
                "{text:?}"
            );
        }
        fs::remove_file(&file).unwrap();
        assert!(secret.renew().is_err() && secret.matches(b"next"));
    }

    #[test]
    fn only_files_of_so_many_bytes_are_read() {
        let scratch = TempFolder::new("small-file");
        let file = scratch.path("file");
        fs::write(&file, "12345").unwrap();
        let said = |path: &Path, most| read_file(path, most).map_err(|error| error.to_string());
        assert_eq!(said(&file, 5), Ok(b"12345".to_vec()));
        assert_eq!(said(&file, 4), Err("it has more than 4 bytes".to_owned()));
        for other in [scratch.folder(), Path::new("/dev/zero")] {
            assert_eq!(said(other, 5), Err("it is not a file".to_owned()));
        }
        assert!(read_file(&scratch.path("none"), 5).is_err());
    }
}
