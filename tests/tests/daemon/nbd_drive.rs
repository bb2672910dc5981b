//! Drives on foreign NBD servers: written data come back, and errors are those of the server.

use std::fs;
use std::process::Command;

use millrace_tests::remote::Remote;
use millrace_tests::serving::{backends, stripe, succeed, uri};
use millrace_tests::{Daemon, millrace, require_clients, run, tempdir};

/// Four jobs of mixed blocks, each in its own 8 MiB, with flushes; verified.
fn verify(daemon: &Daemon) {
    let mut command = Command::new("fio");
    command.current_dir(daemon.dir());
    command.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--numjobs=4"]);
    command.args(["--size=8m", "--offset_increment=8m", "--iodepth=16", "--thread"]);
    command.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--fsync=64"]);
    command.args(["--bssplit=512/10:4k/40:12k/20:64k/20:256k/10"]);
    let said = succeed(command.arg(format!("--uri={}", uri(daemon, "v"))));
    assert_eq!(said.matches("err= 0").count(), 4, "{said}");
}

/// A daemon whose volume `v` is a stripe of these drives.
fn daemon(backend: &str, specs: &[String]) -> Daemon {
    Daemon::start(&stripe(backend, specs), &["s"])
}

#[test]
fn fio_verifies_what_it_writes_through_to_nbdkit() {
    require_clients!("fio", "nbdkit");
    for backend in backends() {
        let dir = tempdir();
        let at = |name: &str| dir.path().join(name);
        fs::File::create(at("image")).unwrap().set_len(64 << 20).unwrap();
        let file = format!("file={}", at("image").display());
        let servers = [
            Remote::nbdkit(&at("a"), &["memory", "64M"]),
            Remote::nbdkit(&at("b"), &["file", &file]),
            // A server that carries out one request at a time, on one connection.
            Remote::nbdkit(&at("c"), &["--filter=noparallel", "memory", "64M"]),
        ];
        let keys = [",connections=3", "", ",depth=16"];
        let specs: Vec<_> = servers.iter().zip(keys).map(|(one, keys)| one.spec(keys)).collect();
        verify(&daemon(backend, &specs));
    }
}

#[test]
fn a_qcow2_image_behind_qemu_nbd_is_a_drive() {
    require_clients!("fio", "qemu-nbd", "qemu-img");
    let dir = tempdir();
    let (image, socket) = (dir.path().join("i.qcow2"), dir.path().join("q"));
    succeed(Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("64M"));
    let server = Remote::qemu(&socket, "qcow2", &image);
    let mut served = daemon("auto", &[server.spec("")]);
    verify(&served);
    assert!(served.terminate().success());
    drop(server);
    succeed(Command::new("qemu-img").args(["check", "-q"]).arg(&image));
}

#[test]
fn another_millrace_is_a_server_and_holes_are_seen_through_it() {
    require_clients!("fio", "nbdinfo");
    let dir = tempdir();
    let file = format!("file:path={}/d,size=64m", dir.path().display());
    let below = daemon("auto", &[file]);
    let spec = format!("nbd:uri=nbd+unix:///v?socket={}", below.dir().join("s").display());
    let above = daemon("auto", &[spec]);
    let map = || succeed(Command::new("nbdinfo").args(["--map", &uri(&above, "v")]));
    assert_eq!(map().split_whitespace().collect::<Vec<_>>()[..3], ["0", "67108864", "3"]);
    verify(&above);
    assert!(map().lines().any(|line| line.ends_with("data")), "{}", map());
}

