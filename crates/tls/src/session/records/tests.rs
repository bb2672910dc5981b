//! Records that a peer may and may not send, over every cipher, and against rustls.

use std::io::{Read, Write};
use std::sync::Arc;

use millrace_authority::{Authority, Validity};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

use super::*;
use crate::config::{ClientConfig, ServerConfig};
use crate::files::{ClientFiles, Identity, ServerFiles};
use crate::session::engine::Engine;
use crate::{ErrorKind, Session};

struct Sides {
    server: ServerConfig,
    client: ClientConfig,
    authority: Authority,
}

impl Sides {
    fn new() -> Sides {
        let authority = Authority::new("CA");
        let issued = authority.issue("server", &["localhost"], Validity::Now);
        let identity = Identity { certificate: issued.certificate, key: issued.key };
        let server = ServerConfig::load(ServerFiles { identity, client_ca: None }).unwrap();
        let files = ClientFiles { ca: authority.ca(), identity: None };
        Sides { server, client: ClientConfig::load(&files).unwrap(), authority }
    }

    /// Client and server after their handshake.
    fn sessions(&self) -> (Session, Session) {
        let mut client = Session::client(&self.client, "localhost").unwrap();
        let mut server = Session::server(&self.server).unwrap();
        for _ in 0..4 {
            carry(&mut client, &mut server);
            carry(&mut server, &mut client);
        }
        assert!(client.is_established() && server.is_established());
        (client, server)
    }
}

fn show(to: &mut Session, bytes: &[u8]) {
    to.room()[..bytes.len()].copy_from_slice(bytes);
    to.received(bytes.len());
}

fn take(from: &mut Session) -> Vec<u8> {
    let mut all = Vec::new();
    while !from.output().is_empty() {
        let bytes = from.output().to_vec();
        from.sent(bytes.len());
        all.extend(bytes);
    }
    all
}

fn carry(from: &mut Session, to: &mut Session) {
    let bytes = take(from);
    show(to, &bytes);
    assert_eq!(to.read(&mut [0; 64]).unwrap(), 0);
}

fn records(session: &mut Session) -> &mut RecordLayer {
    match &mut session.engine {
        Engine::RecordLayer(records) => records,
        _ => panic!("rustls still has the records"),
    }
}

/// A record of the session's side with this content, which need not be allowed.
fn record(session: &mut Session, kind: ContentType, content: &[u8]) -> Vec<u8> {
    let mut whole = vec![0; sealed_bytes(content.len())];
    records(session).seal(kind, content, &mut whole).unwrap();
    whole
}

fn data(session: &mut Session, content: &[u8]) -> Vec<u8> {
    record(session, ContentType::ApplicationData, content)
}

/// Reads all data of a session, in pieces of this size.
fn read(session: &mut Session, piece: usize) -> Vec<u8> {
    let (mut all, mut into) = (Vec::new(), vec![0; piece]);
    while let bytes @ 1.. = session.read(&mut into).unwrap() {
        all.extend_from_slice(&into[..bytes]);
    }
    all
}

#[test]
fn plaintext_arrives_in_memory_of_any_size() {
    let (mut client, mut server) = Sides::new().sessions();
    for len in [1, 2, 100, 4096, 16_383, 16_384] {
        let content: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        // Memory that is too small, as large, by the byte of the kind larger, and for many.
        for piece in [1, len / 2 + 1, len, len + 1, 4 * len + 3] {
            let sealed = [data(&mut client, &content), data(&mut client, &content)].concat();
            show(&mut server, &sealed);
            assert!(read(&mut server, piece) == content.repeat(2), "{len} bytes by {piece}");
        }
    }
    // Padding is no plaintext: the kind is the last byte that is not zero.
    let padded = [&b"padded"[..], &[23, 0, 0, 0]].concat();
    for piece in [3, 100] {
        let sealed = record(&mut client, ContentType::from(0), &padded);
        show(&mut server, &sealed);
        assert_eq!(read(&mut server, piece), b"padded");
    }
}

