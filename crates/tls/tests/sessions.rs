//! Sessions of both sides against each other, without sockets: data that arrive, and refusals.
#![allow(clippy::unwrap_used)] // Tests may.

use std::path::Path;
use std::process::Command;

use millrace_authority::{Authority, Issued, Validity};
use millrace_tls::{CertificateRole, ClientConfig, ClientFiles, Error, ErrorKind, Identity};
use millrace_tls::{RefreshOutcome, ServerConfig, ServerFiles, Session};

/// Moves output of one side to the other, at most `step` bytes at a time, and lets it read.
/// Returns what it read.
fn carry(from: &mut Session, to: &mut Session, step: usize) -> Result<Vec<u8>, Error> {
    let mut plain = Vec::new();
    let mut into = vec![0; 5000];
    while !from.output().is_empty() {
        let room = to.room();
        let bytes = from.output().len().min(room.len()).min(step);
        room[..bytes].copy_from_slice(&from.output()[..bytes]);
        to.received(bytes);
        from.sent(bytes);
        loop {
            let read = to.read(&mut into)?;
            plain.extend_from_slice(&into[..read]);
            if read < into.len() {
                break;
            }
        }
    }
    Ok(plain)
}

/// Carries both ways until neither side has anything to say; the first error, with its side.
fn shake(client: &mut Session, server: &mut Session) -> Result<(), (&'static str, Error)> {
    for _ in 0..20 {
        carry(client, server, 1 << 20).map_err(|error| ("server", error))?;
        carry(server, client, 1 << 20).map_err(|error| ("client", error))?;
    }
    Ok(())
}

fn identity_of(issued: Issued) -> Identity {
    Identity { certificate: issued.certificate, key: issued.key }
}

struct Sides {
    authority: Authority,
    server: ServerConfig,
    client: ClientConfig,
}

impl Sides {
    fn new() -> Sides {
        let authority = Authority::new("test CA");
        let server = identity_of(authority.issue("server", &["localhost"], Validity::Now));
        let client =
            identity_of(authority.issue("client", &["client.test", "10.0.0.1"], Validity::Now));
        let files = ServerFiles { identity: server, client_ca: Some(authority.ca()) };
        let server = ServerConfig::load(files).unwrap();
        let files = ClientFiles { ca: authority.ca(), identity: Some(client) };
        let client = ClientConfig::load(&files).unwrap();
        Sides { authority, server, client }
    }

    fn sessions(&self) -> (Session, Session) {
        let client = Session::client(&self.client, "localhost").unwrap();
        (client, Session::server(&self.server).unwrap())
    }

    fn with_client(&self, identity: Option<Identity>) -> Result<(), (&'static str, Error)> {
        let files = ClientFiles { ca: self.authority.ca(), identity };
        let mut client =
            Session::client(&ClientConfig::load(&files).unwrap(), "localhost").unwrap();
        shake(&mut client, &mut Session::server(&self.server).unwrap())
    }
}

#[test]
fn bytes_arrive_as_they_were_sent_however_the_ciphertext_is_cut() {
    for step in [1, 7, 1000, 16_389, 1 << 20] {
        let (mut client, mut server) = Sides::new().sessions();
        shake(&mut client, &mut server).unwrap();
        assert!(client.is_established() && server.is_established());
        let len = if step == 1 { 20_000 } else { 700_000 };
        let data: Vec<u8> = (0..len).map(|i: u32| (i * 7 + i / 251) as u8).collect();
        for turn in [0, 1] {
            let sides = (&mut client, &mut server);
            let (from, to) = if turn == 0 { sides } else { (sides.1, sides.0) };
            let (mut sent, mut arrived) = (0, Vec::new());
            for piece in [1, 28, 4096, 16_384, 16_385, 100_000].iter().cycle() {
                let end = data.len().min(sent + piece);
                let taken = from.write(&data[sent..end]).unwrap();
                sent += taken;
                if taken < *piece {
                    from.finish().unwrap();
                    arrived.extend(carry(from, to, step).unwrap());
                }
                if sent == data.len() {
                    break;
                }
            }
            from.finish().unwrap();
            arrived.extend(carry(from, to, step).unwrap());
            assert!(arrived == data, "{} of {} bytes, step {step}", arrived.len(), data.len());
        }
    }
}

