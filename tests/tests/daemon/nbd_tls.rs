//! NBD over TLS with the real clients libnbd and QEMU, for every combination of both sides'
//! policies.
//!
//! Certificates are made here. A refusal is reported to the client by its own library, and to the
//! server's administrator by a line of the log.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use millrace_authority::{Authority, Validity};
use millrace_tests::serving::{backends, pattern, stripe, succeed};
use millrace_tests::{Daemon, poll_within, require_clients, run, run_within};
use millrace_tls::{ClientConfig, ClientFiles, Session};

const WAIT: Duration = Duration::from_secs(20);

/// The server's TLS policy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Off,
    Offered,
    Required,
}

/// A server with a volume of 64 MiB over TCP and at a Unix socket, and the CA of both sides.
struct Rig {
    daemon: Daemon,
    authority: Authority,
}

impl Rig {
    fn start(server: Server) -> Rig {
        Rig::with(server, "epoll", "", |_| ())
    }

    /// A rig with more sections, and after a change to the CA's files.
    fn with(server: Server, backend: &str, more: &str, change: impl Fn(&Authority)) -> Rig {
        let authority = Authority::new("test CA");
        let issued = authority.issue("server", &["localhost", "127.0.0.1"], Validity::Now);
        change(&authority);
        let tls = format!(
            "tls = {{ certificate = \"{}\", key = \"{}\", client-ca = \"{}\", required = {} }}\n",
            issued.certificate.display(),
            issued.key.display(),
            authority.ca().display(),
            server == Server::Required,
        );
        let tls = if server == Server::Off { "" } else { &tls };
        let config =
            stripe(backend, &["ram:size=64m"]).replace("\"unix:s\"", "[\"unix:s\", \"tcp:0\"]");
        let config = format!("{config}handshake-timeout = \"2s\"\n{tls}{more}");
        Rig { daemon: Daemon::start(&config, &["s"]), authority }
    }

    fn port(&self) -> u16 {
        let text = self.daemon.stdout();
        let at = text.split("://127.0.0.1:").nth(1).unwrap_or_else(|| panic!("no port in {text}"));
        at.split('/').next().unwrap().parse().unwrap()
    }

    /// The URI of an export with a client's certificates in this directory.
    fn uri(&self, export: &str, folder: &Path) -> String {
        format!("nbds://localhost:{}/{export}?tls-certificates={}", self.port(), folder.display())
    }

    fn plain_uri(&self) -> String {
        format!("nbd://localhost:{}/v", self.port())
    }

    /// A directory of a client that the server knows.
    fn client(&self, name: &str) -> PathBuf {
        self.authority.client_folder(&self.authority, name, Validity::Now)
    }

    /// Waits for a line of the log.
    fn said(&self, words: &str) {
        let found = poll_within(WAIT, || self.daemon.stderr().contains(words).then_some(()));
        assert!(found.is_some(), "{words:?} is not in the log:\n{}", self.daemon.stderr());
    }

    fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    }

    /// A connection on which the server has agreed to start TLS.
    fn at_tls(&self) -> TcpStream {
        let mut stream = self.tcp();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream.write_all(&option(5, &[])).unwrap();
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[12..16], [0, 0, 0, 1], "an acknowledgement");
        stream
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn info(uri: &str) -> Output {
    run(Command::new("nbdinfo").arg(uri))
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// All bytes up to the end of the connection.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset and a close both end the connection.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn every_wish_of_a_client_meets_every_rule_of_a_server() {
    require_clients!("nbdinfo");
    for server in [Server::Off, Server::Offered, Server::Required] {
        let rig = Rig::start(server);
        let folder = rig.client("host");
        let (with, without) = (info(&rig.uri("v", &folder)), info(&rig.plain_uri()));
        assert_eq!(with.status.success(), server != Server::Off, "{}", text(&with));
        assert_eq!(without.status.success(), server != Server::Required, "{}", text(&without));
        if with.status.success() {
            assert!(text(&with).contains("newstyle-fixed with TLS"), "{}", text(&with));
        }
        // A client that takes TLS where it can.
        if let Some(mut shell) = millrace_tests::nbdsh() {
            let script = format!(
                "h.set_tls(nbd.TLS_ALLOW); h.set_tls_certificates('{}'); \
                 h.connect_tcp('localhost', '{}'); print(h.get_tls_negotiated())",
                folder.display(),
                rig.port()
            );
            let said = succeed(shell.args(["-c", &script]));
            assert_eq!(said.trim(), if server == Server::Off { "False" } else { "True" });
        }
    }
}

