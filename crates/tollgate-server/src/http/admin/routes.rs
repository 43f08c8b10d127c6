//! What can be asked on the admin listener, and by which methods: `GET` never changes anything.

use super::orders::Ordered;
use crate::http::request::Request;
use crate::http::session::Wrong;

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Rules,
    Key,
    KeyBy,
    Reset,
    Order(Ordered),
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

/// Each path, and what each method does there.
const ROUTES: &[(&str, &[(&str, Route)])] = &[
    ("/admin/rules", &[("GET", Route::Rules)]),
    ("/admin/key", &[("GET", Route::Key), ("POST", Route::KeyBy)]),
    ("/admin/reset", &[("POST", Route::Reset)]),
    ("/admin/block", &[("POST", Route::Order(Ordered::Block))]),
    ("/admin/unblock", &[("POST", Route::Unblock)]),
    (
        "/admin/override",
        &[("POST", Route::Order(Ordered::Override))],
    ),
    ("/admin/bypass", &[("POST", Route::Order(Ordered::Bypass))]),
    ("/admin/orders", &[("GET", Route::Orders)]),
    ("/admin/top", &[("GET", Route::Top)]),
    ("/debug/limiters", &[("GET", Route::Limiters)]),
    ("/admin/orders/", &[("DELETE", Route::EndOrder)]),
    (
        "/admin/reload",
        &[("GET", Route::Preview), ("POST", Route::Reload)],
    ),
    ("/admin/log", &[("GET", Route::Log), ("PUT", Route::SetLog)]),
];

/// Whether what is there, if there is anything, is for those who have the token.
pub(super) fn is_for_operators(path: &str) -> bool {
    path.starts_with("/admin/") || path.starts_with("/debug/") || path == "/admin"
}

/// What each method does at a path.
fn at(path: &str) -> Option<&'static [(&'static str, Route)]> {
    // Behind the last slash is the number of an order.
    let is_it = |own: &str| match own.strip_suffix('/') {
        Some(_) => path.strip_prefix(own).is_some_and(|id| !id.is_empty()),
        None => own == path,
    };
    let found = ROUTES.iter().find(|(own, _)| is_it(own));
    found.map(|(_, methods)| *methods)
}

/// The methods that a path takes, as the field `Allow` lists them.
pub(crate) fn methods(path: &str) -> String {
    let each = at(path).unwrap_or_default().iter();
    let each = each.map(|(name, _)| if *name == "GET" { "GET, HEAD" } else { name });
    each.collect::<Vec<_>>().join(", ")
}

impl Route {
    /// What is asked for.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, Wrong> {
        let path = request.path;
        let Some(methods) = at(path) else {
            return Err((
                404,
                format!("nothing is at {path}: see tollgate admin --help"),
            ));
        };
        let method = match request.method {
            "HEAD" => "GET",
            other => other,
        };
        let found = methods.iter().find(|(own, _)| *own == method);
        let (_, route) = found.ok_or_else(|| {
            let names: Vec<_> = methods.iter().map(|(name, _)| *name).collect();
            (405, format!("{path} takes {}", names.join(" and ")))
        })?;
        Ok(*route)
    }
}
