//! TLS on every listener: which clients are accepted and rejected, and what happens when certificates change.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tollgate_testkit::certificates::{Authority, CertificatePair, Purpose, self_signed};
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::Running;
use crate::tls_kit::{POLICY, SPOKEN, serving, serving_still, serving_with, tls};

/// The outcome of a client on any listener, by its trusted authority and its certificate.
#[track_caller]
fn check(running: &Running, client: (&Authority, Option<&CertificatePair>), refused: Option<&str>) {
    for spoken in &SPOKEN {
        let mut secured = spoken.connect(running, client);
        match refused {
            None => {
                secured.ask().expect("an answer");
                secured.ask().expect("an answer on the same connection");
            }
            Some(why) => {
                let found = secured.refused();
                assert!(found.contains(why), "{}: {found}", spoken.on);
            }
        }
    }
}

#[test]
fn clients_refuse_a_certificate_that_is_wrong_and_take_one_that_is_right() {
    let scratch = TempFolder::new("tls-servers");
    let authority = Authority::new(scratch.folder(), "authority");
    let other = Authority::new(scratch.folder(), "other");
    for (pair, refused) in [
        (authority.server("right"), None),
        (
            authority.issue_certificate("expired", Purpose::ExpiredServer),
            Some("certificate expired"),
        ),
        (
            authority.issue_certificate("named", Purpose::OtherName),
            Some("certificate not valid for name"),
        ),
        (other.server("unknown"), Some("UnknownIssuer")),
        (
            self_signed(scratch.folder(), "alone", Purpose::Server),
            Some("UnknownIssuer"),
        ),
    ] {
        let running = serving(tls(&pair, None, None));
        check(&running, (&authority, None), refused);
    }
}

#[test]
fn a_client_must_show_a_certificate_that_holds_where_there_is_an_authority_of_clients() {
    let scratch = TempFolder::new("tls-clients");
    let authority = Authority::new(scratch.folder(), "authority");
    let clients = Authority::new(scratch.folder(), "clients");
    let other = Authority::new(scratch.folder(), "other");
    let server = authority.server("server");
    let said = crate::kit::Said::default();
    let log = tollgate_server::Log::to_writer(said.clone(), tollgate_server::LogFormat::Text);
    log.set_level(tollgate_server::Level::Debug);
    let running = serving_with(tls(&server, Some(&clients.certificate), None), |settings| {
        settings.log = log.clone();
    });
    let right = clients.client("right");
    check(&running, (&authority, Some(&right)), None);
    let expired = clients.issue_certificate("expired", Purpose::ExpiredClient);
    for (client, why) in [
        (None, "CertificateRequired"),
        // Who signs servers signs no clients.
        (Some(authority.client("of-servers")), "UnknownCA"),
        (Some(other.client("of-others")), "UnknownCA"),
        (Some(expired), "CertificateExpired"),
        (
            Some(self_signed(scratch.folder(), "alone", Purpose::Client)),
            "UnknownCA",
        ),
        (Some(clients.server("no-client")), "UnsupportedCertificate"),
    ] {
        check(&running, (&authority, client.as_ref()), Some(why));
    }
    check(&running, (&authority, Some(&right)), None);
    // Whoever looks for it is told why.
    let why = "debug: no TLS with a client listener=resp from=127.0.0.1:";
    let told = |why: &str| {
        log.drain(Duration::from_secs(60));
        said.text().contains(why)
    };
    tollgate_testkit::redis::wait_until(Duration::from_secs(60), why, || {
        told(why) && told("why=peer sent no certificates\n")
    });
}

#[test]
fn a_client_is_revoked_by_a_list_that_is_read_again_and_what_it_has_begun_goes_on() {
    let scratch = TempFolder::new("tls-revoked");
    let authority = Authority::new(scratch.folder(), "authority");
    let (server, client, other) = (
        authority.server("server"),
        authority.client("client"),
        authority.client("other"),
    );
    let list = scratch.path("list");
    fs::copy(authority.revocation_list(&[]), &list).expect("a list");
    let tls = tls(&server, Some(&authority.certificate), Some(&list));
    let running = serving_still(tls, |_| {});
    let mut before = SPOKEN.map(|spoken| spoken.connect(&running, (&authority, Some(&client))));
    for secured in &mut before {
        secured.ask().expect("an answer");
    }
    fs::copy(authority.revocation_list(&[&client]), &list).expect("a list");
    check(&running, (&authority, Some(&client)), None);
    running
        .server
        .as_ref()
        .unwrap()
        .reload_files()
        .expect("a list");
    check(
        &running,
        (&authority, Some(&client)),
        Some("CertificateRevoked"),
    );
    check(&running, (&authority, Some(&other)), None);
    for secured in &mut before {
        secured.ask().expect("an answer");
    }
}

