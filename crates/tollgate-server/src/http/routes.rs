//! What can be asked on each listener of HTTP, and by which methods: `GET` never changes anything.

use super::admin::RequestKind;
use super::request::Request;
use super::session::Wrong;
use crate::address::Protocol;

/// Each path, and what each method does there.
pub(super) type Routes<R> = &'static [(&'static str, &'static [(&'static str, R)])];

/// What a request is about that comes from a client, a probe or Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Check,
    Peek,
    Refund,
    Begin,
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

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Rules,
    Key,
    KeyBy,
    Reset,
    Order(RequestKind),
    Unblock,
    Orders,
    Top,
    Limiters,
    EndOrder,
    Preview,
    Reload,
    Log,
    SetLog,
}

const PUBLIC: Routes<Route> = &[
    ("/v1/check", &[("POST", Route::Check)]),
    ("/v1/peek", &[("POST", Route::Peek)]),
    ("/v1/reserve", &[("POST", Route::Begin)]),
    ("/v1/permits", &[("POST", Route::Begin)]),
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
        &[("GET", Operation::Key), ("POST", Operation::KeyBy)],
    ),
    ("/admin/reset", &[("POST", Operation::Reset)]),
    (
        "/admin/block",
        &[("POST", Operation::Order(RequestKind::Block))],
    ),
    ("/admin/unblock", &[("POST", Operation::Unblock)]),
    (
        "/admin/override",
        &[("POST", Operation::Order(RequestKind::Override))],
    ),
    (
        "/admin/bypass",
        &[("POST", Operation::Order(RequestKind::Bypass))],
    ),
    ("/admin/orders", &[("GET", Operation::Orders)]),
    ("/admin/top", &[("GET", Operation::Top)]),
    ("/debug/limiters", &[("GET", Operation::Limiters)]),
    ("/admin/orders/", &[("DELETE", Operation::EndOrder)]),
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
    /// What is asked for on a listener.
    pub(super) fn of(request: &Request<'_>, protocol: Protocol) -> Result<Self, Wrong> {
        match protocol {
            Protocol::Http => find(PUBLIC, request, "GET /openapi.json"),
            _ => find(PRIVATE, request, "GET /metrics, /healthz and /readyz"),
        }
    }

    /// Whether anybody may ask it, without a token.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Metrics)
    }
}

impl Operation {
    /// What is asked for.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, Wrong> {
        find(OPERATIONS, request, "tollgate admin --help")
    }
}

/// Whether what is there, if there is anything, is for those who have the token.
pub(super) fn is_for_operators(path: &str) -> bool {
    path.starts_with("/admin/") || path.starts_with("/debug/") || path == "/admin"
}

/// The methods that a path of a listener takes, as the field `Allow` lists them.
pub(super) fn methods(path: &str, protocol: Protocol) -> String {
    let names = match protocol {
        Protocol::Http => names(PUBLIC, path),
        _ if is_for_operators(path) => names(OPERATIONS, path),
        _ => names(PRIVATE, path),
    };
    names.join(", ").replace("GET", "GET, HEAD")
}

fn names<R>(routes: Routes<R>, path: &str) -> Vec<&'static str> {
    let methods = at(routes, path).unwrap_or_default();
    methods.iter().map(|(name, _)| *name).collect()
}

/// What each method does at a path.
fn at<R>(routes: Routes<R>, path: &str) -> Option<&'static [(&'static str, R)]> {
    // Behind the last slash is the number of an order.
    let is_it = |own: &str| match own.strip_suffix('/') {
        Some(_) => path.strip_prefix(own).is_some_and(|id| !id.is_empty()),
        None => own == path,
    };
    let found = routes.iter().find(|(own, _)| is_it(own));
    found.map(|(_, methods)| *methods)
}

/// What is at a path for a request's method; it is read by `HEAD`, too.
fn find<R: Copy>(routes: Routes<R>, request: &Request<'_>, see: &str) -> Result<R, Wrong> {
    let (path, method) = (request.path, request.method);
    let missing = || (404, format!("nothing is at {path}: see {see}"));
    let methods = at(routes, path).ok_or_else(missing)?;
    let method = if method == "HEAD" { "GET" } else { method };
    let found = methods.iter().find(|(own, _)| *own == method);
    let (_, route) = found.ok_or_else(|| {
        let takes = names(routes, path).join(" and ");
        (405, format!("{path} takes {takes}"))
    })?;
    Ok(*route)
}
