//! Certificates for one test: an authority, the server's and a client's.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

/// Where the certificates of a server with [`tls`](super::Builder::tls) are, as PEM files.
///
/// ```
/// use tollgate_testkit::redis::Server;
///
/// let server = Server::builder().tls().start();
/// let authority = std::fs::read_to_string(&server.certificates().authority)?;
/// assert!(authority.starts_with("-----BEGIN CERTIFICATE-----"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority that signed the others: what a client must trust.
    pub authority: PathBuf,
    /// The server's, for `127.0.0.1` and `localhost`.
    pub server: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// A client's.
    pub client: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes them in a folder.
    pub(super) fn make(folder: &Path) -> Self {
        let made = Self {
            authority: folder.join("authority.pem"),
            server: folder.join("server.pem"),
            server_key: folder.join("server.key"),
            client: folder.join("client.pem"),
            client_key: folder.join("client.key"),
        };
        made.write().expect("certificates for the test");
        made
    }

    fn write(&self) -> Result<(), Box<dyn std::error::Error>> {
        let key = KeyPair::generate()?;
        let mut authority = named("Tollgate's test authority", &[])?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(&self.authority, authority.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(authority, key);

        let mut server = named("server", &["127.0.0.1", "localhost"])?;
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        fs::write(&self.server, server.signed_by(&key, &issuer)?.pem())?;
        fs::write(&self.server_key, key.serialize_pem())?;

        let mut client = named("client", &[])?;
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        fs::write(&self.client, client.signed_by(&key, &issuer)?.pem())?;
        fs::write(&self.client_key, key.serialize_pem())?;
        Ok(())
    }
}

fn named(name: &str, addresses: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let addresses: Vec<String> = addresses.iter().map(|&one| one.to_owned()).collect();
    let mut params = CertificateParams::new(addresses)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
