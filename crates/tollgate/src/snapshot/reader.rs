//! Reads a snapshot, once all of it was looked at.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::iter;
use std::path::{Path, PathBuf};

use tollgate_core::Rate;

use super::{CHUNK, FNV_START, HEADER, LENGTH, SnapshotError, WORD, checksum, io_error, rate_of};

/// Reads a snapshot that was found to be intact.
///
/// ```
/// use tollgate::snapshot::{SnapshotReader, SnapshotWriter};
///
/// # let path = std::env::temp_dir().join(format!("tollgate-reader-doc-{}", std::process::id()));
/// let mut file = SnapshotWriter::create(&path, b"examples", 1)?;
/// file.word(7)?;
/// file.bytes(b"ada")?;
/// file.finish()?;
///
/// let mut file = SnapshotReader::open(&path, b"examples", 1)?;
/// assert_eq!((file.word()?, file.bytes()?), (7, b"ada".to_vec()));
/// file.end()?;
/// let error = SnapshotReader::open(&path, b"examples", 2).unwrap_err().to_string();
/// assert!(error.contains("has version 1, but this build reads version 2"));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), tollgate::snapshot::SnapshotError>(())
/// ```
#[derive(Debug)]
pub struct SnapshotReader {
    input: BufReader<File>,
    path: PathBuf,
    /// Words that are left, without the checksum.
    left: u64,
}

impl SnapshotReader {
    /// Opens a file of this kind and version, and looks at all of it.
    ///
    /// # Errors
    /// If it can't be read, or isn't an intact file of this kind and version.
    pub fn open(
        path: impl AsRef<Path>,
        kind: &[u8; 8],
        version: u64,
    ) -> Result<Self, SnapshotError> {
        let path = path.as_ref();
        let owned = || path.to_owned();
        let io = |source| io_error(path, source);
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut head = Vec::with_capacity(HEADER * WORD);
        let mut header = (&mut file).take((HEADER * WORD) as u64);
        header.read_to_end(&mut head).map_err(io)?;
        let word = |place: usize| {
            let bytes = head.get(place * WORD..)?.first_chunk::<WORD>()?;
            Some(u64::from_le_bytes(*bytes))
        };
        if word(0) != Some(u64::from_le_bytes(*kind)) || word(1) == Some(0) {
            return Err(SnapshotError::Foreign { path: owned() });
        }
        if let Some(found) = word(1).filter(|found| *found != version) {
            return Err(SnapshotError::OtherVersion {
                path: owned(),
                version: found,
                reads: version,
            });
        }
        let least = ((HEADER + 1) * WORD) as u64;
        let expected = word(LENGTH).map_or(least, |words| words.saturating_mul(WORD as u64));
        if length != expected || length < least {
            return Err(SnapshotError::Length {
                path: owned(),
                bytes: length,
                expected: expected.max(least),
            });
        }
        let mut input = BufReader::with_capacity(CHUNK, file);
        let sum = checksum(FNV_START, &head[..LENGTH * WORD]);
        if !is_intact(&mut input, sum, length - (HEADER * WORD) as u64).map_err(io)? {
            return Err(SnapshotError::Corrupt { path: owned() });
        }
        input
            .seek(SeekFrom::Start((HEADER * WORD) as u64))
            .map_err(io)?;
        Ok(Self {
            input,
            path: owned(),
            left: (length - least) / WORD as u64,
        })
    }

    /// The file.
    ///
    /// ```
    /// use std::path::Path;
    /// use tollgate::snapshot::SnapshotReader;
    ///
    /// fn name(file: &SnapshotReader) -> &Path {
    ///     file.path()
    /// }
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next word.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if there is none.
    pub fn word(&mut self) -> Result<u64, SnapshotError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Err(self.corrupt());
        };
        let mut bytes = [0; WORD];
        let read = self.input.read_exact(&mut bytes);
        read.map_err(|source| io_error(&self.path, source))?;
        self.left = left;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The next words.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if there are fewer.
    pub fn words<const N: usize>(&mut self) -> Result<[u64; N], SnapshotError> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.word()?;
        }
        Ok(words)
    }

    /// The next bytes, as [`SnapshotWriter::bytes`](super::SnapshotWriter::bytes) wrote them.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if there are fewer.
    pub fn bytes(&mut self) -> Result<Vec<u8>, SnapshotError> {
        let length = self.word()?;
        let mut bytes = Vec::new();
        // Its word isn't trusted with memory: this ends where the file does.
        while (bytes.len() as u64) < length {
            bytes.extend(self.word()?.to_le_bytes());
        }
        bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// The next words as a rate.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if they are none.
    pub fn rate(&mut self) -> Result<Rate, SnapshotError> {
        rate_of(self.words()?).ok_or_else(|| self.corrupt())
    }

    /// That nothing is left.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if there is.
    pub fn end(self) -> Result<(), SnapshotError> {
        match self.left {
            0 => Ok(()),
            _ => Err(self.corrupt()),
        }
    }

    /// That its contents make no sense, though its checksum fits.
    ///
    /// ```
    /// use tollgate::snapshot::{SnapshotError, SnapshotReader};
    ///
    /// fn yes_or_no(file: &mut SnapshotReader) -> Result<bool, SnapshotError> {
    ///     match file.word()? {
    ///         0 => Ok(false),
    ///         1 => Ok(true),
    ///         _ => Err(file.corrupt()),
    ///     }
    /// }
    /// ```
    pub fn corrupt(&self) -> SnapshotError {
        SnapshotError::Corrupt {
            path: self.path.clone(),
        }
    }

    /// That it was written by a build that hashes in another way.
    ///
    /// ```
    /// use tollgate::snapshot::{SnapshotError, SnapshotReader};
    ///
    /// fn probe(file: &mut SnapshotReader, own: u64) -> Result<(), SnapshotError> {
    ///     if file.word()? == own { Ok(()) } else { Err(file.other_build()) }
    /// }
    /// ```
    pub fn other_build(&self) -> SnapshotError {
        SnapshotError::OtherBuild {
            path: self.path.clone(),
        }
    }

    /// That the next word is the version of a section.
    pub(crate) fn expect_version(&mut self, reads: u64) -> Result<(), SnapshotError> {
        match self.word()? {
            version if version == reads => Ok(()),
            version => Err(SnapshotError::OtherVersion {
                path: self.path.clone(),
                version,
                reads,
            }),
        }
    }

    /// The words that are left, until one can't be read.
    pub(crate) fn rest(&mut self) -> impl Iterator<Item = u64> {
        iter::from_fn(|| self.word().ok())
    }
}

/// Whether so many bytes that follow end with the checksum of the others.
fn is_intact(input: &mut impl Read, mut sum: u64, bytes: u64) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes - WORD as u64;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        input.read_exact(&mut chunk[..part])?;
        sum = checksum(sum, &chunk[..part]);
        left -= part as u64;
    }
    let mut own = [0; WORD];
    input.read_exact(&mut own)?;
    Ok(sum == u64::from_le_bytes(own))
}