#[test]
fn data_arrive_intact_on_every_back_end() {
    require_clients!("nbdcopy", "qemu-img", "qemu-io");
    for backend in backends() {
        let rig = Rig::with(Server::Required, backend, "", |_| ());
        let (folder, dir) = (rig.client("host"), rig.daemon.dir().to_owned());
        let (image, back) = (dir.join("image"), dir.join("back"));
        fs::write(&image, pattern(64 << 20, 7)).unwrap();
        let uri = rig.uri("v", &folder);
        succeed(Command::new("nbdcopy").arg(&image).arg(&uri));
        succeed(Command::new("nbdcopy").arg(&uri).arg(&back));
        assert!(fs::read(&image).unwrap() == fs::read(&back).unwrap(), "nbdcopy, {backend}");
        // Many small requests at a time, and one connection only.
        let small = ["--request-size=4096", "--requests=64", "--connections=1"];
        succeed(Command::new("nbdcopy").args(small).arg(&uri).arg(&back));
        assert!(fs::read(&image).unwrap() == fs::read(&back).unwrap(), "small, {backend}");
        let creds = format!("tls-creds-x509,id=t,endpoint=client,dir={}", folder.display());
        let at = format!("driver=nbd,host=localhost,port={},export=v,tls-creds=t", rig.port());
        let convert = ["convert", "--object", &creds, "--image-opts", &at, "-O", "raw"];
        succeed(Command::new("qemu-img").args(convert).arg(&back));
        assert!(fs::read(&image).unwrap() == fs::read(&back).unwrap(), "qemu-img, {backend}");
        let io = ["-c", "write -P 7 1000 70000", "-c", "read -P 7 1000 70000", "-c", "flush"];
        let open = ["--object", &creds, "--image-opts", &at];
        let said = succeed(Command::new("qemu-io").args(open).args(io));
        assert!(!said.contains("failed"), "{said}");
    }
}

#[test]
fn clients_without_a_valid_certificate_are_refused_and_logged() {
    require_clients!("nbdinfo");
    let rig = Rig::start(Server::Required);
    let other = Authority::new("another CA");
    let refused = |folder: &Path| {
        let output = info(&rig.uri("v", folder));
        assert!(!output.status.success(), "{}", text(&output));
    };
    refused(&rig.authority.client_folder(&rig.authority, "old", Validity::Past));
    rig.said("the peer's certificate is expired");
    refused(&rig.authority.client_folder(&rig.authority, "early", Validity::Future));
    rig.said("the peer's certificate is not valid yet");
    // GnuTLS sends no certificate that is of none of the server's CAs; ours does.
    refused(&other.client_folder(&rig.authority, "stranger", Validity::Now));
    rig.said("the peer sent no certificate, but one is required");
    let files = ClientFiles::in_folder(&other.folder().join("stranger-folder"));
    let session = Session::client(&ClientConfig::load(&files).unwrap(), "localhost").unwrap();
    let mut stranger = Tls { stream: rig.at_tls(), session };
    while !stranger.session.is_established() {
        stranger.turn(&mut []);
    }
    stranger.send();
    assert!(!rest(stranger.stream).is_empty(), "an alert");
    rig.said("the peer's certificate is from an unknown CA");
    let bare = rig.client("bare");
    fs::remove_file(bare.join("client-cert.pem")).unwrap();
    fs::remove_file(bare.join("client-key.pem")).unwrap();
    refused(&bare);
    // Here the client refuses the server.
    refused(&rig.authority.client_folder(&other, "wary", Validity::Now));
    rig.said("the client hung up during the TLS handshake; it may reject the server's certificate");
    assert!(info(&rig.uri("v", &rig.client("host"))).status.success());
}