/// A record's type and content, and the error text and the alert that it must cause.
type WrongRecord = (u8, Vec<u8>, &'static str, Option<AlertDescription>);

fn wrong_records() -> Vec<WrongRecord> {
    use AlertDescription as A;
    let message = |kind: u8, body: &[u8]| [&[kind, 0, 0, body.len() as u8][..], body].concat();
    let update = message(24, &[0]);
    vec![
        (21, vec![2, 48], "does not know the CA", None),
        (21, vec![1, 80], "had an internal error", Some(A::DecodeError)),
        (21, vec![7, 80], "had an internal error", Some(A::IllegalParameter)),
        (21, vec![2], "MissingData", Some(A::DecodeError)),
        (21, vec![2, 0, 0], "MissingData", Some(A::DecodeError)),
        (22, message(4, b"ticket"), "unexpected handshake message", Some(A::UnexpectedMessage)),
        (22, message(1, b"hello"), "unexpected handshake message", Some(A::UnexpectedMessage)),
        (22, message(24, &[2]), "InvalidKeyUpdate", Some(A::IllegalParameter)),
        (22, message(24, &[0, 0]), "InvalidKeyUpdate", Some(A::IllegalParameter)),
        (22, update.repeat(2), "KeyEpochWithPendingFragment", Some(A::UnexpectedMessage)),
        (22, vec![24, 1, 0, 0], "HandshakePayloadTooLarge", Some(A::DecodeError)),
        (21, vec![], "InvalidEmptyPayload", Some(A::UnexpectedMessage)),
        (22, vec![], "InvalidEmptyPayload", Some(A::UnexpectedMessage)),
        (0, [&[1, 23][..], &[0; RECORD_BYTES]].concat(), "excess record", Some(A::RecordOverflow)),
        (20, vec![1], "unexpected message", Some(A::UnexpectedMessage)),
        (99, vec![1], "unexpected message", Some(A::UnexpectedMessage)),
        (0, vec![0; 50], "IllegalTlsInnerPlaintext", Some(A::UnexpectedMessage)),
        (23, vec![1; RECORD_BYTES + 1], "", Some(A::RecordOverflow)),
    ]
}

#[test]
fn records_that_are_not_allowed_end_session_with_alert_for_it() {
    let sides = Sides::new();
    for (kind, content, words, alert) in wrong_records() {
        for piece in [1, 32 * 1024] {
            let (mut client, mut server) = sides.sessions();
            let before = data(&mut client, b"before");
            let wrong = record(&mut client, ContentType::from(kind), &content);
            let behind = data(&mut client, b"behind");
            show(&mut server, &[before, wrong, behind].concat());
            let mut into = vec![0; piece];
            let mut first = Vec::new();
            let error = loop {
                match server.read_record(&mut into) {
                    Ok(0) => panic!("kind {kind} with {content:?} is taken"),
                    Ok(bytes) => first.extend_from_slice(&into[..bytes]),
                    Err(error) => break error,
                }
            };
            assert_eq!(first, b"before");
            assert!(error.to_string().contains(words), "{error}, not {words}");
            assert_eq!(server.read(&mut into), Err(error.clone()));
            assert_eq!(server.write(b"more"), Err(error));
            let said = take(&mut server);
            let Some(alert) = alert else {
                assert!(said.is_empty());
                continue;
            };
            show(&mut client, &said);
            let heard = client.read(&mut into).unwrap_err();
            let expected = crate::Error::of_session(&Error::AlertReceived(alert), &[]);
            assert_eq!(heard.to_string(), expected.to_string());
        }
    }
}

#[test]
fn ciphertext_that_is_no_record_is_refused_at_once() {
    let sides = Sides::new();
    for (bytes, words) in [
        (&[23, 3, 3, 0x41, 1][..], "excess record size"),
        (&[20, 3, 3, 0, 1], "unexpected message"),
        (&[21, 3, 3, 0, 2], "unexpected message"),
        (b"GET / HTTP/1.1", "unexpected message"),
        (&[23, 3, 3, 0, 0], "cannot be decrypted"),
        (&[23, 3, 3, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "cannot be decrypted"),
    ] {
        let (_, mut server) = sides.sessions();
        show(&mut server, bytes);
        let error = server.read(&mut [0; 64]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains(words), "{error}, not {words}");
    }
    // Every bit of a record is protected, including those of its version.
    let (mut client, _) = sides.sessions();
    let len = data(&mut client, b"payload").len();
    for bit in 0..len * 8 {
        let (mut client, mut server) = sides.sessions();
        let mut sealed = data(&mut client, b"payload");
        sealed[bit / 8] ^= 1 << (bit % 8);
        show(&mut server, &sealed);
        let mut into = [0xaa; 64];
        match server.read(&mut into) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol),
            // A longer one is not whole yet.
            Ok(bytes) => assert!(bytes == 0 && (24..40).contains(&bit), "bit {bit}"),
        }
    }
}

