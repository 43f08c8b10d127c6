//! A request of the `http` crate, as limits read it.

use std::net::SocketAddr;

use http::{Extensions, HeaderMap, Method, Uri, Version};
use tollgate_http::guard::Request;

use crate::field_names;

/// A request with any body, by reference: limits read it in place, without taking it apart or moving it.
///
/// The address of the connection is an extension: axum's `ConnectInfo` (feature `axum`), tonic's `TcpConnectInfo`
/// (feature `tonic`), or a [`SocketAddr`] that a server put there.
///
/// ```
/// use tollgate_tower::{RequestHead, Request as _};
///
/// let request = http::Request::get("/search?q=toll").header("host", "api.example.com").body("")?;
/// let head: &RequestHead = &request;
/// assert_eq!((head.path(), head.host()), ("/search", Some("api.example.com")));
/// assert_eq!(head.uri().query(), Some("q=toll"));
/// # Ok::<(), http::Error>(())
/// ```
pub type RequestHead = dyn AnyRequest;

/// The parts that every [`http::Request`] has, whatever its body. A [`RequestHead`] is made of it.
pub trait AnyRequest {
    /// `GET`, `POST` …
    fn method(&self) -> &Method;

    /// The target of the request.
    fn uri(&self) -> &Uri;

    /// The HTTP version of the request.
    fn version(&self) -> Version;

    /// All header fields.
    fn headers(&self) -> &HeaderMap;

    /// The extensions that earlier layers have set.
    fn extensions(&self) -> &Extensions;
}

impl<B> AnyRequest for http::Request<B> {
    #[inline]
    fn method(&self) -> &Method {
        self.method()
    }

    #[inline]
    fn uri(&self) -> &Uri {
        self.uri()
    }

    #[inline]
    fn version(&self) -> Version {
        self.version()
    }

    #[inline]
    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    #[inline]
    fn extensions(&self) -> &Extensions {
        self.extensions()
    }
}

impl Request for RequestHead {
    #[inline(always)]
    fn peer(&self) -> Option<SocketAddr> {
        let extensions = self.extensions();
        #[cfg(feature = "axum")]
        if let Some(axum::extract::ConnectInfo(address)) = extensions.get() {
            return Some(*address);
        }
        #[cfg(feature = "tonic")]
        if let Some(connection) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
            return connection.remote_addr();
        }
        extensions.get().copied()
    }

    #[inline]
    fn method(&self) -> &str {
        AnyRequest::method(self).as_str()
    }

    #[inline]
    fn path(&self) -> &str {
        self.uri().path()
    }

    fn host(&self) -> Option<&str> {
        let own = self.uri().host();
        // Of several values, the first, as `HeaderMap::get` returns it.
        own.or_else(|| str::from_utf8(self.header_lines("host").next()?).ok())
    }

    fn route(&self) -> Option<&str> {
        #[cfg(feature = "axum")]
        return self.extension().map(axum::extract::MatchedPath::as_str);
        #[cfg(not(feature = "axum"))]
        return None;
    }

    fn header_lines<'r>(&'r self, field: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]> {
        let lines = match field_names::known(field) {
            Some(name) => self.headers().get_all(name),
            None => self.headers().get_all(field),
        };
        lines.into_iter().map(http::HeaderValue::as_bytes)
    }

    fn is_http2(&self) -> bool {
        self.version() >= Version::HTTP_2
    }

    #[inline]
    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions().get()
    }
}
