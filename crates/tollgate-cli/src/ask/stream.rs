//! A connection to a listener, on TCP or a UNIX socket.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::PATIENCE;
use crate::admin::Place;

/// Both sides of a connection.
pub(super) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// As people write it.
pub(super) fn shown(place: &Place) -> String {
    match place {
        Place::Tcp { host, port, .. } => format!("{host}:{port}"),
        Place::Unix(path) => format!("unix:{}", path.display()),
    }
}

/// Connects.
pub(super) fn connect(place: &Place) -> io::Result<Box<dyn Stream>> {
    match place {
        Place::Tcp { host, port, .. } => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, *port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Box::new(stream))
        }
        Place::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Box::new(stream))
        }
    }
}

/// What isn't the protocol that was spoken.
pub(super) fn garbled(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
