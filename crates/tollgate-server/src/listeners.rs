//! All listeners of a service: bound before anything is served, and each with sessions that speak its protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::connection::{self, Patience, Speaks};
use crate::drain::{Closing, Group};
use crate::listen::{Address, Client, Listener, Open, Place, take};
use crate::measured::Protocol;
use crate::service::{Service, Store};
use crate::settings::{Addresses, Settings};
use crate::start_error::StartError;
use crate::tls::{Certificates, Handshake, TlsOn};
use crate::{http, resp, rls};

/// What a client is told that is one too many.
const RESP_FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const HTTP_FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\nretry-after: 1\r\n\r\n";

/// All listeners; none where it doesn't listen.
pub(crate) struct Listeners {
    http: Option<Listener>,
    grpc: Option<Listener>,
    resp: Option<Listener>,
    admin: Option<Listener>,
    metrics: Option<Listener>,
}

impl Listeners {
    pub(crate) async fn bind(
        settings: &Settings,
        certificates: Option<&Arc<Certificates>>,
    ) -> Result<Self, StartError> {
        let time = settings.bounds.request_time;
        let tls = |on| certificates.and_then(|own| own.on(on, (time, &settings.log)));
        Ok(Self {
            http: bind("HTTP", &settings.http, tls(TlsOn::Http)).await?,
            grpc: bind("gRPC", &settings.grpc, tls(TlsOn::Grpc)).await?,
            resp: bind("RESP", &settings.resp, tls(TlsOn::Resp)).await?,
            admin: bind("admin", &settings.admin, tls(TlsOn::Admin)).await?,
            metrics: bind("metrics", &settings.metrics, tls(TlsOn::Metrics)).await?,
        })
    }

    /// Where they are.
    pub(crate) fn addresses(&self) -> Addresses {
        let address = |listener: &Option<Listener>| listener.as_ref()?.address().ok();
        Addresses {
            http: address(&self.http),
            grpc: address(&self.grpc),
            resp: address(&self.resp),
            admin: address(&self.admin),
            metrics: address(&self.metrics),
            admin_token_file: None,
        }
    }

    /// Serves those who come: clients, and then those who operate.
    pub(crate) fn serve<B: Store>(self, service: &Arc<Service<B>>) -> (Group, Group) {
        let mut clients = Group::new(service.closing.clone());
        let mut operators = Group::new(Closing::default());
        let ids = AtomicU64::new(1);
        let full = (Protocol::Resp, RESP_FULL);
        serve_bytes(&mut clients, self.resp, service, full, move |service, _| {
            resp::Session::new(service, ids.fetch_add(1, Ordering::Relaxed))
        });
        let full = (Protocol::Http, HTTP_FULL);
        serve_bytes(&mut clients, self.http, service, full, |service, _| {
            http::Session::new(service, http::Door::Public)
        });
        serve_grpc(&mut clients, self.grpc, service);
        let full = (Protocol::Admin, HTTP_FULL);
        serve_bytes(
            &mut operators,
            self.admin,
            service,
            full,
            |service, client| http::Session::new(service, http::Door::Admin(client.peer())),
        );
        let full = (Protocol::Metrics, HTTP_FULL);
        serve_bytes(&mut operators, self.metrics, service, full, |service, _| {
            http::Session::new(service, http::Door::Metrics)
        });
        (clients, operators)
    }
}

async fn bind(
    protocol: &'static str,
    address: &Address,
    tls: Option<Handshake>,
) -> Result<Option<Listener>, StartError> {
    let bound = Listener::bind(address, tls).await;
    bound.map_err(|error| StartError::Listen {
        protocol,
        address: address.clone(),
        error,
    })
}

/// Serves those who come by this listener, each by a session of its own.
fn serve_bytes<B: Store, P: Speaks + 'static>(
    group: &mut Group,
    listener: Option<Listener>,
    service: &Arc<Service<B>>,
    (protocol, full): (Protocol, &'static [u8]),
    session: impl Fn(Arc<Service<B>>, &Client) -> P + Send + 'static,
) {
    let Some(listener) = listener else { return };
    let open = Open::new(service.bounds.connections, &listener);
    service.measured.listens(protocol, &open);
    let (service, closing) = (Arc::clone(service), group.closing().clone());
    let told = (full, closing.notice());
    let serve = move |client: Client, place: Place| {
        let (session, notice) = (session(Arc::clone(&service), &client), closing.notice());
        let patience = Patience {
            idle: service.bounds.idle_time,
            request: service.bounds.request_time,
        };
        async move {
            let mut place = place;
            // A connection that breaks is over: there is nobody to tell.
            let _ = match client {
                Client::Tcp(stream) => connection::serve(stream, session, patience, notice).await,
                Client::Tls(stream, tls) => {
                    tls.then(stream, &mut place, |stream| {
                        connection::serve(stream, session, patience, notice)
                    })
                    .await
                }
                Client::Unix(stream) => connection::serve(stream, session, patience, notice).await,
            };
        }
    };
    group.spawn(Arc::clone(&open), take(listener, open, told, serve));
}

fn serve_grpc<B: Store>(group: &mut Group, listener: Option<Listener>, service: &Arc<Service<B>>) {
    let Some(listener) = listener else { return };
    let open = Open::new(service.bounds.connections, &listener);
    service.measured.listens(Protocol::Grpc, &open);
    let (service, closing) = (Arc::clone(service), group.closing().clone());
    let told = (&b""[..], closing.notice());
    let serve = move |client, place: Place| {
        let (service, notice) = (Arc::clone(&service), closing.notice());
        async move {
            let mut place = place;
            let _ = match client {
                Client::Tcp(stream) => rls::serve(stream, service, notice).await,
                Client::Tls(stream, tls) => {
                    tls.then(stream, &mut place, |stream| {
                        rls::serve(stream, service, notice)
                    })
                    .await
                }
                Client::Unix(stream) => rls::serve(stream, service, notice).await,
            };
        }
    };
    group.spawn(Arc::clone(&open), take(listener, open, told, serve));
}
