//! Drives on NBD servers by TLS: nbdkit with certificates, good ones and others.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use millrace_tests::remote::Remote;
use millrace_tests::serving::{stripe, succeed, uri};
use millrace_tests::{Daemon, millrace, poll_within, require_clients, run, tempdir};

/// A CA of this name in `dir`, and a certificate for `localhost` that it has signed, as nbdkit
/// names them.
fn certificates(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    fs::write(at("ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    let new = |kind: &[&str], name: &str, key: &str, out: &str| {
        let mut command = Command::new("openssl");
        command.args(["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        command.args(["-nodes", "-subj", name, "-keyout", &at(key), "-out", &at(out)]);
        succeed(command.args(kind));
    };
    new(&["-x509", "-days", "2"], "/CN=a test's CA", "ca-key.pem", "ca-cert.pem");
    new(&["-new"], "/CN=localhost", "server-key.pem", "server.csr");
    let mut sign = Command::new("openssl");
    sign.args(["x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", &at("ext")]);
    sign.args(["-CA", &at("ca-cert.pem"), "-CAkey", &at("ca-key.pem")]);
    succeed(sign.args(["-in", &at("server.csr"), "-out", &at("server-cert.pem")]));
}

/// nbdkit that demands TLS.
fn secured(socket: &Path, certificates: &Path) -> Remote {
    let folder = format!("--tls-certificates={}", certificates.display());
    Remote::nbdkit(socket, &["--tls=require", &folder, "memory", "32M"])
}

fn spec(socket: &Path, ca: &Path, keys: &str) -> String {
    let (socket, ca) = (socket.display(), ca.join("ca-cert.pem"));
    format!("nbd:uri=nbds+unix:///?socket={socket},tls-ca={}{keys}", ca.display())
}

#[test]
fn fio_verifies_by_tls_and_a_killed_server_is_secured_again() {
    require_clients!("fio", "nbdkit", "openssl");
    let dir = tempdir();
    let (folder, socket) = (dir.path().join("tls"), dir.path().join("s"));
    certificates(&folder);
    let mut server = secured(&socket, &folder);
    for backend in ["auto", "epoll"] {
        let daemon = Daemon::start(&stripe(backend, &[spec(&socket, &folder, "")]), &["s"]);
        let verify = || {
            let mut fio = Command::new("fio");
            fio.current_dir(daemon.dir());
            fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--numjobs=2"]);
            fio.args(["--size=8m", "--offset_increment=8m", "--iodepth=16", "--thread"]);
            fio.args(["--verify=crc32c", "--verify_fatal=1", "--bssplit=4k/50:64k/30:512k/20"]);
            succeed(fio.arg(format!("--uri={}", uri(&daemon, "v"))));
        };
        verify();
        server.kill();
        server.start_again();
        verify();
        // The daemon logs drives' messages once per second.
        let said = || daemon.stderr().contains("connected again").then_some(());
        assert!(poll_within(Duration::from_secs(5), said).is_some(), "{}", daemon.stderr());
    }
}

#[test]
fn a_wrong_ca_a_wrong_name_and_plaintext_are_refused_in_words() {
    require_clients!("nbdkit", "openssl");
    let dir = tempdir();
    let (folder, other) = (dir.path().join("tls"), dir.path().join("other"));
    certificates(&folder);
    certificates(&other);
    let socket = dir.path().join("s");
    let plain_socket = dir.path().join("p");
    let _servers = [secured(&socket, &folder), Remote::nbdkit(&plain_socket, &["memory", "1M"])];
    let plain = format!("nbd:uri=nbd+unix:///?socket={}", socket.display());
    for (spec, said) in [
        (spec(&socket, &other, ""), "TLS: "),
        (spec(&socket, &folder, ",tls-hostname=example.com"), "example.com"),
        (plain.clone(), "the server accepts only clients with TLS"),
        (spec(&plain_socket, &folder, ""), "the server refused TLS"),
        (spec(&socket, Path::new("/no/such"), ""), "/no/such/ca-cert.pem"),
        (format!("{plain},tls-ca=/x"), "TLS needs a uri= that begins with nbds: or nbds+unix:"),
    ] {
        let file = dir.path().join("m.toml");
        fs::write(&file, stripe("auto", std::slice::from_ref(&spec))).unwrap();
        let output = run(millrace().arg("serve").arg(&file).current_dir(dir.path()));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{spec}: {text}");
        assert!(text.contains(said), "{spec}: {text}");
    }
}

/// Waits for a message of the daemon.
fn await_said(daemon: &Daemon, text: &str) {
    let said = || daemon.stderr().contains(text).then_some(());
    let found = poll_within(Duration::from_secs(20), said);
    assert!(found.is_some(), "no {text:?} in: {}", daemon.stderr());
}

#[test]
fn server_of_another_ca_is_refused_and_a_small_one_serves_all() {
    require_clients!("fio", "nbdkit", "openssl");
    let dir = tempdir();
    let (folder, other, socket) =
        (dir.path().join("tls"), dir.path().join("o"), dir.path().join("s"));
    certificates(&folder);
    certificates(&other);
    let mut server = secured(&socket, &folder);
    let args = |folder: &Path, limit: &[&str]| {
        let folder = format!("--tls-certificates={}", folder.display());
        let own = ["--tls=require".to_owned(), folder];
        let plugin = if limit.is_empty() { &["memory", "32M"][..] } else { limit };
        own.into_iter().chain(plugin.iter().map(|&arg| arg.to_owned())).collect::<Vec<_>>()
    };
    let mut restart = |folder: &Path, limit: &[&str]| {
        server.kill();
        let args = args(folder, limit);
        server.start_again_with(
            Remote::NBDKIT_ARGS,
            &args.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    let config = stripe("auto", &[spec(&socket, &folder, ",reconnect=300s")]);
    let daemon = Daemon::start(&config.replace("threads = 2", "threads = 4"), &["s"]);
    restart(&other, &[]);
    await_said(&daemon, "the server refuses the drive's reconnect: ");
    let why = "the peer's certificate is not signed by the CA that it names";
    assert!(daemon.stderr().contains(why), "{}", daemon.stderr());
    restart(&folder, &["--filter=limit", "memory", "32M", "limit=2"]);
    await_said(&daemon, "2 of 4 connections carry all requests");
    let mut fio = Command::new("fio");
    fio.current_dir(daemon.dir());
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--numjobs=4", "--thread"]);
    fio.args(["--size=4m", "--offset_increment=8m", "--iodepth=8", "--bs=4k"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1"]);
    succeed(fio.arg(format!("--uri={}", uri(&daemon, "v"))));
}