#[test]
fn export_is_there_for_names_that_it_allows_and_for_nobody_else() {
    require_clients!("nbdinfo");
    let more = "[[export]]\nvolume = \"v\"\nname = \"secret\"\ntls-allow = [\"alice\", \
                \"bob.test\"]\nnbd = \"tcp:0\"\n";
    let rig = Rig::with(Server::Offered, "epoll", more, |_| ());
    let (alice, eve) = (rig.client("alice"), rig.client("eve"));
    let secret = info(&rig.uri("secret", &alice));
    assert!(secret.status.success(), "{}", text(&secret));
    let denied = info(&rig.uri("secret", &eve));
    assert!(text(&denied).contains("No such file"), "{}", text(&denied));
    rig.said("may not use export \"secret\": its tls-allow does not list this client");
    assert!(info(&rig.uri("v", &eve)).status.success());
    let list = |uri: &str| succeed(Command::new("nbdinfo").args(["--list", uri]));
    assert!(list(&rig.uri("", &alice)).contains("export=\"secret\""));
    assert!(!list(&rig.uri("", &eve)).contains("secret"));
    let plain = list(&rig.plain_uri());
    assert!(plain.contains("export=\"v\"") && !plain.contains("secret"), "{plain}");
}

#[test]
fn plaintext_where_tls_is_required_is_told_so() {
    let rig = Rig::start(Server::Required);
    let mut stream = rig.tcp();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream.write_all(&option(3, &[])).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[12..16], [0x80, 0, 0, 5], "NBD_REP_ERR_TLS_REQD");
    let mut why = vec![0; 24];
    stream.read_exact(&mut why).unwrap();
    assert_eq!(why, b"this server requires TLS");
    // An option without a way to say no ends the connection.
    stream.write_all(&option(1, b"v")).unwrap();
    assert!(rest(stream).is_empty());
}

#[test]
fn vanished_peer_is_not_noticed_by_others() {
    let rig = Rig::start(Server::Required);
    // A man in the middle adds options behind the client's request.
    let mut stream = rig.tcp();
    stream.write_all(&[&[0, 0, 0, 3][..], &option(5, &[]), &option(3, &[])].concat()).unwrap();
    assert_eq!(rest(stream).len(), 18, "the greeting and nothing else");
    rig.said(
        "is refused: 16 bytes arrived between the client's TLS request and the server's reply",
    );
    let mut garbage = rig.at_tls();
    garbage.write_all(&option(3, &[])).unwrap();
    assert_eq!(rest(garbage).first(), Some(&0x15), "an alert");
    rig.said("the peer does not use TLS: it sent \"IHAVEOPT\" instead of a handshake");
    // A handshake that goes no further ends at its timeout.
    let mut stalled = rig.at_tls();
    stalled.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap();
    // The next connection ends in the middle of a record.
    let mut cut = rig.at_tls();
    cut.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]).unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert!(rest(cut).is_empty());
    let mut session = open(&rig);
    session.ask(&option(3, &[]));
    assert!(rest(stalled).is_empty());
    open(&rig).ask(&option(3, &[]));
}

/// A client's session of ours over TCP.
struct Tls {
    stream: TcpStream,
    session: Session,
}

fn open(rig: &Rig) -> Tls {
    let files = ClientFiles::in_folder(&rig.client("ours"));
    let session = Session::client(&ClientConfig::load(&files).unwrap(), "localhost").unwrap();
    let mut tls = Tls { stream: rig.at_tls(), session };
    while !tls.session.is_established() {
        tls.turn(&mut []);
    }
    tls
}