#[test]
fn small_writes_share_records_and_a_full_reader_loses_none() {
    let (mut client, mut server) = Sides::new().sessions();
    shake(&mut client, &mut server).unwrap();
    for byte in 0..200u8 {
        assert_eq!(client.write(&[byte; 16]).unwrap(), 16);
    }
    assert!(client.output().is_empty());
    client.finish().unwrap();
    let len = client.output().len();
    assert!((3200..3300).contains(&len), "{len} bytes of output");
    server.room()[..len].copy_from_slice(client.output());
    server.received(len);
    client.sent(len);
    let mut all = Vec::new();
    let mut into = [0; 7];
    while let read @ 1.. = server.read(&mut into).unwrap() {
        all.extend_from_slice(&into[..read]);
        // Sealing an answer between two reads neither loses nor reorders the received data.
        assert_eq!(server.write(b"answer").unwrap(), 6);
        server.finish().unwrap();
    }
    let expected: Vec<u8> = (0..200u8).flat_map(|byte| [byte; 16]).collect();
    assert!(all == expected);
    assert_eq!(carry(&mut server, &mut client, 1 << 20).unwrap().len() % 6, 0);
}

#[test]
fn records_come_one_at_a_time_and_none_before_a_handshake() {
    let (mut client, mut server) = Sides::new().sessions();
    // The end of the client's handshake and its first records reach the server together.
    while !client.is_established() {
        carry(&mut client, &mut server, 1 << 20).unwrap();
        carry(&mut server, &mut client, 1 << 20).unwrap();
    }
    assert!(!server.is_established());
    for _ in 0..2 {
        for len in [28, 4096, 28] {
            assert_eq!(client.write(&vec![7; len]).unwrap(), len);
            client.finish().unwrap();
        }
        let len = client.output().len();
        server.room()[..len].copy_from_slice(client.output());
        server.received(len);
        client.sent(len);
        let (mut into, mut found) = ([0; 3000], Vec::new());
        while let read @ 1.. = server.read_record(&mut into).unwrap() {
            assert!(server.is_established(), "who it is was known first");
            found.push(read);
        }
        assert_eq!(found, [28, 3000, 1096, 28]);
    }
    assert_eq!(server.read_record(&mut []).unwrap(), 0);
}

#[test]
fn the_names_of_a_client_are_known_once_it_was_accepted() {
    let (mut client, mut server) = Sides::new().sessions();
    assert!(server.peer().is_none());
    shake(&mut client, &mut server).unwrap();
    let names = server.peer().unwrap();
    assert_eq!(names.common_name.as_deref(), Some("client"));
    assert_eq!(names.alternatives, ["client.test", "10.0.0.1"]);
    assert!(names.has("client") && names.has("10.0.0.1") && !names.has("client.tes"));
    assert_eq!(names.to_string(), "client, client.test, 10.0.0.1");
    assert!(client.peer().unwrap().has("localhost"));
    // The server's choice, not the client's preference, which is slower here.
    assert_eq!(server.describe(), "TLSv1_3 TLS13_AES_128_GCM_SHA256");
}

#[test]
fn an_end_that_was_said_differs_from_one_that_was_not() {
    let (mut client, mut server) = Sides::new().sessions();
    shake(&mut client, &mut server).unwrap();
    client.write(b"last").unwrap();
    client.finish().unwrap();
    client.close();
    assert_eq!(client.write(b"more").unwrap(), 0);
    assert!(!server.peer_closed());
    assert_eq!(carry(&mut client, &mut server, 3).unwrap(), b"last");
    assert!(server.peer_closed());
    // The other half is open still.
    assert_eq!(server.write(b"bye").unwrap(), 3);
    server.finish().unwrap();
    assert_eq!(carry(&mut server, &mut client, 3).unwrap(), b"bye");
}

