//! Secrets that operators tell: compared in a time that doesn't depend on what is told, and never shown.

use std::fmt;
use std::path::Path;

/// A password or a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// The first line of a file.
    ///
    /// # Errors
    /// If it can't be read, or has nothing on it.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, String> {
        let path = path.as_ref();
        let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match line.trim_ascii() {
            [] => Err(format!(
                "{}: its first line is empty, and should be the secret",
                path.display()
            )),
            secret => Ok(Self(secret.into())),
        }
    }

    /// Whether this is it. It takes as long whatever differs; only the length may show.
    pub(crate) fn is(&self, told: &[u8]) -> bool {
        let differ = self.0.iter().zip(told).fold(0, |differ, (own, other)| {
            std::hint::black_box(differ | (own ^ other))
        });
        differ == 0 && self.0.len() == told.len()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_is_it() {
        let secret = Secret(b"abc".as_slice().into());
        assert!(secret.is(b"abc"));
        for other in [&b""[..], b"ab", b"abd", b"abcd", b"ABC"] {
            assert!(!secret.is(other));
        }
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
