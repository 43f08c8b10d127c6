//! A table of what proxies, clients and attackers send, and the client address that it means.

use super::*;

/// The trusted proxies in a row of the table.
#[derive(Clone, Copy, Debug)]
enum By {
    Nobody,
    /// 10.0.0.0/8, 127.0.0.1 and fd00::/8.
    Proxies,
    Hops(usize),
}

const FOR: ForwardedField = ForwardedField::XForwardedFor;
const FORWARDED: ForwardedField = ForwardedField::Forwarded;

fn real_ip() -> ForwardedField {
    ForwardedField::Single("X-Real-IP".into())
}

fn trust(by: By, field: ForwardedField) -> Trust {
    let network = |text: &str| text.parse().expect("a range");
    let trust = match by {
        By::Nobody => Trust::none(),
        By::Proxies => Trust::proxies(["10.0.0.0/8", "127.0.0.1", "fd00::/8"].map(network)),
        By::Hops(count) => Trust::proxy_count(NonZeroUsize::new(count).expect("some")),
    };
    trust.with_field(field)
}

fn client(by: By, field: ForwardedField, peer: &str, lines: &[&str]) -> (String, ForwardedBy) {
    let lines = lines.iter().map(|line| line.as_bytes());
    let Client {
        address,
        forwarded_by: told,
    } = trust(by, field).client(peer.parse().ok(), lines);
    (address.map(|one| one.to_string()).unwrap_or_default(), told)
}

/// The trusted proxies and their field, the connection, the values of the field, and the expected client.
type Row<'a> = (
    By,
    ForwardedField,
    &'a str,
    &'a [&'a str],
    &'a str,
    ForwardedBy,
);

