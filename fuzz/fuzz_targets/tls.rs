//! Fuzzes TLS and the NBD negotiation inside it: bytes from a client, a server, or an attacker
//! between them.
//!
//! The first byte selects one of four cases:
//! - The input is the stream of a client. A server's session reads it and passes the plaintext to
//!   the NBD negotiation.
//! - The input is the stream of a server. A client's session reads it.
//! - An attacker changes or truncates the ciphertext between two connected sessions.
//! - A client sends encrypted records of any type and content after the handshake.
//!
//! The fuzzer demands:
//! - There is no panic, and no plaintext before the end of the handshake.
//! - The output is bounded.
//! - After an error, each call returns the same error.
//! - The plaintext is a prefix of the sent bytes.

#![no_main]

use std::sync::{Arc, OnceLock};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use libfuzzer_sys::fuzz_target;
use millrace_nbd::{ExportInfo, Handshake, Progress, TlsMode, TransmissionFlags};
use millrace_tls::{
    ClientConfig, ClientFiles, Identity, OUTPUT_BYTES, ServerConfig, ServerFiles, Session,
};
use rustls::pki_types::ServerName;
use rustls::{ConnectionTrafficSecrets, version};

fuzz_target!(|input: &[u8]| {
    let Some((mode, input)) = input.split_first() else { return };
    match mode % 4 {
        0 => as_client(input),
        1 => as_server(input),
        2 => between(input),
        _ => as_client_with_keys(input),
    }
});

type Configs = (ServerConfig, ClientConfig, Arc<rustls::ClientConfig>);

fn configs() -> &'static Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap());
        let ca = ca.unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        let folder = std::env::temp_dir().join(format!("millrace-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, pem: String| {
            let path = folder.join(name);
            std::fs::write(&path, pem).unwrap();
            path
        };
        let certificate = write("certificate.pem", certificate.pem());
        let identity = Identity { certificate, key: write("key.pem", key.serialize_pem()) };
        let server = ServerConfig::load(ServerFiles { identity, client_ca: None }).unwrap();
        let files = ClientFiles { ca: write("ca.pem", ca.pem()), identity: None };
        let own = ClientConfig::load(&files).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let client = rustls::ClientConfig::builder_with_protocol_versions(&[&version::TLS13]);
        let mut client = client.with_root_certificates(roots).with_no_client_auth();
        client.enable_secret_extraction = true;
        (server, own, Arc::new(client))
    })
}

/// Feeds a stream in pieces, whose sizes depend on the bytes of the stream; returns the plaintext.
fn feed(session: &mut Session, mut input: &[u8]) -> Vec<u8> {
    let (mut plain, mut into) = (Vec::new(), [0; 300]);
    while !input.is_empty() {
        let room = session.room();
        let bytes = room.len().min(input.len()).min(1 + usize::from(input[0]) * 40);
        room[..bytes].copy_from_slice(&input[..bytes]);
        session.received(bytes);
        input = &input[bytes..];
        loop {
            match session.read(&mut into) {
                Ok(read) => {
                    assert!(read == 0 || session.is_established(), "plaintext before its time");
                    plain.extend_from_slice(&into[..read]);
                    if read < into.len() {
                        break;
                    }
                }
                Err(error) => {
                    assert_eq!(session.read(&mut into), Err(error), "the error goes away");
                    return plain;
                }
            }
        }
        // No output is sent here, so the session itself must limit the size of its output.
        assert!(session.output().len() <= OUTPUT_BYTES);
    }
    plain
}

fn as_client(input: &[u8]) {
    let mut session = Session::server(&configs().0).unwrap();
    let plain = feed(&mut session, input);
    negotiate(&plain);
}

fn as_server(input: &[u8]) {
    let mut session = Session::client(&configs().1, "localhost").unwrap();
    session.sent(session.output().len());
    feed(&mut session, input);
    assert!(!session.is_established(), "nobody can guess a handshake");
}

fn pair() -> (Session, Session) {
    let (server, client, _) = configs();
    let mut client = Session::client(client, "localhost").unwrap();
    let mut server = Session::server(server).unwrap();
    for _ in 0..4 {
        let bytes = client.output().to_vec();
        client.sent(bytes.len());
        assert!(feed(&mut server, &bytes).is_empty());
        let bytes = server.output().to_vec();
        server.sent(bytes.len());
        assert!(feed(&mut client, &bytes).is_empty());
    }
    assert!(client.is_established() && server.is_established());
    (client, server)
}

