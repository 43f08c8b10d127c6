//! Clients that speak TLS on each listener, and the certificates of both sides.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_server::{Address, Protocol, Settings, Tls};
use tollgate_testkit::certificates::{Authority, CertificatePair};

use crate::kit::Running;

pub(crate) const POLICY: &str = "limits: [{name: per-user, key: user, rate: 10/s}]";

/// How a connection of HTTP/2 begins, with an empty frame of settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What is spoken on a listener: its name, a question, and how the answer ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spoken {
    pub(crate) on: Protocol,
    alpn: Option<&'static str>,
    question: &'static [u8],
    answer: &'static [u8],
}

/// All listeners that a service has.
pub(crate) const SPOKEN: [Spoken; 4] = [
    Spoken {
        on: Protocol::Http,
        alpn: Some("http/1.1"),
        question: b"GET /healthcheck HTTP/1.1\r\nhost: here\r\n\r\n",
        answer: b"\r\n\r\nOK\n",
    },
    Spoken {
        on: Protocol::Grpc,
        alpn: Some("h2"),
        // A ping, which is answered by one with its flag set.
        question: b"\0\0\x08\x06\0\0\0\0\0question",
        answer: b"\0\0\x08\x06\x01\0\0\0\0question",
    },
    Spoken {
        on: Protocol::Resp,
        alpn: None,
        question: b"PING\r\n",
        answer: b"+PONG\r\n",
    },
    Spoken {
        on: Protocol::Admin,
        alpn: Some("http/1.1"),
        question: b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n",
        answer: b"\r\n\r\nOK\n",
    },
];

/// A connection with TLS.
pub(crate) struct Secured {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
    spoken: Spoken,
}

/// Settings with certificates on every listener.
pub(crate) fn tls(pair: &CertificatePair, clients: Option<&Path>, revoked: Option<&Path>) -> Tls {
    Tls {
        certificate: pair.certificate.clone(),
        key: pair.key.clone(),
        client_ca: clients.map(Into::into),
        revocation_lists: revoked.map(Into::into),
        listeners: Protocol::ALL.to_vec(),
    }
}

/// A service that speaks TLS on every listener.
pub(crate) fn serving(tls: Tls) -> Running {
    serving_with(tls, |_| {})
}

/// The same with another change.
pub(crate) fn serving_with(tls: Tls, change: impl FnOnce(&mut Settings)) -> Running {
    Running::new(POLICY, |settings| {
        settings.tls = Some(tls);
        change(settings);
    })
}

/// The same in paused time: files are reloaded only when a test does it, and no timeout elapses.
pub(crate) fn serving_still(tls: Tls, change: impl FnOnce(&mut Settings)) -> Running {
    Running::in_still_time(POLICY, |settings| {
        settings.tls = Some(tls);
        change(settings);
    })
}

impl Spoken {
    pub(crate) fn address(&self, running: &Running) -> SocketAddr {
        let addresses = running.server.as_ref().expect("a service").addresses();
        let address = match self.on {
            Protocol::Http => &addresses.http,
            Protocol::Grpc => &addresses.grpc,
            Protocol::Resp => &addresses.resp,
            _ => &addresses.admin,
        };
        match address {
            Some(Address::Tcp(address)) => *address,
            other => panic!("{other:?} is no port"),
        }
    }

    /// Connects, by nothing but TCP.
    pub(crate) fn plain(&self, running: &Running) -> TcpStream {
        let stream = TcpStream::connect(self.address(running)).expect("a connection");
        let long = Some(Duration::from_secs(60));
        stream.set_read_timeout(long).expect("a timeout");
        stream
    }

    /// Connects; the first read or write completes the handshake.
    pub(crate) fn connect(
        &self,
        running: &Running,
        (authority, client): (&Authority, Option<&CertificatePair>),
    ) -> Secured {
        let mut config = config(authority, client);
        config.alpn_protocols = self
            .alpn
            .iter()
            .map(|name| name.as_bytes().into())
            .collect();
        let name = "localhost".try_into().expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
        Secured {
            stream: StreamOwned::new(connection, self.plain(running)),
            spoken: *self,
        }
    }
}

impl Secured {
    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self) -> Result<(), String> {
        let Spoken {
            on,
            alpn,
            question,
            answer,
        } = self.spoken;
        let is_first = self.stream.conn.is_handshaking();
        let said = if on == Protocol::Grpc && is_first {
            [PREFACE, question].concat()
        } else {
            question.to_vec()
        };
        let asked = self.stream.write_all(&said).and_then(|()| {
            let mut heard = Vec::new();
            while !heard.ends_with(answer) {
                let mut byte = [0];
                self.stream.read_exact(&mut byte)?;
                heard.extend(byte);
            }
            Ok(())
        });
        asked.map_err(|error| error.to_string())?;
        let chosen = self.stream.conn.alpn_protocol().map(<[u8]>::to_vec);
        assert_eq!(chosen, alpn.map(|name| name.as_bytes().to_vec()), "{on}");
        Ok(())
    }

    /// The service's reason to close the connection of a silent client.
    pub(crate) fn refused(mut self) -> String {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(read) => format!("{read} bytes"),
            Err(error) => error.to_string(),
        }
    }

    /// The certificate that it was shown.
    pub(crate) fn shown(&self) -> Vec<u8> {
        let shown = self.stream.conn.peer_certificates();
        shown.expect("certificates")[0].to_vec()
    }
}

fn config(authority: &Authority, client: Option<&CertificatePair>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_file(&authority.certificate).expect("a certificate");
    roots.add(trusted).expect("an authority");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let Some(pair) = client else {
        return builder.with_no_client_auth();
    };
    let own = CertificateDer::from_pem_file(&pair.certificate).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(&pair.key).expect("a key");
    builder
        .with_client_auth_cert(vec![own], key)
        .expect("a client's certificate")
}
