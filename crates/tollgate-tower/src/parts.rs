//! A request of the `http` crate, as a guard looks at it.

use std::net::SocketAddr;

use http::request::Parts;
use tollgate_http::guard::Request;

use crate::names;

/// The head of a request.
///
/// The address of the connection is an extension: what axum's `ConnectInfo` tells (feature `axum`), tonic's `TcpConnectInfo`
/// (feature `tonic`), or a [`SocketAddr`] that somebody else put there.
#[derive(Debug)]
#[repr(transparent)]
pub struct Head(pub Parts);

impl Request for Head {
    #[inline]
    fn peer(&self) -> Option<SocketAddr> {
        #[cfg(feature = "axum")]
        if let Some(axum::extract::ConnectInfo(address)) = self.extension() {
            return Some(*address);
        }
        #[cfg(feature = "tonic")]
        if let Some(connection) = self.extension::<tonic::transport::server::TcpConnectInfo>() {
            return connection.remote_addr();
        }
        self.extension().copied()
    }

    #[inline]
    fn method(&self) -> &str {
        self.0.method.as_str()
    }

    #[inline]
    fn path(&self) -> &str {
        self.0.uri.path()
    }

    fn host(&self) -> Option<&str> {
        let own = self.0.uri.host();
        // Of several, the one that those who look for one find.
        own.or_else(|| str::from_utf8(self.lines("host").next()?).ok())
    }

    fn route(&self) -> Option<&str> {
        #[cfg(feature = "axum")]
        return self.extension().map(axum::extract::MatchedPath::as_str);
        #[cfg(not(feature = "axum"))]
        return None;
    }

    fn lines<'r>(&'r self, field: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]> {
        let lines = match names::known(field) {
            Some(name) => self.0.headers.get_all(name),
            None => self.0.headers.get_all(field),
        };
        lines.into_iter().map(http::HeaderValue::as_bytes)
    }

    #[inline]
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.extensions.get()
    }
}
