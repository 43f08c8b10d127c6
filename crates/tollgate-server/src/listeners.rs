//! All listeners of a service: bound before anything is served, and each with sessions that speak its protocol.

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

/// Says so if not even one listener may have as many connections as the settings allow: they share what there is.
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

/// How many connections a listener may have.
struct ConnectionBounds {
    /// With others together.
    shared: Arc<SharedConnections>,
    most: usize,
}

/// Which listener serves clients of a service.
struct ListenerContext<'a, B: CounterStore> {
    protocol: Protocol,
    room: &'a ConnectionBounds,
    service: &'a Arc<Service<B>>,
}

impl<B: CounterStore> ListenerContext<'_, B> {
    /// What the listener needs to take clients, whose connections are counted from now on.
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

/// Serves those who come by this listener, each by a session of its own.
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
            // Whoever broke it off isn't told.
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