#[test]
fn plain_text_on_tls_is_told_and_closed_and_tls_on_plain_text_fails_at_once() {
    let scratch = TempFolder::new("tls-plain");
    let authority = Authority::new(scratch.folder(), "authority");
    let server = authority.server("server");
    let running = serving(tls(&server, None, None));
    for spoken in SPOKEN {
        for said in [&b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"[..], b"PING\r\n"] {
            let mut plain = spoken.plain(&running);
            plain.write_all(said).expect("written");
            let mut heard = Vec::new();
            plain.read_to_end(&mut heard).expect("an end");
            // An alert, which is fatal.
            assert_eq!((heard[0], heard[5]), (21, 2), "{}: {heard:?}", spoken.on);
        }
    }
    check(&running, (&authority, None), None);
    let plain = Running::new(POLICY, |_| {});
    for spoken in SPOKEN {
        let secured = spoken.connect(&plain, (&authority, None));
        let found = secured.refused();
        let is_known = ["InvalidContentType", "end of file", "reset"];
        assert!(
            is_known.iter().any(|one| found.contains(one)),
            "{}: {found}",
            spoken.on
        );
    }
}

/// The first message of a client that knows no newer version than this.
fn hello(version: [u8; 2]) -> Vec<u8> {
    let mut body = version.to_vec();
    body.extend([7; 32]);
    // No session, three ciphers of that time, no compression, and one kind of signature.
    body.extend([0, 0, 6, 0xc0, 0x14, 0xc0, 0x13, 0, 0x2f, 1, 0]);
    body.extend([0, 8, 0, 13, 0, 4, 0, 2, 4, 3]);
    let length = u8::try_from(body.len()).expect("a short message");
    let mut hello = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    hello.extend(body);
    hello
}

#[test]
fn versions_before_1_2_are_refused() {
    let scratch = TempFolder::new("tls-old");
    let authority = Authority::new(scratch.folder(), "authority");
    let running = serving(tls(&authority.server("server"), None, None));
    for spoken in SPOKEN {
        for version in [[3, 0], [3, 1], [3, 2]] {
            let mut plain = spoken.plain(&running);
            plain.write_all(&hello(version)).expect("written");
            let mut heard = Vec::new();
            plain.read_to_end(&mut heard).expect("an end");
            // An alert, fatal, by the number of "protocol version".
            assert_eq!((heard[0], &heard[5..]), (21, &[2, 70][..]), "{version:?}");
        }
    }
}

#[test]
fn ten_times_as_many_stalled_handshakes_as_there_are_places_keep_nobody_out() {
    let scratch = TempFolder::new("tls-stalled");
    let authority = Authority::new(scratch.folder(), "authority");
    let tls = tls(&authority.server("server"), None, None);
    let running = serving_with(tls, |settings| settings.bounds.max_connections = 8);
    for spoken in SPOKEN {
        let begin = |number: usize| {
            let mut stream = spoken.plain(&running);
            // Some say nothing, and some a part of what they have to.
            stream
                .write_all(&hello([3, 3])[..number % 20])
                .expect("written");
            stream
        };
        let stalled: Vec<TcpStream> = (0..80).map(begin).collect();
        let mut served: Vec<_> = (0..8)
            .map(|_| {
                let mut secured = spoken.connect(&running, (&authority, None));
                secured.ask().expect("an answer");
                secured
            })
            .collect();
        // Those are taken, and make no room for one more.
        let found = spoken.connect(&running, (&authority, None)).refused();
        assert!(
            found.contains("end of file") || found.contains("reset"),
            "{}: {found}",
            spoken.on
        );
        served[0].ask().expect("an answer");
        drop(stalled);
    }
}

#[test]
fn a_flood_of_handshakes_from_elsewhere_ends_nobody_who_is_slow() {
    let scratch = TempFolder::new("tls-flood");
    let authority = Authority::new(scratch.folder(), "authority");
    let tls = tls(&authority.server("server"), None, None);
    let running = serving_still(tls, |settings| settings.bounds.max_connections = 8);
    let spoken = SPOKEN[0];
    // This one has connected, from another address, and says nothing yet.
    let mut slow = spoken.connect(&running, (&authority, None));
    let elsewhere = running.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        let own = "127.0.0.2:0".parse().expect("an address");
        socket.bind(own).expect("an address of this machine");
        let connected = socket.connect(spoken.address(&running)).await;
        connected
            .expect("a connection")
            .into_std()
            .expect("a stream")
    });
    elsewhere.set_nonblocking(false).expect("a stream");
    slow.stream.sock = elsewhere;
    let stalled: Vec<TcpStream> = (0..80).map(|_| spoken.plain(&running)).collect();
    // Whoever comes last is served, so all before it have their places or have lost them.
    let mut last = spoken.connect(&running, (&authority, None));
    last.ask().expect("an answer");
    slow.ask().expect("an answer");
    drop(stalled);
}