#[test]
fn records_out_of_order_or_sent_twice_are_refused() {
    let sides = Sides::new();
    for order in [&[1, 0][..], &[0, 0]] {
        let (mut client, mut server) = sides.sessions();
        let sealed = [data(&mut client, b"one"), data(&mut client, b"two")];
        let shown: Vec<u8> = order.iter().flat_map(|&at: &usize| sealed[at].clone()).collect();
        show(&mut server, &shown);
        while let Ok(1..) = server.read_record(&mut [0; 64]) {}
        assert!(server.read(&mut [0; 64]).is_err(), "{order:?}");
    }
}

#[test]
fn what_is_no_plaintext_may_come_now_and_then() {
    let (mut client, mut server) = Sides::new().sessions();
    let canceled = [1, AlertDescription::UserCanceled.into()];
    for _ in 0..3 {
        for _ in 0..IDLE_RECORDS_MAX {
            let sealed = data(&mut client, b"");
            show(&mut server, &sealed);
            assert!(read(&mut server, 100).is_empty());
        }
        let sealed = data(&mut client, b"plain");
        show(&mut server, &sealed);
        assert_eq!(read(&mut server, 100), b"plain");
        let sealed = record(&mut client, ContentType::Alert, &canceled);
        show(&mut server, &sealed);
        assert!(read(&mut server, 100).is_empty());
        let sealed = data(&mut client, b"plain");
        show(&mut server, &sealed);
        assert_eq!(read(&mut server, 2), b"plain");
    }
    let flood: Vec<u8> = (0..=IDLE_RECORDS_MAX).flat_map(|_| data(&mut client, b"")).collect();
    show(&mut server, &flood);
    let error = server.read(&mut [0; 64]).unwrap_err();
    assert!(error.to_string().contains("TooManyEmptyFragments"), "{error}");
}

#[test]
fn a_message_may_come_in_pieces_but_plaintext_not_between_them() {
    let sides = Sides::new();
    let (mut client, mut server) = sides.sessions();
    for byte in KEY_UPDATE {
        let sealed = record(&mut client, ContentType::Handshake, &[byte]);
        show(&mut server, &sealed);
        assert!(read(&mut server, 100).is_empty());
    }
    let sender = records(&mut client);
    sender.sealing = sender.secrets.next_sealing().unwrap();
    let sealed = data(&mut client, b"of the new key");
    show(&mut server, &sealed);
    assert_eq!(read(&mut server, 100), b"of the new key");

    // Tickets of a server are nothing to a client, however they are cut.
    let ticket = [&[4, 0, 0, 3, 1, 2, 3][..], &[4, 0, 0, 1, 9]].concat();
    for piece in ticket.chunks(5) {
        let sealed = record(&mut server, ContentType::Handshake, piece);
        show(&mut client, &sealed);
    }
    let sealed = data(&mut server, b"plain");
    show(&mut client, &sealed);
    assert_eq!(read(&mut client, 100), b"plain");

    let sealed = record(&mut client, ContentType::Handshake, &KEY_UPDATE[..2]);
    show(&mut server, &sealed);
    let sealed = data(&mut client, b"plain");
    show(&mut server, &sealed);
    let error = server.read(&mut [0; 64]).unwrap_err();
    assert!(error.to_string().contains("MessageInterleaved"), "{error}");
}

#[test]
fn nothing_is_read_behind_the_end() {
    let (mut client, mut server) = Sides::new().sessions();
    client.write(b"last words").unwrap();
    client.finish().unwrap();
    client.close();
    assert!(!client.can_write());
    let mut sealed = take(&mut client);
    sealed.extend_from_slice(&[0xff; 100]);
    show(&mut server, &sealed);
    assert_eq!(read(&mut server, 4), b"last words");
    assert!(server.peer_closed());
    show(&mut server, &[0xff; 100]);
    assert_eq!(server.read(&mut [0; 8]), Ok(0));
    // The other direction of the session still works.
    server.write(b"answer").unwrap();
    server.finish().unwrap();
    let sealed = take(&mut server);
    show(&mut client, &sealed);
    assert_eq!(read(&mut client, 100), b"answer");
}

