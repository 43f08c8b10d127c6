//! Passwords and tokens: compared in constant time, and never shown.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// How many secrets may be valid at the same time: the old one, the new one, and some to spare.
const MAX_LINES: usize = 4;
const MOST_BYTES: usize = 64 << 10;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A password or a token, read from a file. Clones share one secret, and its changes.
///
/// Each line of the file is a secret, and any of them is accepted. To rotate a secret without a gap, add the new one as
/// a line, change all clients, and then remove the old line.
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
    /// Reads the lines of a file.
    ///
    /// # Errors
    /// The file can't be read, is empty, or has more than four lines.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, String> {
        let file = path.as_ref().to_owned();
        let lines = RwLock::new(read(&file)?);
        Ok(Self(Arc::new(SecretFile { file, lines })))
    }

    /// Reads the file again. Returns whether it has changed. If the file can't be used, the previous secrets stay
    /// valid.
    pub(crate) fn renew(&self) -> Result<bool, String> {
        let next = read(&self.0.file)?;
        let mut lines = self.0.lines.write().unwrap_or_else(PoisonError::into_inner);
        let has_changed = *lines != next;
        *lines = next;
        Ok(has_changed)
    }

    /// The path of the file.
    pub(crate) fn file(&self) -> &Path {
        &self.0.file
    }

    /// Whether this is one of the secrets. The time of the comparison depends on lengths only.
    pub(crate) fn matches(&self, told: &[u8]) -> bool {
        let lines = self.0.lines.read().unwrap_or_else(PoisonError::into_inner);
        // All lines are compared, so that the time doesn't show which one matched.
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
    // Some editors write a byte order mark.
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

/// A warning if all users of this machine can read a secret file.
pub(crate) fn open_file_warning(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o004 != 0).then(|| {
        let shown = path.display();
        format!("{shown} can be read by everybody on this machine (mode {mode:04o}): chmod o-r")
    })
}

/// Reads a file of at most this many bytes. Files are read repeatedly while the service runs, so reading must end
/// whatever becomes of the file: a pipe, for example, isn't read.
pub(crate) fn read_file(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    // Checked by name before: opening a pipe would block until somebody writes to it.
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
        // Both secrets are valid during a rotation; a part of a line never is.
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
        // An unusable file changes nothing.
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
