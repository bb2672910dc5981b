//! A server that is killed again and again while fio writes and verifies: nothing is lost, and no
//! request fails.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use millrace_tests::remote::Remote;
use millrace_tests::serving::{backends, stripe, uri};
use millrace_tests::{Daemon, require_clients, tempdir};

/// How often the server is killed on each back end: a few times, or `MILLRACE_KILLS`.
fn kills() -> u64 {
    std::env::var("MILLRACE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// Kills the server `kills` times under a verifying fio; what the daemon said.
fn under_fio(mut server: Remote, backend: &str, kills: u64) -> String {
    let daemon = Daemon::start(&stripe(backend, &[server.spec(",reconnect=30s")]), &["s"]);
    let mut fio = Command::new("fio");
    fio.current_dir(daemon.dir()).stdin(Stdio::null());
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--numjobs=2", "--thread"]);
    fio.args(["--size=16m", "--offset_increment=16m", "--iodepth=16", "--time_based"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_backlog=256"]);
    fio.args(["--bssplit=4k/60:64k/30:256k/10", "--fsync=128"]);
    fio.arg(format!("--runtime={}", kills)).arg(format!("--uri={}", uri(&daemon, "v")));
    let output = daemon.dir().join("fio");
    fio.stdout(fs::File::create(&output).unwrap()).stderr(Stdio::null());
    let mut fio = fio.spawn().unwrap();
    let (mut killed, mut number) = (0, 0);
    while fio.try_wait().unwrap().is_none() {
        number += 1;
        sleep(Duration::from_millis(150 + 97 * (number % 7)));
        server.kill();
        killed += 1;
        sleep(Duration::from_millis(40 * (number % 4)));
        server.start_again();
    }
    let said = fs::read_to_string(&output).unwrap();
    assert!(fio.wait().unwrap().success(), "{said}{}", daemon.stderr());
    assert_eq!(said.matches("err= 0").count(), 2, "{said}");
    println!("{backend}: killed {killed} times");
    assert!(killed >= kills, "killed {killed} times only");
    daemon.stderr()
}

#[test]
fn a_server_that_is_killed_under_fio_costs_time_and_nothing_else() {
    require_clients!("fio", "nbdkit");
    for backend in backends() {
        let dir = tempdir();
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let file = format!("file={}", image.display());
        let server = Remote::nbdkit(&dir.path().join("n"), &["file", &file]);
        let said = under_fio(server, backend, kills());
        assert!(said.contains(" lost: the server hung up"), "{said}");
        assert!(said.contains("connected again"), "{said}");
        assert!(!said.contains("failed"), "no request fails: {said}");
    }
}

#[test]
fn a_qcow2_server_that_is_killed_under_fio_costs_time_and_nothing_else() {
    require_clients!("fio", "qemu-nbd", "qemu-img");
    let dir = tempdir();
    let image = dir.path().join("i.qcow2");
    // Killed, it leaves what it had in memory of its tables behind: those are written at once here.
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata"])
        .arg(&image)
        .arg("32M")
        .status();
    assert!(made.unwrap().success());
    under_fio(Remote::qemu(&dir.path().join("q"), "qcow2", &image), "auto", kills());
}

/// The time for coming back counts while the server is gone, not the timeout of a request, which is
/// shorter here.
#[test]
fn while_the_server_is_gone_a_request_waits_as_long_as_reconnect_says() {
    require_clients!("nbdkit", "qemu-io");
    let dir = tempdir();
    let mut server = Remote::nbdkit(&dir.path().join("n"), &["memory", "16M"]);
    let config = stripe("auto", &[server.spec(",reconnect=30s")]);
    let config = config.replace("spec =", "timeout = \"1s\"\nspec =");
    let daemon = Daemon::start(&config, &["s"]);
    server.kill();
    let mut read = Command::new("qemu-io");
    read.args(["-r", "-f", "raw", "-c", "read 0 4k", &uri(&daemon, "v")]).stdin(Stdio::null());
    let read = read.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_secs(3));
    server.start_again();
    let output = read.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", daemon.stderr());
    assert!(!daemon.stderr().contains("failed"), "{}", daemon.stderr());
}