#[test]
fn clients_are_refused_with_the_reason() {
    let sides = Sides::new();
    let other = Authority::new("another CA");
    let expired = identity_of(sides.authority.issue("old", &["old"], Validity::Past));
    let early = identity_of(sides.authority.issue("early", &["early"], Validity::Future));
    let stranger = identity_of(other.issue("stranger", &["stranger"], Validity::Now));
    let server_only = identity_of(sides.authority.issue_for_servers("wrong", &["wrong"]));
    let of_a_leaf = identity_of(sides.authority.issue_by_a_leaf("grandchild"));
    for (identity, kind, words) in [
        (None, ErrorKind::NoCertificate, "sent no certificate"),
        (Some(stranger), ErrorKind::Certificate, "unknown CA"),
        (
            Some(server_only),
            ErrorKind::Certificate,
            "its extended key usage lacks clientAuth; create",
        ),
        (Some(of_a_leaf), ErrorKind::Certificate, "signed by a certificate that is not a CA"),
    ] {
        let (side, error) = sides.with_client(identity).unwrap_err();
        assert_eq!((side, error.kind()), ("server", kind), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // This side's own checks stop a client with such a certificate before it connects.
    for (identity, words) in [(expired, "expired at"), (early, "is not valid before")] {
        let files = ClientFiles { ca: sides.authority.ca(), identity: Some(identity.clone()) };
        let error = ClientConfig::load(&files).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::File);
        let text = error.to_string();
        let file = identity.certificate.display().to_string();
        assert!(text.contains(&file) && text.contains(words), "{text}");
    }
}

#[test]
fn clients_of_an_expired_ca_are_refused_and_others_are_not() {
    let servers = Authority::new("servers");
    let cas = [Authority::valid("old CA", Validity::Seconds(3)), Authority::new("new CA")];
    let bundle = servers.folder().join("bundle.pem");
    let text = cas.each_ref().map(|ca| std::fs::read_to_string(ca.ca()).unwrap()).concat();
    std::fs::write(&bundle, text).unwrap();
    let server = identity_of(servers.issue("server", &["localhost"], Validity::Now));
    let files = ServerFiles { identity: server, client_ca: Some(bundle.clone()) };
    let server = ServerConfig::load(files).unwrap();
    let clients = cas.each_ref().map(|ca| {
        let identity = Some(identity_of(ca.issue("client", &[], Validity::Now)));
        ClientConfig::load(&ClientFiles { ca: servers.ca(), identity }).unwrap()
    });
    let connect = |client: &ClientConfig| {
        let mut client = Session::client(client, "localhost").unwrap();
        shake(&mut client, &mut Session::server(&server).unwrap())
    };
    assert!(clients.iter().all(|client| connect(client).is_ok()));
    let names: Vec<_> = server.lifetimes().into_iter().map(|one| (one.role, one.name)).collect();
    let file = bundle.display();
    assert_eq!(names[1], (CertificateRole::ClientCa, format!("the CA \"old CA\" in {file}")));
    assert_eq!((names.len(), names[0].0), (3, CertificateRole::Own));
    std::thread::sleep(std::time::Duration::from_secs(4));
    let (side, error) = connect(&clients[0]).unwrap_err();
    assert_eq!((side, error.kind()), ("server", ErrorKind::Certificate));
    let said = "the peer's certificate is good, but the CA \"old CA\" of client-ca that signed it expired at ";
    assert!(error.to_string().starts_with(said), "{error}");
    assert_eq!(connect(&clients[1]), Ok(()));
}

#[test]
fn servers_are_refused_with_the_reason() {
    let sides = Sides::new();
    let mut server = Session::server(&sides.server).unwrap();
    let mut client = Session::client(&sides.client, "elsewhere.test").unwrap();
    let (side, error) = shake(&mut client, &mut server).unwrap_err();
    assert_eq!((side, error.kind()), ("client", ErrorKind::Certificate));
    let text = error.to_string();
    assert!(text.contains("'elsewhere.test' was expected, but it has localhost; use"), "{text}");
    // The client's alert tells the server why.
    let error = carry(&mut client, &mut server, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");

    let another = Authority::new("another CA");
    let files = ClientFiles { ca: another.ca(), identity: None };
    let mut client = Session::client(&ClientConfig::load(&files).unwrap(), "localhost").unwrap();
    let mut server = Session::server(&sides.server).unwrap();
    let (side, error) = shake(&mut client, &mut server).unwrap_err();
    assert_eq!(side, "client");
    assert!(error.to_string().contains("unknown CA"), "{error}");
    assert!(Session::client(&sides.client, "not a host").is_err());

    let server_with = |identity| {
        let config = ServerConfig::load(ServerFiles { identity, client_ca: None }).unwrap();
        let mut client = Session::client(&sides.client, "localhost").unwrap();
        let refused = shake(&mut client, &mut Session::server(&config).unwrap()).unwrap_err();
        assert_eq!((refused.0, refused.1.kind()), ("client", ErrorKind::Certificate));
        refused.1.to_string()
    };
    let for_clients = sides.authority.issue_for_clients("client-only", &["localhost"]);
    let text = server_with(identity_of(for_clients));
    assert!(text.contains("its extended key usage lacks serverAuth; create one"), "{text}");
    let nameless = sides.authority.issue("nameless", &[], Validity::Now);
    let text = server_with(identity_of(nameless));
    assert!(text.contains("'localhost' was expected, but it has no subjectAltName"), "{text}");
    let text = server_with(identity_of(sides.authority.issue_by_a_leaf("grandchild")));
    assert!(text.contains("signed by a certificate that is not a CA"), "{text}");
}

/// Runs `openssl` with words, and files of the directory by their names.
fn openssl(folder: &Path, words: &str) {
    let output = Command::new("openssl").current_dir(folder).args(words.split(' ')).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A CA with a key that OpenSSL makes by these words, and the certificate of a server that it
/// signed; or none, if there is no OpenSSL and the test may be skipped.
fn odd_ca(folder: &Path, name: &str, key: &str) -> Option<(Identity, Identity)> {
    if Command::new("openssl").arg("version").output().is_err() {
        millrace_require::skip("openssl, of the package of that name");
        return None;
    }
    let ca = format!("-keyout {name}-key.pem -out {name}-cert.pem");
    openssl(folder, &format!("req -x509 -nodes -days 2 -subj /CN={name} -newkey {key} {ca}"));
    let good = "-newkey ec -pkeyopt ec_paramgen_curve:P-256";
    let of = format!("-keyout {name}-of-key.pem -out {name}-of.csr");
    openssl(folder, &format!("req -nodes -subj /CN=localhost {good} {of}"));
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let by = format!("-CA {name}-cert.pem -CAkey {name}-key.pem -CAcreateserial -days 2");
    let of = format!("-in {name}-of.csr -out {name}-of-cert.pem -extfile names");
    openssl(folder, &format!("x509 -req {of} {by}"));
    let identity = |name: &str| {
        let at = |what: &str| folder.join(format!("{name}-{what}.pem"));
        Identity { certificate: at("cert"), key: at("key") }
    };
    Some((identity(name), identity(&format!("{name}-of"))))
}

/// Before version 3.4, openssl makes certificates of version 1 if no extensions are asked for.
#[test]
fn version_1_certificate_is_named_with_a_remedy_for_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let good = "ec -pkeyopt ec_paramgen_curve:P-256";
    let Some((ca, signed)) = odd_ca(folder.path(), "one", good) else { return };
    let by = "-CA one-cert.pem -CAkey one-key.pem -CAcreateserial -days 2";
    openssl(folder.path(), &format!("x509 -req -in one-of.csr -out plain.pem {by}"));
    openssl(folder.path(), "x509 -in plain.pem -noout -text -out plain.txt");
    if !std::fs::read_to_string(folder.path().join("plain.txt")).unwrap().contains("Version: 1 ") {
        return;
    }
    let identity = Identity { certificate: folder.path().join("plain.pem"), key: signed.key };
    let server = ServerFiles { identity: identity.clone(), client_ca: None };
    let client = ClientFiles { ca: ca.certificate, identity: Some(identity) };
    for error in [ServerConfig::load(server).unwrap_err(), ClientConfig::load(&client).unwrap_err()]
    {
        let text = error.to_string();
        assert!(text.contains("plain.pem: ") && text.contains("X.509 version 1"), "{text}");
    }
}

#[test]
fn keys_of_other_kinds_are_refused_with_those_that_would_do() {
    let folder = tempfile::tempdir().unwrap();
    for (name, key, words) in [
        ("k256", "ec -pkeyopt ec_paramgen_curve:secp256k1", "a signature that this side does"),
        ("rsa1024", "rsa:1024", "RSA below 2048 bits"),
    ] {
        let Some((ca, signed)) = odd_ca(folder.path(), name, key) else { return };
        let file = ca.key.display().to_string();
        let files = ServerFiles { identity: ca.clone(), client_ca: None };
        let server = ServerConfig::load(files).unwrap_err();
        let files = ClientFiles { ca: ca.certificate.clone(), identity: Some(ca.clone()) };
        let client = ClientConfig::load(&files).unwrap_err();
        for error in [server, client] {
            let text = error.to_string();
            assert!(text.starts_with(&file) && text.contains("P-384 and P-521); make"), "{text}");
        }
        let server = ServerConfig::load(ServerFiles { identity: signed, client_ca: None }).unwrap();
        let files = ClientFiles { ca: ca.certificate, identity: None };
        let config = ClientConfig::load(&files).unwrap();
        let mut session = Session::client(&config, "localhost").unwrap();
        let refused = shake(&mut session, &mut Session::server(&server).unwrap());
        let (side, error) = refused.unwrap_err();
        assert_eq!((side, error.kind()), ("client", ErrorKind::Certificate));
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn whoever_does_not_speak_tls_is_told_apart() {
    let sides = Sides::new();
    for (bytes, words) in [
        (&b"IHAVEOPT\0\0\0\x06\0\0\0\0"[..], "does not use TLS"),
        (&[0; 64], "does not use TLS"),
        (&[0x16, 3, 1, 0, 5, 9, 9, 9, 9, 9], "violated the TLS protocol"),
    ] {
        let mut server = Session::server(&sides.server).unwrap();
        server.room()[..bytes.len()].copy_from_slice(bytes);
        server.received(bytes.len());
        let error = server.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(server.read(&mut [0; 10]), Err(error));
        if words == "does not use TLS" {
            // An alert is left for the peer.
            assert_eq!(server.output().first(), Some(&0x15));
        }
    }
}

#[test]
fn a_changed_record_ends_the_session() {
    let (mut client, mut server) = Sides::new().sessions();
    shake(&mut client, &mut server).unwrap();
    client.write(b"payload").unwrap();
    client.finish().unwrap();
    let mut bytes = client.output().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    server.room()[..bytes.len()].copy_from_slice(&bytes);
    server.received(bytes.len());
    let error = server.read(&mut [0; 100]).unwrap_err();
    assert!(error.to_string().contains("cannot be decrypted"), "{error}");
}

#[test]
fn a_message_without_end_is_refused_when_the_buffer_is_full() {
    let mut server = Session::server(&Sides::new().server).unwrap();
    // Records of a handshake message that claims to have 16 MiB.
    let mut record = vec![0x16, 3, 1, 0x40, 0];
    record.resize(5 + 0x4000, 0);
    record[5..9].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
    let mut sent = 0;
    let error = loop {
        assert!(sent < 1 << 20, "a megabyte was taken");
        let room = server.room();
        let bytes = room.len().min(record.len());
        room[..bytes].copy_from_slice(&record[..bytes]);
        server.received(bytes);
        sent += bytes;
        if let Err(error) = server.read(&mut []) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[test]
fn new_files_are_used_by_next_session_and_half_of_them_is_not() {
    let sides = Sides::new();
    let identity = identity_of(sides.authority.issue("rotated", &["localhost"], Validity::Now));
    let files = ServerFiles { identity: identity.clone(), client_ca: None };
    let config = ServerConfig::load(files).unwrap();
    assert_eq!(config.refresh(), Ok(RefreshOutcome::Same));
    let fresh = identity_of(sides.authority.issue("fresh", &["localhost"], Validity::Now));
    let name = |config: &ServerConfig| {
        let mut client = Session::client(&sides.client, "localhost").unwrap();
        shake(&mut client, &mut Session::server(config).unwrap()).unwrap();
        client.peer().unwrap().common_name.clone().unwrap()
    };
    assert_eq!(name(&config), "rotated");
    std::fs::copy(&fresh.certificate, &identity.certificate).unwrap();
    let error = config.refresh().unwrap_err();
    assert!(error.to_string().contains("key does not belong to the certificate"), "{error}");
    // The error is reported once; the old files stay in use.
    assert_eq!(config.refresh(), Ok(RefreshOutcome::Same));
    assert_eq!(name(&config), "rotated");
    std::fs::copy(&fresh.key, &identity.key).unwrap();
    assert_eq!(config.refresh(), Ok(RefreshOutcome::Reloaded));
    assert_eq!(name(&config), "fresh");
}

#[test]
fn every_file_that_cannot_be_used_is_named_with_the_reason() {
    let authority = Authority::new("CA");
    let good = identity_of(authority.issue("server", &["localhost"], Validity::Now));
    let other = identity_of(authority.issue("other", &["localhost"], Validity::Now));
    let old_ca = Authority::expired("old CA");
    let write = |name: &str, text: &str| {
        let path = authority.folder().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (empty, missing) = (write("empty.pem", "nothing\n"), authority.folder().join("missing"));
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = write("encrypted.pem", encrypted);
    let older = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n\
                 AAAA\n-----END EC PRIVATE KEY-----\n";
    let older = write("older.pem", older);
    // A named pipe would block its reader until a process writes to it.
    let fifo = authority.folder().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let folder = authority.folder().to_owned();
    let whole = std::fs::read_to_string(&good.certificate).unwrap();
    let whole_key = std::fs::read_to_string(&good.key).unwrap();
    let lines = |text: &str, left_out: usize| {
        let kept = text.lines().enumerate().filter(|(line, _)| *line != left_out);
        kept.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    let cut = write("cut.pem", &whole[..whole.len() / 2]);
    let cut_key = write("cut-key.pem", &whole_key[..whole_key.len() / 2]);
    let headless = write("headless.pem", &whole[..20]);
    let holed = write("holed.pem", &lines(&whole, 3));
    let holed_key = write("holed-key.pem", &lines(&whole_key, 2));
    let authority_pem = std::fs::read_to_string(authority.ca()).unwrap();
    let reversed = write("reversed.pem", &(authority_pem.clone() + &whole));
    let scrambled = write("scrambled.pem", &whole.replacen('M', "!", 1));
    let identity = |certificate: &_, key: &_| Identity {
        certificate: std::path::PathBuf::clone(certificate),
        key: std::path::PathBuf::clone(key),
    };
    let with = |certificate, key, client_ca| {
        let files = ServerFiles { identity: identity(certificate, key), client_ca };
        ServerConfig::load(files).unwrap_err()
    };
    for (error, file, words) in [
        (with(&missing, &good.key, None), &missing, "cannot be read"),
        (with(&empty, &good.key, None), &empty, "contains no certificate"),
        (with(&cut, &good.key, None), &cut, "the line END CERTIFICATE is missing; copy"),
        (
            with(&good.certificate, &cut_key, None),
            &cut_key,
            "the line END PRIVATE KEY is missing; copy",
        ),
        (with(&headless, &good.key, None), &headless, "is incomplete; copy"),
        (with(&holed, &good.key, None), &holed, "or is incomplete; copy"),
        (with(&good.certificate, &holed_key, None), &holed_key, "the key in it is damaged, or"),
        (with(&scrambled, &good.key, None), &scrambled, "is not base64; copy"),
        (with(&good.certificate, &good.key, Some(cut.clone())), &cut, "is missing; copy"),
        (with(&fifo, &good.key, None), &fifo, "is not a regular file"),
        (with(&good.certificate, &folder, None), &folder, "is not a regular file"),
        (with(&good.key, &good.key, None), &good.key, "contains no certificate"),
        (with(&good.certificate, &empty, None), &empty, "contains no private key"),
        (with(&good.certificate, &encrypted, None), &encrypted, "encrypted"),
        (
            with(&good.certificate, &older, None),
            &older,
            "contains an encrypted private key; decrypt it",
        ),
        (with(&good.certificate, &good.certificate, None), &good.certificate, "swapped"),
        (with(&good.certificate, &other.key, None), &other.key, "does not belong"),
        (
            with(&reversed, &good.key, None),
            &reversed,
            "in the wrong order: the key belongs to number 2; move it to the front",
        ),
        (with(&reversed, &other.key, None), &other.key, "does not belong"),
        (with(&good.certificate, &good.key, Some(old_ca.ca())), &old_ca.ca(), "expired at"),
        (
            with(&good.certificate, &good.key, Some(other.certificate.clone())),
            &other.certificate,
            "is not a CA",
        ),
    ] {
        assert_eq!(error.kind(), ErrorKind::File);
        let text = error.to_string();
        assert!(text.contains(&file.display().to_string()) && text.contains(words), "{text}");
    }
    let ordered = write("ordered.pem", &(whole.clone() + &authority_pem));
    let files = ServerFiles { identity: identity(&ordered, &good.key), client_ca: None };
    assert!(ServerConfig::load(files).is_ok());
    let client = Some(identity(&reversed, &good.key));
    let error = ClientConfig::load(&ClientFiles { ca: authority.ca(), identity: client });
    assert!(error.unwrap_err().to_string().contains("in the wrong order"));
}
