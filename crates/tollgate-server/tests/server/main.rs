//! The service as its clients see it: real sockets, virtual time.

mod allocations;
mod clients;
mod crowd;
mod hostile;
mod hostile_cost;
mod hostile_http;
mod hostile_resp;
mod hostile_review;
mod http;
mod kit;
mod openapi;
mod replicas;
mod resp;
mod rls;
mod rls_client;
mod rls_closed;
mod rls_hostile;
mod rls_reflection;
mod rls_table;
mod scenarios;
#[path = "../common/seeds.rs"]
mod seeds;
mod sessions;
mod undecided;

/// Some tests count what the service asks for; the others don't notice.
#[global_allocator]
static ALLOCATOR: tollgate_testkit::memory::Counting = tollgate_testkit::memory::Counting;
