//! Authorities and certificates for one test, as PEM files: valid ones, and those that must be rejected.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

/// The names of test servers.
const LOCAL: [&str; 2] = ["127.0.0.1", "localhost"];

/// A certificate authority, which signs certificates and revokes them.
///
/// ```
/// use tollgate_testkit::certificates::Authority;
/// use tollgate_testkit::temp_folder::TempFolder;
///
/// let scratch = TempFolder::new("authority");
/// let authority = Authority::new(scratch.folder(), "one");
/// let server = authority.server("server");
/// let text = std::fs::read_to_string(&server.certificate)?;
/// assert!(text.starts_with("-----BEGIN CERTIFICATE-----"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Authority {
    /// The authority's own certificate, which clients and servers must trust.
    pub certificate: PathBuf,
    folder: PathBuf,
    name: String,
    issuer: Issuer<'static, KeyPair>,
    serials: AtomicU64,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct CertificatePair {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
    serial: u64,
}

/// The purpose of a certificate, and its defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server on this machine.
    Server,
    /// A server on this machine, with a name that no client uses.
    OtherName,
    /// A server on this machine, expired at the end of the year 2000.
    ExpiredServer,
    /// A server on this machine, valid until the end of the year 2999.
    LastingServer,
    /// A client.
    Client,
    /// A client, expired at the end of the year 2000.
    ExpiredClient,
}

impl Authority {
    /// An authority with this name, whose files are in this folder.
    ///
    /// # Panics
    /// If it can't be made. The same holds for all functions here.
    pub fn new(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut own = certificate_params(&format!("Tollgate's test authority {name}"), &[]);
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = folder.join(format!("{name}.pem"));
        let signed = own.self_signed(&key).expect("a certificate");
        fs::write(&certificate, signed.pem()).expect("a file");
        Self {
            certificate,
            folder: folder.to_owned(),
            name: name.to_owned(),
            issuer: Issuer::new(own, key),
            serials: AtomicU64::new(1),
        }
    }

    /// A certificate for a server on this machine.
    pub fn server(&self, name: &str) -> CertificatePair {
        self.issue_certificate(name, Purpose::Server)
    }

    /// A certificate for a client.
    pub fn client(&self, name: &str) -> CertificatePair {
        self.issue_certificate(name, Purpose::Client)
    }

    /// A certificate in files with this name.
    pub fn issue_certificate(&self, name: &str, purpose: Purpose) -> CertificatePair {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let key = KeyPair::generate().expect("a key");
        let mut params = purpose.params(name);
        params.serial_number = Some(SerialNumber::from(serial));
        let signed = params.signed_by(&key, &self.issuer);
        let text = signed.expect("a certificate").pem();
        pair(&self.folder, name, serial, (&text, &key))
    }

    /// A revocation list of these certificates. Each call makes a file of its own.
    pub fn revocation_list(&self, pairs: &[&CertificatePair]) -> PathBuf {
        let number = self.serials.fetch_add(1, Ordering::Relaxed);
        let revoked = |pair: &&CertificatePair| RevokedCertParams {
            serial_number: SerialNumber::from(pair.serial),
            revocation_time: date_time_ymd(2001, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2001, 1, 1),
            next_update: date_time_ymd(2999, 12, 31),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: pairs.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let signed = params.signed_by(&self.issuer).expect("a list");
        let path = self.folder.join(format!("{}-{number}.crl", self.name));
        fs::write(&path, signed.pem().expect("PEM")).expect("a file");
        path
    }
}

/// A certificate that no authority signed.
///
/// # Panics
/// If it can't be made.
pub fn self_signed(folder: &Path, name: &str, purpose: Purpose) -> CertificatePair {
    let key = KeyPair::generate().expect("a key");
    let signed = purpose.params(name).self_signed(&key);
    pair(
        folder,
        name,
        1,
        (&signed.expect("a certificate").pem(), &key),
    )
}

fn pair(folder: &Path, name: &str, serial: u64, (text, key): (&str, &KeyPair)) -> CertificatePair {
    let made = CertificatePair {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
        serial,
    };
    fs::write(&made.certificate, text).expect("a file");
    fs::write(&made.key, key.serialize_pem()).expect("a file");
    made
}

impl Purpose {
    fn params(self, name: &str) -> CertificateParams {
        let (addresses, usage) = match self {
            Self::Server | Self::ExpiredServer | Self::LastingServer => {
                (&LOCAL[..], ExtendedKeyUsagePurpose::ServerAuth)
            }
            Self::OtherName => (&["other.example"][..], ExtendedKeyUsagePurpose::ServerAuth),
            Self::Client | Self::ExpiredClient => (&[][..], ExtendedKeyUsagePurpose::ClientAuth),
        };
        let mut params = certificate_params(name, addresses);
        params.extended_key_usages = vec![usage];
        match self {
            Self::ExpiredServer | Self::ExpiredClient => {
                params.not_before = date_time_ymd(2000, 1, 1);
                params.not_after = date_time_ymd(2000, 12, 31);
            }
            Self::LastingServer => params.not_after = date_time_ymd(2999, 12, 31),
            _ => {}
        }
        params
    }
}

fn certificate_params(name: &str, addresses: &[&str]) -> CertificateParams {
    let addresses: Vec<String> = addresses.iter().map(|&one| one.to_owned()).collect();
    let mut params = CertificateParams::new(addresses).expect("names");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