/// Moves ciphertext both ways between rustls, as a client, and a session; returns the data that
/// each read.
fn meet(client: &mut rustls::ClientConnection, server: &mut Session) -> (Vec<u8>, Vec<u8>) {
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let mut sealed = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sealed).unwrap();
        }
        show(server, &sealed);
        at_server.extend(read(server, 1000));
        let said = take(server);
        let mut rest = said.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
            let mut plain = [0; 1 << 16];
            while let Ok(bytes @ 1..) = client.reader().read(&mut plain) {
                at_client.extend_from_slice(&plain[..bytes]);
            }
        }
    }
    (at_client, at_server)
}

#[test]
fn rustls_reads_sealed_records_and_keys_change_both_ways() {
    let sides = Sides::new();
    let name = ServerName::try_from("localhost").unwrap();
    let config = Arc::clone(&sides.client.config);
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut server = Session::server(&sides.server).unwrap();
    meet(&mut client, &mut server);
    assert!(server.is_established());
    // Pretends that a key of this cipher may seal three records only.
    records(&mut server).sealed_max = 3;
    for round in 0..40u8 {
        if round % 4 == 0 {
            client.refresh_traffic_keys().unwrap();
        }
        client.writer().write_all(&[round; 300]).unwrap();
        server.write(&[round; 40_000]).unwrap();
        server.finish().unwrap();
        let (at_client, at_server) = meet(&mut client, &mut server);
        assert!(at_client == [round; 40_000] && at_server == [round; 300], "round {round}");
    }
    assert!(records(&mut server).sealing.records <= 3);
}

/// A client may send records behind its handshake in the same packet; they are ours to decrypt, not
/// rustls's.
#[test]
fn keys_change_in_the_packet_that_ends_the_handshake() {
    let sides = Sides::new();
    for pieces in [1, 2, 5] {
        let mut client = Session::client(&sides.client, "localhost").unwrap();
        let mut server = Session::server(&sides.server).unwrap();
        carry(&mut client, &mut server);
        let bytes = take(&mut server);
        show(&mut client, &bytes);
        assert_eq!(client.read(&mut [0; 64]), Ok(0));
        assert!(client.is_established() && !server.is_established());
        let mut last = take(&mut client);
        for piece in [24, 0, 0, 1, 1_u8].chunks(5_usize.div_ceil(pieces)) {
            last.extend(record(&mut client, ContentType::Handshake, piece));
        }
        let sender = records(&mut client);
        sender.sealing = sender.secrets.next_sealing().unwrap();
        last.extend(data(&mut client, b"question"));
        show(&mut server, &last);
        assert_eq!(read(&mut server, 3), b"question");
        server.write(b"answer").unwrap();
        server.finish().unwrap();
        let bytes = take(&mut server);
        show(&mut client, &bytes);
        assert_eq!(read(&mut client, 100), b"answer");
    }
}

#[test]
fn a_peer_that_only_changes_keys_is_refused() {
    let (mut client, mut server) = Sides::new().sessions();
    let asking = [24, 0, 0, 1, 1];
    for _ in 0..=IDLE_RECORDS_MAX {
        let sealed = record(&mut client, ContentType::Handshake, &asking);
        show(&mut server, &sealed);
        let sender = records(&mut client);
        sender.sealing = sender.secrets.next_sealing().unwrap();
        if server.read(&mut [0; 64]).is_err() {
            return;
        }
    }
    panic!("it may go on forever");
}

#[test]
fn every_cipher_is_opened_and_sealed() {
    let mut sides = Sides::new();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(sides.authority.ca()).unwrap()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider;
    let of_tls13 = provider().cipher_suites.into_iter().filter(|suite| suite.tls13().is_some());
    let suites: Vec<_> = of_tls13.collect();
    assert_eq!(suites.len(), 3);
    for suite in suites {
        let provider = CryptoProvider { cipher_suites: vec![suite], ..provider() };
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        sides.client = ClientConfig { config: Arc::new(config) };
        let (mut client, mut server) = sides.sessions();
        assert_eq!(server.describe(), format!("TLSv1_3 {}", suite.suite().as_str().unwrap()));
        for content in [&b"a"[..], &[7; 5000]] {
            let sealed = data(&mut client, content);
            show(&mut server, &sealed);
            assert!(read(&mut server, 6000) == content);
            let sealed = data(&mut server, content);
            show(&mut client, &sealed);
            assert!(read(&mut client, 3) == content);
        }
    }
}
