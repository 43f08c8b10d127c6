//! The expiry dates of certificates and revocation lists: all that the service itself reads of them.
//!
//! rustls validates the rest. An unreadable certificate has no date.

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

/// When a certificate expires, in seconds of the Unix epoch.
pub(super) fn of_certificate(der: &[u8]) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

/// The next update of a revocation list, in seconds of the Unix epoch.
pub(super) fn of_list(der: &[u8]) -> Option<i64> {
    let (_, list) = CertificateRevocationList::from_der(der).ok()?;
    Some(list.next_update()?.timestamp())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
    use tollgate_testkit::certificates::{Authority, Purpose};
    use tollgate_testkit::temp_folder::TempFolder;

    use super::*;

    /// 2000-12-31 and 2999-12-31, the second of which takes four digits.
    const DATES: [i64; 2] = [978_220_800, 32_503_593_600];

    #[test]
    fn dates_are_found_and_nothing_else_is_taken_for_one() {
        let scratch = TempFolder::new("dates");
        let authority = Authority::new(scratch.folder(), "authority");
        for (purpose, date) in [
            (Purpose::ExpiredServer, DATES[0]),
            (Purpose::LastingServer, DATES[1]),
        ] {
            let pair = authority.issue_certificate("server", purpose);
            let der = CertificateDer::from_pem_file(&pair.certificate).unwrap();
            assert_eq!(of_certificate(&der), Some(date));
            // Cut at any byte it has no date, as the outermost length doesn't match.
            for length in 0..der.len() {
                assert_eq!(of_certificate(&der[..length]), None, "{length}");
            }
        }
        let list =
            CertificateRevocationListDer::from_pem_file(authority.revocation_list(&[])).unwrap();
        assert_eq!(of_list(&list), Some(DATES[1]));
        assert_eq!(of_certificate(&list), None);
        assert_eq!(of_list(b""), None);
    }
}