#[test]
fn a_servers_errors_reach_the_client_and_nothing_else_does() {
    require_clients!("nbdkit", "qemu-io");
    let dir = tempdir();
    let bad = ["--filter=error", "memory", "64M", "error-pread-rate=100%", "error-pread=EIO"];
    let full = ["--filter=error", "memory", "64M", "error-pwrite-rate=100%", "error-pwrite=ENOSPC"];
    for (args, command, said) in [
        (bad, "read 0 4k", "read failed: Input/output error"),
        (full, "write 0 4k", "write failed: No space left on device"),
    ] {
        let server = Remote::nbdkit(&dir.path().join("e"), &args);
        let served = daemon("auto", &[server.spec("")]);
        let mut io = Command::new("qemu-io");
        let output = run(io.args(["-f", "raw", "-c", command, &uri(&served, "v")]));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(said), "{text}{}", String::from_utf8_lossy(&output.stderr));
        // The other way works still.
        let other = if command.starts_with("read") { "write 0 4k" } else { "read 0 4k" };
        succeed(Command::new("qemu-io").args(["-f", "raw", "-c", other, &uri(&served, "v")]));
    }
}

/// The error message with which `serve` refuses a configuration.
fn refusal(specs: &[String]) -> String {
    let dir = tempdir();
    let file = dir.path().join("m.toml");
    fs::write(&file, stripe("auto", specs)).unwrap();
    let output = run(millrace().arg("serve").arg(&file).current_dir(dir.path()));
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_wrong_with_a_server_is_said_with_its_uri() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let socket = dir.path().join("s");
    let (read_only, server) = (
        Remote::nbdkit(&dir.path().join("r"), &["-r", "memory", "1M"]),
        Remote::nbdkit(&socket, &["memory", "1M"]),
    );
    let at = socket.display();
    let spec = |text: &str| vec![text.to_owned()];
    for (specs, said) in [
        (spec("nbd:"), "driver nbd needs uri=..."),
        (spec("nbd:url=nbd://x"), "driver nbd has no key `url` (did you mean `uri`?)"),
        (spec("nbd:uri=http://x"), "write nbd://host/name or nbd+unix:///name?socket=/path"),
        (spec("nbd:uri=nbd+unix:///?socket=/no/such"), "start the server, or correct uri="),
        (
            spec("nbd:uri=nbd://127.0.0.1:1/x"),
            "no server listens at this address: start the server",
        ),
        (vec![read_only.spec("")], "the export is read-only; serve the drive read-only"),
        (vec![server.spec(",connections=0")], "write a number from 1 to 64"),
        (vec![server.spec(""), server.spec("")], "drive d1: its export is that of drive d0"),
    ] {
        let text = refusal(&specs);
        assert!(text.contains(said), "{specs:?} at {at}: {text}");
    }
}

#[test]
fn one_export_of_two_drives_is_refused() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let server = Remote::nbdkit(&dir.path().join("s"), &["memory", "1M"]);
    let (spec, file) = (server.spec(""), dir.path().join("m.toml"));
    let check = || {
        let mut program = millrace();
        let output = run(program.args(["serve", "m.toml", "--check"]).current_dir(dir.path()));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    fs::write(&file, stripe("auto", &[spec.clone(), format!("fault:drive=({spec})")])).unwrap();
    let refused = "drive d1: its export is that of drive d0 (line";
    let (code, text) = check();
    assert!(code == Some(1) && text.contains(refused), "{code:?}: {text}");
    // Two drives that only read the same export do not conflict.
    let reader = server.spec(",read-only=on");
    fs::write(&file, stripe("auto", &[reader.clone(), reader.clone()])).unwrap();
    let (code, text) = check();
    assert!(!text.contains("is that of drive"), "{code:?}: {text}");
}

#[test]
fn a_check_asks_the_server_and_serves_nothing() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let mut server = Remote::nbdkit(&dir.path().join("s"), &["memory", "1000000"]);
    let file = dir.path().join("m.toml");
    fs::write(&file, stripe("auto", &[server.spec("")])).unwrap();
    let check = |dir: &std::path::Path| {
        run(millrace().arg("serve").arg(&file).arg("--check").current_dir(dir))
    };
    let output = check(dir.path());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("the last 64, which make no whole block of 512"), "{text}");
    server.kill();
    let output = check(dir.path());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("no server listens at this address"), "{text}");
    server.start_again();
}