#[track_caller]
fn check(rows: &[Row<'_>]) {
    for (by, field, peer, lines, expected, told) in rows {
        let found = client(*by, field.clone(), peer, lines);
        assert_eq!(
            found,
            ((*expected).to_owned(), *told),
            "{by:?} {field} from {peer}: {lines:?}"
        );
    }
}

#[test]
#[rustfmt::skip]
fn by_default_the_connection_counts_and_nothing_else() {
    use ForwardedBy::{Untrusted, Nothing};
    check(&[
        (By::Nobody, FOR, "192.0.2.1", &[], "192.0.2.1", Nothing),
        (By::Nobody, FOR, "192.0.2.1", &["1.1.1.1"], "192.0.2.1", Untrusted),
        (By::Nobody, FORWARDED, "127.0.0.1", &["for=1.1.1.1"], "127.0.0.1", Untrusted),
        (By::Nobody, real_ip(), "127.0.0.1", &["1.1.1.1"], "127.0.0.1", Untrusted),
        (By::Nobody, FOR, "::ffff:192.0.2.1", &[], "192.0.2.1", Nothing),
        (By::Nobody, FOR, "a UNIX socket", &["1.1.1.1"], "", Untrusted),
        (By::Proxies, FOR, "192.0.2.1", &["1.1.1.1"], "192.0.2.1", Untrusted),
        (By::Proxies, real_ip(), "192.0.2.1", &["1.1.1.1"], "192.0.2.1", Untrusted),
        (By::Proxies, FOR, "a UNIX socket", &["1.1.1.1"], "", Untrusted),
    ]);
}

#[test]
#[rustfmt::skip]
fn proxies_by_address_vouch_for_what_is_right_of_the_client() {
    use ForwardedBy::{Trusted, Nothing, Unreadable};
    check(&[
        (By::Proxies, FOR, "10.0.0.1", &[], "10.0.0.1", Nothing),
        (By::Proxies, FOR, "10.0.0.1", &[""], "10.0.0.1", Nothing),
        (By::Proxies, FOR, "10.0.0.1", &[" , ,"], "10.0.0.1", Nothing),
        (By::Proxies, FOR, "10.0.0.1", &["198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "::ffff:10.0.0.1", &["198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "fd12::1", &["2001:db8::9"], "2001:db8::9", Trusted),
        // What the client itself writes is to the left of its address.
        (By::Proxies, FOR, "10.0.0.1", &["1.1.1.1, 198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["127.0.0.1, 198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["10.0.0.9, 198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["\u{0}\"<script>, 198.51.100.4"], "198.51.100.4", Trusted),
        // Two proxies, in one value or in two.
        (By::Proxies, FOR, "10.0.0.1", &["1.1.1.1, 198.51.100.4, 10.0.0.2"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["1.1.1.1, 198.51.100.4", "10.0.0.2"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["198.51.100.4", "10.0.0.2,10.0.0.3"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["1.1.1.1", "198.51.100.4"], "198.51.100.4", Trusted),
        // Ports, brackets, spaces and empty elements.
        (By::Proxies, FOR, "10.0.0.1", &["198.51.100.4:51234"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["[2001:db8::9]:443, 10.0.0.2:80"], "2001:db8::9", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["\t198.51.100.4 ,, 10.0.0.2 ,"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["::ffff:198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FOR, "10.0.0.1", &["198.51.100.4, ::ffff:10.0.0.2"], "198.51.100.4", Trusted),
        // The proxy itself is the client.
        (By::Proxies, FOR, "10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3", Trusted),
        // An unreadable entry ends the walk at the last proxy.
        (By::Proxies, FOR, "10.0.0.1", &["198.51.100.4, unknown"], "10.0.0.1", Unreadable),
        (By::Proxies, FOR, "10.0.0.1", &["198.51.100.4, _hidden, 10.0.0.2"], "10.0.0.2", Unreadable),
        (By::Proxies, FOR, "10.0.0.1", &["fe80::1%eth0"], "10.0.0.1", Unreadable),
        (By::Proxies, FOR, "10.0.0.1", &["198.51.100.4 198.51.100.5"], "10.0.0.1", Unreadable),
        (By::Proxies, FOR, "10.0.0.1", &["\"198.51.100.4, 10.0.0.2\""], "10.0.0.1", Unreadable),
        (By::Proxies, FOR, "10.0.0.1", &["for=198.51.100.4"], "10.0.0.1", Unreadable),
    ]);
}

#[test]
#[rustfmt::skip]
fn proxies_by_number_count_the_one_that_connects() {
    use ForwardedBy::{Trusted, Nothing, Unreadable};
    check(&[
        (By::Hops(1), FOR, "10.0.0.1", &[], "10.0.0.1", Nothing),
        (By::Hops(1), FOR, "10.0.0.1", &["1.1.1.1, 198.51.100.4"], "198.51.100.4", Trusted),
        (By::Hops(2), FOR, "10.0.0.1", &["1.1.1.1, 198.51.100.4, 203.0.113.1"], "198.51.100.4", Trusted),
        (By::Hops(2), FOR, "10.0.0.1", &["1.1.1.1", "198.51.100.4", "203.0.113.1"], "198.51.100.4", Trusted),
        // Fewer hops than proxies: the request didn't pass all of them, so the field isn't trusted.
        (By::Hops(2), FOR, "192.0.2.1", &["1.1.1.1"], "192.0.2.1", Unreadable),
        (By::Hops(3), FOR, "192.0.2.1", &["1.1.1.1, 2.2.2.2"], "192.0.2.1", Unreadable),
        (By::Hops(1), FOR, "192.0.2.1", &[","], "192.0.2.1", Unreadable),
        (By::Hops(2), FOR, "10.0.0.1", &["1.1.1.1, unknown, 203.0.113.1"], "203.0.113.1", Unreadable),
        (By::Hops(2), FOR, "10.0.0.1", &["1.1.1.1, 198.51.100.4, unknown"], "10.0.0.1", Unreadable),
        (By::Hops(1), FOR, "a UNIX socket", &["198.51.100.4"], "198.51.100.4", Trusted),
        (By::Hops(usize::MAX), FOR, "192.0.2.1", &["1.1.1.1"], "192.0.2.1", Unreadable),
    ]);
}

#[test]
#[rustfmt::skip]
fn forwarded_is_read_by_its_own_rules() {
    use ForwardedBy::{Trusted, Unreadable};
    check(&[
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FORWARDED, "10.0.0.1", &["For=\"198.51.100.4:80\";proto=https"], "198.51.100.4", Trusted),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=\"[2001:db8::9]:4711\", for=10.0.0.2"], "2001:db8::9", Trusted),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=1.1.1.1, for=198.51.100.4;by=10.0.0.1"], "198.51.100.4", Trusted),
        // Commas and semicolons in quotes separate nothing.
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=198.51.100.4;host=\"a, for=1.1.1.1\""], "198.51.100.4", Trusted),
        (By::Proxies, FORWARDED, "10.0.0.1", &["host=\"a;for=1.1.1.1\";for=198.51.100.4"], "198.51.100.4", Trusted),
        // A client's quote that never ends doesn't swallow what a proxy appends.
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=\"1.1.1.1, for=198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=\"\\, for=198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=\"x", "for=198.51.100.4"], "198.51.100.4", Trusted),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=_hidden, for=10.0.0.2"], "10.0.0.2", Unreadable),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=unknown"], "10.0.0.1", Unreadable),
        (By::Proxies, FORWARDED, "10.0.0.1", &["proto=https"], "10.0.0.1", Unreadable),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=1.1.1.1;for=198.51.100.4"], "10.0.0.1", Unreadable),
        (By::Proxies, FORWARDED, "10.0.0.1", &["for=2001:db8::9"], "10.0.0.1", Unreadable),
        (By::Proxies, FORWARDED, "10.0.0.1", &["198.51.100.4"], "10.0.0.1", Unreadable),
        (By::Hops(1), FORWARDED, "10.0.0.1", &["for=1.1.1.1, for=198.51.100.4"], "198.51.100.4", Trusted),
    ]);
}

#[test]
#[rustfmt::skip]
fn a_single_address_is_believed_if_there_is_one() {
    use ForwardedBy::{Trusted, Unreadable};
    check(&[
        (By::Proxies, real_ip(), "10.0.0.1", &["198.51.100.4"], "198.51.100.4", Trusted),
        (By::Hops(1), real_ip(), "192.0.2.1", &["2001:db8::9"], "2001:db8::9", Trusted),
        (By::Proxies, real_ip(), "10.0.0.1", &["1.1.1.1", "198.51.100.4"], "10.0.0.1", Unreadable),
        (By::Proxies, real_ip(), "10.0.0.1", &["1.1.1.1, 198.51.100.4"], "10.0.0.1", Unreadable),
        (By::Proxies, real_ip(), "10.0.0.1", &["me"], "10.0.0.1", Unreadable),
        (By::Proxies, real_ip(), "10.0.0.1", &[""], "10.0.0.1", Unreadable),
    ]);
}

#[test]
fn thousands_of_hops_are_not_walked() {
    let own = vec!["10.0.0.2"; 5_000].join(", ");
    let found = client(By::Proxies, FOR, "10.0.0.1", &[&own]);
    assert_eq!(found, ("10.0.0.2".to_owned(), ForwardedBy::Unreadable));
    let long = format!("{}, 198.51.100.4", "9".repeat(65_536));
    let found = client(By::Proxies, FOR, "10.0.0.1", &[&long]);
    assert_eq!(found, ("198.51.100.4".to_owned(), ForwardedBy::Trusted));
    let quotes = format!("{}, for=198.51.100.4", "\"\\".repeat(32_768));
    let found = client(By::Proxies, FORWARDED, "10.0.0.1", &[&quotes]);
    assert_eq!(found, ("198.51.100.4".to_owned(), ForwardedBy::Trusted));
}

/// A client can't change its address by anything that it writes to the left of its proxies' entries.
#[test]
fn nothing_that_a_client_writes_changes_who_it_is() {
    let parts = [
        "10.0.0.9",
        "127.0.0.1",
        ",",
        ";",
        "\"",
        "\\",
        "for=",
        "=",
        " ",
        "[",
        "]",
        ":",
        "unknown",
        "_x",
        "%",
        "\t",
        "é",
    ];
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..20_000 {
        let mut forged = String::new();
        for _ in 0..round % 12 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let part = usize::try_from(seed >> 33).expect("31 bits") % parts.len();
            forged.push_str(parts[part]);
        }
        let plain = format!("{forged}, 198.51.100.4, 10.0.0.2");
        let named = format!("{forged}, for=198.51.100.4, for=10.0.0.2;proto=\"a,b\"");
        for (by, field, line) in [
            (By::Proxies, FOR, &plain),
            (By::Hops(2), FOR, &plain),
            (By::Proxies, FORWARDED, &named),
            (By::Hops(2), FORWARDED, &named),
        ] {
            let found = client(by, field, "10.0.0.1", &[line]);
            assert_eq!(
                found,
                ("198.51.100.4".to_owned(), ForwardedBy::Trusted),
                "{line}"
            );
        }
    }
}
