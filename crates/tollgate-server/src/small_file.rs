//! Files that are read whole, again and again, while the service runs: whatever becomes of one, that ends.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// What a file says that has at most so many bytes. What is no file, such as a pipe, isn't read.
pub(crate) fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
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
    use tollgate_testkit::scratch::Scratch;

    use super::*;

    #[test]
    fn only_files_of_so_many_bytes_are_read() {
        let scratch = Scratch::new("small-file");
        let file = scratch.path("file");
        fs::write(&file, "12345").unwrap();
        let said = |path: &Path, most| read(path, most).map_err(|error| error.to_string());
        assert_eq!(said(&file, 5), Ok(b"12345".to_vec()));
        assert_eq!(said(&file, 4), Err("it has more than 4 bytes".to_owned()));
        for other in [scratch.folder(), Path::new("/dev/zero")] {
            assert_eq!(said(other, 5), Err("it is not a file".to_owned()));
        }
        assert!(read(&scratch.path("none"), 5).is_err());
    }
}
