//! Fuzzes TLS under NBD's negotiation: what a client, a server, or somebody between them may send.
//!
//! The first byte chooses. As a client's stream: a server's session and, with what that decrypts,
//! the negotiation of NBD. As a server's stream: a client's session. As somebody on the way: two
//! sessions that know each other, whose ciphertext is cut into pieces, changed or left out.
//!
//! Besides "no panic" it demands: no plaintext before the handshake is over, output that is
//! bounded, an error that stays, and plaintext that arrives as it was sent or not at all.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use millrace_nbd::{ExportInfo, Handshake, Progress, TlsMode, TransmissionFlags};
use millrace_tls::{ClientConfig, ServerConfig, Session, OUTPUT_BYTES};

fuzz_target!(|input: &[u8]| {
    let Some((mode, input)) = input.split_first() else { return };
    match mode % 3 {
        0 => as_client(input),
        1 => as_server(input),
        _ => between(input),
    }
});

fn configs() -> &'static (ServerConfig, ClientConfig) {
    static CONFIGS: OnceLock<(ServerConfig, ClientConfig)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap());
        let ca = ca.unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        let (pem, key) = (certificate.pem(), key.serialize_pem());
        let server = ServerConfig::from_pem(pem.as_bytes(), key.as_bytes(), None).unwrap();
        (server, ClientConfig::from_pem(ca.pem().as_bytes()).unwrap())
    })
}

/// Feeds a stream in pieces whose sizes follow from it; returns the plaintext.
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
        // Nobody takes the output here, so it must stay within its bound by itself.
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

/// Two sessions that know each other.
fn pair() -> (Session, Session) {
    let (server, client) = configs();
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
    // An answer may be sealed whatever came in.
    if server.write(b"answer").is_ok() {
        let _ = server.finish();
    }
}

/// NBD's negotiation over what was decrypted, after the upgrade that every client asks for.
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
