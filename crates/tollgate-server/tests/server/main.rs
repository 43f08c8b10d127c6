//! The service as its clients see it: real sockets, virtual time.

mod adaptive;
mod admin;
mod admin_kit;
mod admin_table;
mod allocations;
mod clients;
mod crowd;
mod drain;
mod hostile;
mod hostile_cost;
mod hostile_http;
mod hostile_resp;
mod hostile_review;
mod http;
mod kit;
mod metrics;
mod metrics_flood;
mod openapi;
mod reload;
mod replicas;
mod resp;
mod rls;
mod rls_client;
mod rls_closed;
mod rls_hostile;
mod rls_reflection;
mod rls_table;
mod scenarios;
mod secrets;
#[path = "../common/seeds.rs"]
mod seeds;
mod sessions;
mod tls;
mod tls_kit;
mod undecided;
mod watched;

/// Some tests count what the service asks for; the others don't notice.
#[global_allocator]
static ALLOCATOR: tollgate_testkit::memory::Counting = tollgate_testkit::memory::Counting;