impl Tls {
    /// Sends pending output, receives once, and reads.
    fn turn(&mut self, into: &mut [u8]) -> usize {
        self.send();
        let read = self.session.read(into).unwrap();
        if read > 0 || self.session.is_established() && into.is_empty() {
            self.send();
            return read;
        }
        let received = self.stream.read(self.session.room()).unwrap();
        assert!(received > 0, "the server hung up");
        self.session.received(received);
        let read = self.session.read(into).unwrap();
        self.send();
        read
    }

    fn send(&mut self) {
        let bytes = self.session.output().len();
        self.stream.write_all(self.session.output()).unwrap();
        self.session.sent(bytes);
    }

    /// Sends an option and waits for the first bytes of the answer.
    fn ask(&mut self, bytes: &[u8]) {
        assert_eq!(self.session.write(bytes).unwrap(), bytes.len());
        self.session.finish().unwrap();
        let mut reply = [0; 4096];
        while self.turn(&mut reply) == 0 {}
        assert_eq!(reply[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
    }
}

#[test]
fn a_hang_up_in_the_middle_of_a_record_costs_that_client_only() {
    let rig = Rig::start(Server::Required);
    let mut session = open(&rig);
    session.session.write(&[7; 16_000]).unwrap();
    session.session.finish().unwrap();
    let half = session.session.output().len() / 2;
    session.stream.write_all(&session.session.output()[..half]).unwrap();
    drop(session);
    // A record that was changed on the way.
    let mut changed = open(&rig);
    changed.session.write(&option(3, &[])).unwrap();
    changed.session.finish().unwrap();
    let mut bytes = changed.session.output().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    changed.stream.write_all(&bytes).unwrap();
    assert!(!rest(changed.stream).is_empty(), "an alert");
    rig.said("a record cannot be decrypted");
    open(&rig).ask(&option(3, &[]));
}

#[test]
fn a_goodbye_right_behind_half_a_write_is_heard() {
    let rig = Rig::start(Server::Required);
    for sent in [10, 40_000] {
        let mut tls = open(&rig);
        tls.ask(&option(7, &[&[0, 0, 0, 1][..], b"v", &[0, 0]].concat()));
        let mut write = [0; 28];
        write[..8].copy_from_slice(&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]);
        write[24..].copy_from_slice(&65_536_u32.to_be_bytes());
        // Of its own records, so that payload is decrypted straight into the drive's buffer.
        for part in [&write[..], &vec![7; sent]] {
            assert_eq!(tls.session.write(part).unwrap(), part.len());
            tls.session.finish().unwrap();
        }
        tls.session.close();
        tls.send();
        let ended = tls.stream.read_to_end(&mut Vec::new());
        assert!(ended.is_ok(), "{sent} bytes of payload: {ended:?}");
    }
}

#[test]
fn flood_of_handshakes_takes_bounded_memory_and_blocks_nobody() {
    let rig = Rig::start(Server::Required);
    let before = rig.daemon.resident_kib();
    let flood: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = rig.at_tls();
            stream.write_all(&[0x16, 3, 1, 0x40, 0]).unwrap();
            stream.write_all(&[1; 1000]).unwrap();
            stream
        })
        .collect();
    open(&rig).ask(&option(3, &[]));
    let (ticks, start) = (rig.daemon.cpu_ticks(), std::time::Instant::now());
    std::thread::sleep(Duration::from_millis(400));
    let busy = (rig.daemon.cpu_ticks() - ticks) * 10;
    let waited = start.elapsed().as_millis() as u64;
    assert!(busy < waited / 4, "{busy} ms of CPU in {waited} ms while nobody sends anything");
    let each = rig.daemon.resident_kib().saturating_sub(before) / 100;
    assert!(each < 700, "{each} KiB for each client in its handshake");
    for stream in flood {
        assert!(rest(stream).is_empty(), "ended by its timeout");
    }
}

