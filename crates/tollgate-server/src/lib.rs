//! The rate-limit service: Envoy's protocol, HTTP and Redis' on one engine.

mod http;
mod resp;
mod rls;