#[test]
fn a_handshake_that_doesnt_end_is_ended() {
    let scratch = TempFolder::new("tls-slow");
    let authority = Authority::new(scratch.folder(), "authority");
    let tls = tls(&authority.server("server"), None, None);
    let running = Running::in_still_time(POLICY, |settings| settings.tls = Some(tls));
    for spoken in SPOKEN {
        let mut stalled = [&b""[..], &hello([3, 3])[..11]].map(|said| {
            let mut plain = spoken.plain(&running);
            plain.write_all(said).expect("written");
            plain
        });
        // Whoever came later has been served, and so both are waited for.
        spoken
            .connect(&running, (&authority, None))
            .ask()
            .expect("an answer");
        running.pass(Duration::from_millis(9_900));
        for plain in &stalled {
            plain.set_nonblocking(true).expect("a socket");
            let read = (&mut &*plain).read(&mut [0]).expect_err("still waited for");
            assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
            plain.set_nonblocking(false).expect("a socket");
        }
        running.pass(Duration::from_millis(200));
        for plain in &mut stalled {
            let mut heard = Vec::new();
            plain.read_to_end(&mut heard).expect("an end");
            assert_eq!(heard, b"", "{}", spoken.on);
        }
    }
}

#[test]
fn certificates_change_under_load_without_a_failed_handshake() {
    let scratch = TempFolder::new("tls-load");
    let authority = Authority::new(scratch.folder(), "authority");
    let pairs = [authority.server("one"), authority.server("two")];
    let live = authority.server("live");
    let running = serving(tls(&live, None, None));
    let mut old = SPOKEN[2].connect(&running, (&authority, None));
    old.ask().expect("an answer");
    let (over, served) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for spoken in &SPOKEN {
            let (over, served) = (&over, &served);
            let (running, authority) = (&running, &authority);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut secured = spoken.connect(running, (authority, None));
                    secured.ask().expect("an answer, whatever is in force");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..40_usize {
            let pair = &pairs[round % 2];
            // Half of it is there for a moment, and isn't put in force.
            fs::copy(&pair.certificate, &live.certificate).expect("a file");
            let server = running.server.as_ref().unwrap();
            let why = server
                .reload_files()
                .expect_err("a certificate of another key");
            assert!(why.contains("--tls-key"), "{why}");
            fs::copy(&pair.key, &live.key).expect("a file");
            server.reload_files().expect("both");
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < before + 4 {
                std::thread::yield_now();
            }
            old.ask().expect("an answer on the oldest connection");
        }
        over.store(true, Ordering::Relaxed);
    });
    let mut last = SPOKEN[2].connect(&running, (&authority, None));
    last.ask().expect("an answer");
    let of = |path| CertificateDer::from_pem_file(path).expect("PEM").to_vec();
    assert_eq!(last.shown(), of(&pairs[1].certificate));
    assert_ne!(old.shown(), last.shown());
}

#[test]
fn what_cant_be_used_is_told_and_what_was_there_before_stays() {
    let scratch = TempFolder::new("tls-bad");
    let authority = Authority::new(scratch.folder(), "authority");
    let pair = authority.issue_certificate("server", Purpose::LastingServer);
    let key = fs::read(&pair.key).expect("a key");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&pair.key, open).expect("a mode");
    let list = authority.revocation_list(&[]);
    let all = tls(&pair, Some(&authority.certificate), Some(&list));
    let said = Arc::<std::sync::Mutex<Vec<u8>>>::default();
    let log = crate::kit::Said(Arc::clone(&said));
    let running = serving_still(all, |settings| {
        settings.log = tollgate_server::Log::to_writer(log, tollgate_server::LogFormat::Text);
    });
    let server = running.server.as_ref().unwrap();
    assert_eq!(server.certificate_not_after(), Some(32_503_593_600));
    let client = authority.client("client");
    let take = || String::from_utf8(std::mem::take(&mut *said.lock().unwrap())).expect("text");
    let open = "server.key can be read by everybody on this machine (mode 0644): chmod o-r\n";
    let began = take();
    assert!(
        began.contains("Z warning: ") && began.ends_with(open),
        "{began}"
    );
    for (path, flag, bad, why) in [
        (
            &pair.certificate,
            "tls-cert",
            &b"x"[..],
            "it has no CERTIFICATE in PEM",
        ),
        (
            &pair.key,
            "tls-key",
            b"",
            "it has no PRIVATE KEY in PEM that isn't encrypted",
        ),
        (
            &authority.certificate,
            "tls-client-ca",
            &key,
            "it has no CERTIFICATE in PEM",
        ),
        (&list, "tls-crl", &key, "it has no X509 CRL in PEM"),
    ] {
        let good = fs::read(path).expect("a file");
        fs::write(path, bad).expect("a file");
        let told = format!("--{flag} {}: {why}; those before stay", path.display());
        for _ in 0..2 {
            assert_eq!(server.reload_files(), Err(told.clone()));
        }
        fs::write(path, good).expect("a file");
        check(&running, (&authority, Some(&client)), None);
        server.reload_files().expect("what was there before");
        // Said once, and once that it is over.
        let all = take();
        let events: Vec<_> = all
            .lines()
            .filter_map(|line| Some(line.split_once(' ')?.1))
            .collect();
        let reloaded = "info: certificates reloaded until=2999-12-31T00:00:00Z";
        assert_eq!(events, [&*format!("error: {told}"), reloaded]);
    }
    fs::remove_file(&pair.key).expect("a file");
    let why = server.reload_files().expect_err("no key");
    assert!(why.contains("No such file"), "{why}");
    check(&running, (&authority, Some(&client)), None);
}