#[test]
fn new_certificates_are_used_without_a_restart() {
    require_clients!("nbdinfo");
    let rig = Rig::start(Server::Required);
    let folder = rig.client("host");
    assert!(info(&rig.uri("v", &folder)).status.success());
    // A certificate of another CA shows which one is in use. Its key is copied a moment later.
    let other = Authority::new("next CA");
    let next = other.issue("server", &["localhost"], Validity::Now);
    let (certificate, key) = (
        rig.authority.folder().join("server-cert.pem"),
        rig.authority.folder().join("server-key.pem"),
    );
    fs::copy(&next.certificate, &certificate).unwrap();
    rig.said("the key does not belong to the certificate");
    rig.said("the previous certificates stay in use");
    assert!(info(&rig.uri("v", &folder)).status.success(), "the former stays in use");
    fs::copy(&next.key, &key).unwrap();
    rig.said("new certificates are in use");
    assert!(!info(&rig.uri("v", &folder)).status.success());
    let trusting = rig.authority.client_folder(&other, "trusting", Validity::Now);
    assert!(info(&rig.uri("v", &trusting)).status.success());
}

#[test]
fn a_start_names_the_file_that_it_cannot_use_and_the_line() {
    let authority = Authority::new("CA");
    let server = authority.issue("server", &["localhost"], Validity::Now);
    let other = authority.issue("other", &["localhost"], Validity::Now);
    let old = authority.issue("old", &["localhost"], Validity::Past);
    let dir = millrace_tests::tempdir();
    let file = dir.path().join("m.toml");
    let missing = authority.folder().join("missing.pem");
    let reversed = authority.folder().join("reversed.pem");
    let pem = |path: &Path| fs::read_to_string(path).unwrap();
    fs::write(&reversed, pem(&authority.ca()) + &pem(&server.certificate)).unwrap();
    for (certificate, key, words) in [
        (&server.certificate, &other.key, "the key does not belong to the certificate"),
        (&reversed, &server.key, "in the wrong order: the key belongs to number 2"),
        (&missing, &server.key, "cannot be read: No such file"),
        (&old.certificate, &old.key, "expired at"),
    ] {
        let tls = format!(
            "tls = {{ certificate = \"{}\", key = \"{}\" }}\n",
            certificate.display(),
            key.display()
        );
        let config = stripe("epoll", &["ram:size=1m"]) + &tls;
        let line = config.lines().position(|line| line.starts_with("tls = ")).unwrap() + 1;
        fs::write(&file, config).unwrap();
        for check in [&[][..], &["--check"]] {
            let mut command = millrace_tests::millrace();
            command.current_dir(dir.path()).arg("serve").arg("m.toml").args(check);
            let output = run_within(&mut command, WAIT);
            let said = text(&output);
            assert!(!output.status.success(), "{said}");
            let severity = if check.is_empty() { "" } else { "error: " };
            let place = format!("m.toml:{line}: {severity}unix:");
            assert!(said.contains(&place) && said.contains(words), "{said}");
        }
    }
}

#[test]
fn check_warns_of_certificates_that_expire_soon_as_start_does() {
    let authority = Authority::valid("old CA", Validity::Seconds(3000));
    let server = authority.issue("server", &["localhost"], Validity::Seconds(3000));
    let dir = millrace_tests::tempdir();
    let tls = format!(
        "tls = {{ certificate = \"{}\", key = \"{}\", client-ca = \"{}\" }}\n",
        server.certificate.display(),
        server.key.display(),
        authority.ca().display(),
    );
    let config = stripe("epoll", &["ram:size=1m"]) + &tls;
    fs::write(dir.path().join("m.toml"), config).unwrap();
    let mut command = millrace_tests::millrace();
    command.current_dir(dir.path()).args(["serve", "m.toml", "--check"]);
    let output = run_within(&mut command, WAIT);
    assert!(output.status.success());
    let said = text(&output);
    for (what, file) in
        [("the certificate", &server.certificate), ("the CA \"old CA\"", &authority.ca())]
    {
        let words = format!("{what} in {} expires within a day, at ", file.display());
        assert!(said.contains(&words), "{said}");
    }
}
