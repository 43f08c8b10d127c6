//! The routes of each HTTP listener, and their methods: `GET` never changes anything.

use super::admin::RequestKind;
use super::request::Request;
use super::session::HttpError;
use crate::address::Protocol;

/// The paths of a listener, and the route of each method.
pub(super) type Routes<R> = &'static [(&'static str, &'static [(&'static str, R)])];

/// The routes for clients, health checks and Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Check,
    Peek,
    Refund,
    Reserve,
    Renew,
    Release,
    Settle,
    Envoy,
    Usage,
    OpenApi,
    Health,
    Ready,
    Metrics,
}

/// The routes for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Rules,
    Key,
    KeyByBody,
    Reset,
    AddOverride(RequestKind),
    Unblock,
    Overrides,
    Top,
    Limiters,
    RemoveOverride,
    Preview,
    Reload,
    Log,
    SetLog,
}

const PUBLIC: Routes<Route> = &[
    ("/v1/check", &[("POST", Route::Check)]),
    ("/v1/peek", &[("POST", Route::Peek)]),
    ("/v1/reserve", &[("POST", Route::Reserve)]),
    ("/v1/permits", &[("POST", Route::Reserve)]),
    ("/v1/permits/renew", &[("POST", Route::Renew)]),
    ("/v1/permits/release", &[("POST", Route::Release)]),
    ("/v1/settle", &[("POST", Route::Settle)]),
    ("/v1/usage", &[("GET", Route::Usage)]),
    ("/json", &[("POST", Route::Envoy)]),
    ("/v1/refund", &[("POST", Route::Refund)]),
    ("/openapi.json", &[("GET", Route::OpenApi)]),
    ("/healthcheck", &[("GET", Route::Health)]),
    ("/healthz", &[("GET", Route::Health)]),
    ("/readyz", &[("GET", Route::Ready)]),
];

const PRIVATE: Routes<Route> = &[
    ("/metrics", &[("GET", Route::Metrics)]),
    ("/healthz", &[("GET", Route::Health)]),
    ("/readyz", &[("GET", Route::Ready)]),
];

const OPERATIONS: Routes<Operation> = &[
    ("/admin/rules", &[("GET", Operation::Rules)]),
    (
        "/admin/key",
        &[("GET", Operation::Key), ("POST", Operation::KeyByBody)],
    ),
    ("/admin/reset", &[("POST", Operation::Reset)]),
    (
        "/admin/block",
        &[("POST", Operation::AddOverride(RequestKind::Block))],
    ),
    ("/admin/unblock", &[("POST", Operation::Unblock)]),
    (
        "/admin/override",
        &[("POST", Operation::AddOverride(RequestKind::Override))],
    ),
    (
        "/admin/bypass",
        &[("POST", Operation::AddOverride(RequestKind::Bypass))],
    ),
    ("/admin/overrides", &[("GET", Operation::Overrides)]),
    ("/admin/top", &[("GET", Operation::Top)]),
    ("/debug/limiters", &[("GET", Operation::Limiters)]),
    (
        "/admin/overrides/",
        &[("DELETE", Operation::RemoveOverride)],
    ),
    (
        "/admin/reload",
        &[("GET", Operation::Preview), ("POST", Operation::Reload)],
    ),
    (
        "/admin/log",
        &[("GET", Operation::Log), ("PUT", Operation::SetLog)],
    ),
];

impl Route {
    /// The route of a request on a listener.
    pub(super) fn of(request: &Request<'_>, protocol: Protocol) -> Result<Self, HttpError> {
        match protocol {
            Protocol::Http => match_route(PUBLIC, request, "GET /openapi.json"),
            _ => match_route(PRIVATE, request, "GET /metrics, /healthz and /readyz"),
        }
    }

    /// Whether the route needs no token.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Metrics)
    }
}

impl Operation {
    /// The operation of a request.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, HttpError> {
        match_route(OPERATIONS, request, "tollgate admin --help")
    }
}

/// Whether a path, existing or not, needs the operators' token.
pub(super) fn is_for_operators(path: &str) -> bool {
    path.starts_with("/admin/") || path.starts_with("/debug/") || path == "/admin"
}

/// The methods of a path, for the `Allow` header.
pub(super) fn allowed_methods(path: &str, protocol: Protocol) -> String {
    let names = match protocol {
        Protocol::Http => method_names(PUBLIC, path),
        _ if is_for_operators(path) => method_names(OPERATIONS, path),
        _ => method_names(PRIVATE, path),
    };
    names.join(", ").replace("GET", "GET, HEAD")
}

fn method_names<R>(routes: Routes<R>, path: &str) -> Vec<&'static str> {
    let methods = methods_at(routes, path).unwrap_or_default();
    methods.iter().map(|(name, _)| *name).collect()
}

/// The methods of a path.
fn methods_at<R>(routes: Routes<R>, path: &str) -> Option<&'static [(&'static str, R)]> {
    // A path that ends with a slash is a prefix, followed by an override's id.
    let is_it = |own: &str| match own.strip_suffix('/') {
        Some(_) => path.strip_prefix(own).is_some_and(|id| !id.is_empty()),
        None => own == path,
    };
    let found = routes.iter().find(|(own, _)| is_it(own));
    found.map(|(_, methods)| *methods)
}

/// The route of a request's path and method. `HEAD` is routed like `GET`.
fn match_route<R: Copy>(
    routes: Routes<R>,
    request: &Request<'_>,
    see: &str,
) -> Result<R, HttpError> {
    let (path, method) = (request.path, request.method);
    let missing = || (404, format!("nothing is at {path}: see {see}"));
    let methods = methods_at(routes, path).ok_or_else(missing)?;
    let method = if method == "HEAD" { "GET" } else { method };
    let found = methods.iter().find(|(own, _)| *own == method);
    let (_, route) = found.ok_or_else(|| {
        let takes = method_names(routes, path).join(" and ");
        (405, format!("{path} takes {takes}"))
    })?;
    Ok(*route)
}
