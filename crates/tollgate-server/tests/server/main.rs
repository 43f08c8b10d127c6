//! The service over real sockets, on virtual time.

mod adaptive;
mod admin;
mod admin_kit;
mod admin_overrides;
mod admin_table;
mod allocations;
mod both;
mod clients;
mod clients_python;
mod connections;
mod converted;
mod counted;
mod crowd;
mod drain;
mod fact_names;
mod hostile;
mod hostile_cost;
mod hostile_http;
mod hostile_resp;
mod hostile_review;
mod http;
mod kit;
mod metrics;
mod metrics_flood;
mod missing_key;
mod openapi;
mod pipelined_waits;
mod protocol_details;
mod reload;
mod replicas;
mod resp;
mod rls;
mod rls_client;
mod rls_closed;
mod rls_envoy;
mod rls_errors;
mod rls_hostile;
mod rls_raw;
mod rls_reflection;
mod rls_resets;
mod rls_table;
mod rls_values;
mod scenarios;
mod secrets;
#[path = "../common/seeds.rs"]
mod seeds;
mod sessions;
mod settles;
mod tls;
mod tls_kit;
mod undecided;
mod watched;
mod why;

/// Some tests count the service's allocations; the others aren't affected.
#[global_allocator]
static ALLOCATOR: tollgate_testkit::allocation_counter::CountingAllocator =
    tollgate_testkit::allocation_counter::CountingAllocator;
