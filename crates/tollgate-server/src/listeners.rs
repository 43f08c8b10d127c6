//! All listeners of a service, each with the sessions of its protocol. They are bound before the first client is
//! served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::{Address, Peer, Protocol};
use crate::connection::ServeConnection;
use crate::connection_limit::{
    ConnectionPermit, DescriptorLimit, ListenerConnections, SharedConnections,
};
use crate::decision_service::CounterStore;
use crate::drain::{ListenerGroup, ShutdownSignal};
use crate::listener::{AcceptSettings, Client, Listener, accept_clients};
use crate::protocol_errors::ErrorSource;
use crate::service::Service;
use crate::settings::{Addresses, Settings};
use crate::start_error::StartError;
use crate::tls::{Certificates, Handshake};
use crate::{http, resp, rls};

/// The answers to a client beyond the connection limit.
const RESP_FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const HTTP_FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\nretry-after: 1\r\n\r\n";

/// All bound listeners; `None` for each that is disabled.
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
        let time = settings.bounds.request_timeout;
        let tls = |on| certificates.and_then(|own| own.on(on, time, &settings.log));
        Ok(Self {
            http: bind("HTTP", &settings.http, tls(Protocol::Http)).await?,
            grpc: bind("gRPC", &settings.grpc, tls(Protocol::Grpc)).await?,
            resp: bind("RESP", &settings.resp, tls(Protocol::Resp)).await?,
            admin: bind("admin", &settings.admin, tls(Protocol::Admin)).await?,
            metrics: bind("metrics", &settings.metrics, tls(Protocol::Metrics)).await?,
        })
    }

    /// The addresses of the listeners.
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

    /// Starts to serve: the first group has the clients' listeners, the second the operators'.
    pub(crate) fn serve<B: CounterStore>(
        self,
        service: &Arc<Service<B>>,
        descriptors: DescriptorLimit,
    ) -> (ListenerGroup, ListenerGroup) {
        use Protocol::{Admin, Grpc, Http, Metrics, Resp};
        let public = ConnectionBounds {
            shared: SharedConnections::new(descriptors.for_clients()),
            most: service.decider.bounds.max_connections,
        };
        let private = ConnectionBounds {
            shared: SharedConnections::new(usize::MAX),
            most: descriptors.for_operators(),
        };
        warn_of_few_descriptors(service, descriptors);
        let mut clients = ListenerGroup::new(service.closing.clone());
        let mut operators = ListenerGroup::new(ShutdownSignal::default());
        let ids = AtomicU64::new(1);
        let resp = move |service, peer, errors| {
            resp::RespSession::new(service, ids.fetch_add(1, Ordering::Relaxed), peer, errors)
        };
        let http = |protocol| {
            move |service, peer, errors| http::HttpSession::new(service, protocol, peer, errors)
        };
        let waiting = Arc::<rls::IncompleteCalls>::default();
        let grpc = move |service, _, errors| rls::GrpcSession::new(service, &waiting, errors);
        let on = |protocol, room| ListenerContext {
            protocol,
            room,
            service,
        };
        serve(&mut clients, self.resp, &on(Resp, &public), resp);
        serve(&mut clients, self.http, &on(Http, &public), http(Http));
        serve(&mut clients, self.grpc, &on(Grpc, &public), grpc);
        let (admin, metrics) = (on(Admin, &private), on(Metrics, &private));
        serve(&mut operators, self.admin, &admin, http(Admin));
        serve(&mut operators, self.metrics, &metrics, http(Metrics));
        (clients, operators)
    }
}

/// Warns if a listener may not have the configured number of connections: all clients' listeners share the file
/// descriptors.
fn warn_of_few_descriptors<B: CounterStore>(service: &Service<B>, descriptors: DescriptorLimit) {
    let wanted = service.decider.bounds.max_connections;
    let granted = descriptors.for_clients();
    if wanted > granted {
        service.monitor.log.warn("fewer file descriptors than --max-connections needs: raise the limit (LimitNOFILE, ulimit -n), or lower --max-connections",
            &[
                ("descriptors", &descriptors.limit),
                ("reserved", &descriptors.reserve()),
                ("for_clients", &granted),
                ("wanted", &wanted),
            ],
        );
    }
}

/// The bounds on a listener's connections.
struct ConnectionBounds {
    /// Shared with the other listeners of its group.
    shared: Arc<SharedConnections>,
    most: usize,
}

/// A listener's protocol, connection bounds and service.
struct ListenerContext<'a, B: CounterStore> {
    protocol: Protocol,
    room: &'a ConnectionBounds,
    service: &'a Arc<Service<B>>,
}

impl<B: CounterStore> ListenerContext<'_, B> {
    /// The settings by which the listener accepts clients. Its connections are counted from now on.
    fn accept_settings(&self, listener: &Listener, closing: &ShutdownSignal) -> AcceptSettings {
        let monitor = &self.service.monitor;
        let most = self
            .room
            .most
            .min(self.service.decider.bounds.max_connections);
        let open = ListenerConnections::new(most, &self.room.shared, listener.connection_start());
        monitor.measured.register_listener(self.protocol, &open);
        AcceptSettings {
            open,
            full_answer: match self.protocol {
                Protocol::Grpc => b"",
                Protocol::Resp => RESP_FULL,
                _ => HTTP_FULL,
            },
            notice: closing.notice(),
            protocol: self.protocol,
            errors: Arc::clone(&monitor.errors),
        }
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

/// Serves the clients of a listener, each by a session of its own.
fn serve<B: CounterStore, T: ServeConnection>(
    group: &mut ListenerGroup,
    listener: Option<Listener>,
    on: &ListenerContext<'_, B>,
    session: impl Fn(Arc<Service<B>>, Peer, ErrorSource) -> T + Send + 'static,
) {
    let Some(listener) = listener else { return };
    let (service, closing, protocol) = (Arc::clone(on.service), group.closing(), on.protocol);
    let taking = on.accept_settings(&listener, &closing);
    let open = Arc::clone(&taking.open);
    let serve = move |client: Client, mut place: ConnectionPermit| {
        let (peer, notice) = (client.peer(), closing.notice());
        let errors = service.monitor.errors.source(protocol, peer);
        let mut session = session(Arc::clone(&service), peer, errors);
        async move {
            // An I/O error means that the client has disconnected: there is nobody to report it to.
            let _ = match client {
                Client::Tcp(stream) => session.serve(stream, notice).await,
                Client::Tls(stream, tls) => {
                    tls.serve_after(stream, &mut place, |stream| {
                        let shown = stream.get_ref().1.peer_certificates();
                        if let Some(leaf) = shown.and_then(<[_]>::first) {
                            session.client_certificate(leaf);
                        }
                        session.serve(stream, notice)
                    })
                    .await
                }
                Client::Unix(stream) => session.serve(stream, notice).await,
            };
        }
    };
    group.spawn(open, accept_clients(listener, taking, serve));
}
