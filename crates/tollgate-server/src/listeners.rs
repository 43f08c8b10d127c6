//! All listeners of a service: bound before anything is served, and each with sessions that speak its protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::connection::{self, Patience, Speaks};
use crate::descriptors::Descriptors;
use crate::drain::{Closing, Group};
use crate::listen::{Address, Client, Listener, Open, Peer, Place, Shared, Taking, take};
use crate::log::Level;
use crate::measured::Protocol;
use crate::protocol_errors::ErrorSource;
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
    pub(crate) fn serve<B: Store>(
        self,
        service: &Arc<Service<B>>,
        descriptors: Descriptors,
    ) -> (Group, Group) {
        let public = Room {
            shared: Shared::new(descriptors.for_clients()),
            most: service.bounds.connections,
        };
        let private = Room {
            shared: Shared::new(usize::MAX),
            most: descriptors.for_operators(),
        };
        Self::warn(service, descriptors);
        let mut clients = Group::new(service.closing.clone());
        let mut operators = Group::new(Closing::default());
        let ids = AtomicU64::new(1);
        let full = (Protocol::Resp, RESP_FULL, &public);
        serve_bytes(
            &mut clients,
            self.resp,
            service,
            full,
            move |service, peer, errors| {
                resp::Session::new(service, ids.fetch_add(1, Ordering::Relaxed), (peer, errors))
            },
        );
        let full = (Protocol::Http, HTTP_FULL, &public);
        serve_bytes(
            &mut clients,
            self.http,
            service,
            full,
            |service, peer, errors| http::Session::new(service, http::Door::Public, (peer, errors)),
        );
        serve_grpc(&mut clients, self.grpc, service, &public);
        let full = (Protocol::Admin, HTTP_FULL, &private);
        serve_bytes(
            &mut operators,
            self.admin,
            service,
            full,
            |service, peer, errors| {
                http::Session::new(service, http::Door::Admin(peer), (peer, errors))
            },
        );
        let full = (Protocol::Metrics, HTTP_FULL, &private);
        serve_bytes(
            &mut operators,
            self.metrics,
            service,
            full,
            |service, peer, errors| {
                http::Session::new(service, http::Door::Metrics, (peer, errors))
            },
        );
        (clients, operators)
    }
}

impl Listeners {
    /// Says so if not even one listener may have as many connections as the settings allow: they share what there is.
    fn warn<B: Store>(service: &Service<B>, descriptors: Descriptors) {
        let wanted = service.bounds.connections;
        let granted = descriptors.for_clients();
        if wanted > granted {
            service.log.say(
                Level::Warn,
                "fewer file descriptors than --max-connections needs: raise the limit (LimitNOFILE, ulimit -n), or lower --max-connections",
                &[
                    ("descriptors", &descriptors.limit),
                    ("reserved", &descriptors.reserve()),
                    ("for_clients", &granted),
                    ("wanted", &wanted),
                ],
            );
        }
    }
}

/// How many connections a listener may have.
struct Room {
    /// With others together.
    shared: Arc<Shared>,
    most: usize,
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
    (protocol, full, room): (Protocol, &'static [u8], &Room),
    session: impl Fn(Arc<Service<B>>, Peer, ErrorSource) -> P + Send + 'static,
) {
    let Some(listener) = listener else { return };
    let open = Open::new(
        room.most.min(service.bounds.connections),
        &room.shared,
        &listener,
    );
    service.measured.listens(protocol, &open);
    let (service, closing) = (Arc::clone(service), group.closing().clone());
    let taking = Taking {
        open: Arc::clone(&open),
        full,
        notice: closing.notice(),
        protocol,
        errors: Arc::clone(&service.errors),
    };
    let serve = move |client: Client, place: Place| {
        let (peer, notice) = (client.peer(), closing.notice());
        let errors = service.errors.source(protocol, peer);
        let session = session(Arc::clone(&service), peer, errors);
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
                        let mut session = session;
                        let shown = stream.get_ref().1.peer_certificates();
                        if let Some(leaf) = shown.and_then(<[_]>::first) {
                            session.shown(leaf);
                        }
                        connection::serve(stream, session, patience, notice)
                    })
                    .await
                }
                Client::Unix(stream) => connection::serve(stream, session, patience, notice).await,
            };
        }
    };
    group.spawn(open, take(listener, taking, serve));
}

fn serve_grpc<B: Store>(
    group: &mut Group,
    listener: Option<Listener>,
    service: &Arc<Service<B>>,
    room: &Room,
) {
    let Some(listener) = listener else { return };
    let open = Open::new(
        room.most.min(service.bounds.connections),
        &room.shared,
        &listener,
    );
    service.measured.listens(Protocol::Grpc, &open);
    let (service, closing) = (Arc::clone(service), group.closing().clone());
    let taking = Taking {
        open: Arc::clone(&open),
        full: b"",
        notice: closing.notice(),
        protocol: Protocol::Grpc,
        errors: Arc::clone(&service.errors),
    };
    let serve = move |client: Client, place: Place| {
        let (service, notice) = (Arc::clone(&service), closing.notice());
        let errors = service.errors.source(Protocol::Grpc, client.peer());
        async move {
            let mut place = place;
            let _ = match client {
                Client::Tcp(stream) => rls::serve(stream, service, errors, notice).await,
                Client::Tls(stream, tls) => {
                    tls.then(stream, &mut place, |stream| {
                        rls::serve(stream, service, errors, notice)
                    })
                    .await
                }
                Client::Unix(stream) => rls::serve(stream, service, errors, notice).await,
            };
        }
    };
    group.spawn(open, take(listener, taking, serve));
}
