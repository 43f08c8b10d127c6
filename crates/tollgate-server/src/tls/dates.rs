//! Until when a certificate, or a list of revoked ones, holds: the one thing of both that the service reads itself.
//!
//! Whether they are right otherwise is for rustls to say. What has another form than RFC 5280 gives it has no date.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Elements of DER, one behind the other.
struct Elements<'a>(&'a [u8]);

/// When a certificate ends, in seconds of the Unix epoch.
pub(super) fn of_certificate(der: &[u8]) -> Option<i64> {
    let mut body = signed(der)?;
    body.skip(VERSION);
    // Its serial number, how it is signed, and by whom.
    body.take(INTEGER)?;
    body.take(SEQUENCE)?;
    body.take(SEQUENCE)?;
    let mut validity = Elements(body.take(SEQUENCE)?);
    validity.time()?;
    validity.time()
}

/// When the next list was to come, in seconds of the Unix epoch.
pub(super) fn of_list(der: &[u8]) -> Option<i64> {
    let mut body = signed(der)?;
    body.skip(INTEGER);
    body.take(SEQUENCE)?;
    body.take(SEQUENCE)?;
    body.time()?;
    body.time()
}

/// What is signed, of something that is.
fn signed(der: &[u8]) -> Option<Elements<'_>> {
    let mut whole = Elements(Elements(der).take(SEQUENCE)?);
    whole.take(SEQUENCE).map(Elements)
}

impl<'a> Elements<'a> {
    /// The contents of the next, whatever it is, and its tag.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let length = bytes
                    .iter()
                    .fold(0, |length, byte| length << 8 | usize::from(*byte));
                (length, rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, contents))
    }

    /// The contents of the next, if it is one of these.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(own, _)| *own == tag)
            .map(|(_, contents)| contents)
    }

    /// Goes behind one of these, if one is there.
    fn skip(&mut self, tag: u8) {
        if self.0.first() == Some(&tag) {
            self.next();
        }
    }

    fn time(&mut self) -> Option<i64> {
        let (tag, text) = self.next()?;
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let year_digits = match tag {
            UTC_TIME => 2,
            GENERALIZED_TIME => 4,
            _ => return None,
        };
        let (year, rest) = text.split_at_checked(year_digits)?;
        let year: i16 = match year.parse().ok()? {
            // Two digits are of the years from 1950 on.
            year @ 0..50 if year_digits == 2 => year + 2000,
            year if year_digits == 2 => year + 1900,
            year => year,
        };
        let mut pairs = rest.as_bytes().chunks(2);
        let mut next = || -> Option<i8> {
            let pair = std::str::from_utf8(pairs.next()?).ok()?;
            pair.parse().ok()
        };
        let (month, day, hour, minute, second) = (next()?, next()?, next()?, next()?, next()?);
        let date = DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
        Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
    use tollgate_testkit::certificates::{Authority, Purpose};
    use tollgate_testkit::scratch::Scratch;

    use super::*;

    /// 2000-12-31 and 2999-12-31, the second of which takes four digits.
    const DATES: [i64; 2] = [978_220_800, 32_503_593_600];

    #[test]
    fn dates_are_found_and_nothing_else_is_taken_for_one() {
        let scratch = Scratch::new("dates");
        let authority = Authority::new(scratch.folder(), "authority");
        for (purpose, date) in [
            (Purpose::ExpiredServer, DATES[0]),
            (Purpose::LastingServer, DATES[1]),
        ] {
            let pair = authority.issue("server", purpose);
            let der = CertificateDer::from_pem_file(&pair.certificate).unwrap();
            assert_eq!(of_certificate(&der), Some(date));
            // Cut anywhere, it has no date: the outermost length tells.
            for length in 0..der.len() {
                assert_eq!(of_certificate(&der[..length]), None, "{length}");
            }
        }
        let list = CertificateRevocationListDer::from_pem_file(authority.revoked(&[])).unwrap();
        assert_eq!(of_list(&list), Some(DATES[1]));
        assert_eq!(of_certificate(&list), None);
        assert_eq!(of_list(b""), None);
    }
}
