//! A request of actix-web, as limits read it.

use std::cell::OnceCell;
use std::net::SocketAddr;

use actix_web::HttpMessage;
use actix_web::dev::{Extensions, ServiceRequest};
use actix_web::http::Version;
use smallvec::SmallVec;
use tollgate_http::guard::Request;

/// A request, while limits read it.
#[derive(derive_more::Debug)]
pub struct RequestHead {
    request: ServiceRequest,
    /// Taken out of the request, where a `RefCell` would lend them only for a moment.
    #[debug(skip)]
    extensions: Extensions,
    /// Computed only if a limit needs it.
    #[debug(skip)]
    route: OnceCell<Option<String>>,
}

impl RequestHead {
    pub(crate) fn new(request: ServiceRequest) -> Self {
        let extensions = std::mem::take(&mut *request.extensions_mut());
        Self {
            request,
            extensions,
            route: OnceCell::new(),
        }
    }

    /// The request, with its extensions again.
    pub(crate) fn into_request(self) -> ServiceRequest {
        *self.request.extensions_mut() = self.extensions;
        self.request
    }

    /// The request of actix-web. Its extensions are taken out: use [`extension`](Request::extension) to read them.
    pub const fn request(&self) -> &ServiceRequest {
        &self.request
    }
}

impl Request for RequestHead {
    fn peer(&self) -> Option<SocketAddr> {
        self.request.peer_addr()
    }

    fn method(&self) -> &str {
        self.request.method().as_str()
    }

    fn path(&self) -> &str {
        // The path that routes are matched by, with unnecessary percent signs decoded: no other spelling avoids a
        // rule.
        self.request.match_info().as_str()
    }

    fn host(&self) -> Option<&str> {
        let own = self.request.uri().host();
        // Of several values, the first, as `HeaderMap::get` returns it.
        own.or_else(|| str::from_utf8(self.header_lines("host").next()?).ok())
    }

    fn route(&self) -> Option<&str> {
        let find = || self.request.match_pattern();
        self.route.get_or_init(find).as_deref()
    }

    fn header_lines<'r>(&'r self, field: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]> {
        let lines = self.request.headers().get_all(field);
        let lines: SmallVec<[&[u8]; 4]> = lines.map(|value| value.as_bytes()).collect();
        lines.into_iter()
    }

    /// For a WebSocket upgrade over HTTP/1, and for a `CONNECT` without a length, actix-web passes everything that
    /// follows to the handler, whatever length is stated.
    fn is_unbounded(&self) -> bool {
        let is_websocket = |line: &[u8]| line.trim_ascii().eq_ignore_ascii_case(b"websocket");
        let has_length = self.request.headers().contains_key("content-length");
        let is_tunnel = self.method() == "CONNECT" && !has_length;
        !self.is_http2() && (is_tunnel || self.header_lines("upgrade").any(is_websocket))
    }

    fn is_http2(&self) -> bool {
        self.request.version() >= Version::HTTP_2
    }

    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions.get()
    }
}