fn between(input: &[u8]) {
    let Some((head, plain)) = input.split_at_checked(6) else { return };
    let (mut client, mut server) = pair();
    for piece in plain.chunks(1 + usize::from(head[0]) * 8) {
        assert_eq!(client.write(piece), Ok(piece.len()));
        client.finish().unwrap();
    }
    let mut bytes = client.output().to_vec();
    let at = usize::from(u16::from_be_bytes([head[1], head[2]])) % bytes.len().max(1);
    match head[3] % 4 {
        1 if !bytes.is_empty() => bytes[at] ^= head[4].max(1),
        2 => drop(bytes.drain(..at)),
        3 => bytes.truncate(at),
        _ => {}
    }
    let arrived = feed(&mut server, &bytes);
    assert!(plain.starts_with(&arrived), "other bytes than were sent");
    if head[3] % 4 == 0 {
        assert_eq!(arrived, plain, "not all that was sent");
    }
    negotiate(&arrived);
    // Writing an answer after invalid input may succeed or fail, but must not panic.
    if server.write(b"answer").is_ok() {
        let _ = server.finish();
    }
}

/// Returns the key, the initialization vector and the next record number of a client, after its
/// handshake with `server`.
fn keys_of_client(server: &mut Session) -> (LessSafeKey, [u8; 12], u64) {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::clone(&configs().2), name).unwrap();
    while client.is_handshaking() || !server.is_established() {
        let mut sealed = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sealed).unwrap();
        }
        assert!(feed(server, &sealed).is_empty());
        let said = server.output().to_vec();
        server.sent(said.len());
        client.read_tls(&mut said.as_slice()).unwrap();
        client.process_new_packets().unwrap();
    }
    let (number, secrets) = client.dangerous_extract_secrets().unwrap().tx;
    // The server selects this cipher suite, independent of the client's offer.
    let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { panic!("another cipher") };
    let key = UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap();
    (LessSafeKey::new(key), iv.as_ref().try_into().unwrap(), number)
}

fn as_client_with_keys(mut input: &[u8]) {
    let mut server = Session::server(&configs().0).unwrap();
    let (key, iv, mut number) = keys_of_client(&mut server);
    let (mut stream, mut plain) = (Vec::new(), Vec::new());
    while let [kind, len, rest @ ..] = input {
        let (content, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        input = rest;
        // Half of all values of `kind` become a valid content type (20 to 23), half are invalid.
        let kind = if *kind < 128 { 20 + kind % 4 } else { *kind };
        if kind == 23 {
            plain.extend_from_slice(content);
        }
        let mut body = [content, &[kind]].concat();
        let header = [23, 3, 3, 0, 0];
        let len = (body.len() + 16) as u16;
        let header = [&header[..3], &len.to_be_bytes()].concat();
        let mut nonce = iv;
        nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, other)| *byte ^= other);
        number += 1;
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(&header[..]), &mut body).unwrap();
        stream.extend(header);
        stream.extend(body);
    }
    let arrived = feed(&mut server, &stream);
    assert!(plain.starts_with(&arrived), "other bytes than were sent");
    if server.write(b"answer").is_ok() {
        let _ = server.finish();
    }
}

fn negotiate(plain: &[u8]) {
    let export = ExportInfo {
        name: "disk".to_owned(),
        description: String::new(),
        size_bytes: 1 << 30,
        flags: TransmissionFlags::new(),
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 25,
    };
    let (catalog, mut out) = (vec![export], Vec::new());
    let mut handshake = Handshake::with_tls(TlsMode::Required);
    let ask = [&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 5, 0, 0, 0, 0]].concat();
    assert_eq!(handshake.feed(&catalog, &ask, &mut out), Ok((ask.len(), Progress::StartTls)));
    handshake.secured();
    if let Ok((used, progress)) = handshake.feed(&catalog, plain, &mut out) {
        assert!(used <= plain.len(), "consumed more than given");
        assert_ne!(progress, Progress::StartTls, "TLS within TLS");
    }
}
