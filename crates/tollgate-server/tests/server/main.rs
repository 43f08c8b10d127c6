//! The service as its clients see it: real sockets, virtual time.

mod http;
mod kit;
mod openapi;
mod resp;
mod rls;
