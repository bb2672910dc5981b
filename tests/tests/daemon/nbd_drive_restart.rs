//! A server that is killed again and again while fio writes and verifies: nothing is lost, and no
//! request fails, also when the server comes back with room for fewer connections. A flush that
//! fails after a restart, where that is asked for. The stop of a daemon whose server is gone.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use millrace_tests::raw_nbd::{FLUSH, RawNbd, request};
use millrace_tests::remote::Remote;
use millrace_tests::serving::{backends, stripe, succeed, uri};
use millrace_tests::{Daemon, millrace, poll_within, require_clients, run, tempdir};

/// Number of kills of the server on each back end: 4, or `MILLRACE_KILLS`.
fn kills() -> u64 {
    std::env::var("MILLRACE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// Kills the server `kills` times under a verifying fio; returns the daemon's messages.
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
fn server_that_is_killed_under_fio_costs_time_and_nothing_else() {
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
fn qcow2_server_killed_under_fio_only_costs_time() {
    require_clients!("fio", "qemu-nbd", "qemu-img");
    let dir = tempdir();
    let image = dir.path().join("i.qcow2");
    // A killed qemu-nbd loses qcow2 tables that are only in memory; preallocation writes them now.
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
fn while_server_is_gone_request_waits_as_long_as_reconnect_says() {
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

/// Waits for a message of the daemon.
fn await_said(daemon: &Daemon, text: &str) {
    let said = || daemon.stderr().contains(text).then_some(());
    let found = poll_within(Duration::from_secs(20), said);
    assert!(found.is_some(), "no {text:?} in: {}", daemon.stderr());
}

/// Four fio jobs, each on a thread of its own, that write and verify.
fn four_jobs(daemon: &Daemon) {
    let mut fio = Command::new("fio");
    fio.current_dir(daemon.dir()).stdin(Stdio::null());
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--numjobs=4", "--thread"]);
    fio.args(["--size=4m", "--offset_increment=8m", "--iodepth=8", "--bs=4k", "--verify=crc32c"]);
    fio.args(["--verify_fatal=1", "--do_verify=1", "--fsync=64"]);
    let output = run(fio.arg(format!("--uri={}", uri(daemon, "v"))));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", daemon.stderr());
}

#[test]
fn a_server_with_room_for_fewer_clients_serves_all_threads() {
    require_clients!("fio", "nbdkit");
    let limited = ["--filter=limit", "memory", "32M", "limit=2"];
    for backend in backends() {
        let dir = tempdir();
        let mut server = Remote::nbdkit(&dir.path().join("n"), &["memory", "32M"]);
        let config = stripe(backend, &[server.spec(",reconnect=30s")]);
        let config = config.replace("threads = 2", "threads = 4") + "control = \"unix:c\"\n";
        let mut daemon = Daemon::start(&config, &["s"]);
        four_jobs(&daemon);
        server.kill();
        server.start_again_with(Remote::NBDKIT_ARGS, &limited);
        await_said(&daemon, "2 of 4 connections carry all requests");
        four_jobs(&daemon);
        let control = format!("unix:{}", daemon.dir().join("c").display());
        let why = succeed(millrace().args(["ctl", "why", "v", "1", "--connect", &control]));
        assert!(why.contains("drive d0: 2 of 4 connections: "), "{why}");
        assert!(!daemon.stderr().contains("failed"), "{}", daemon.stderr());
        assert!(daemon.terminate().success(), "{}", daemon.stderr());
        // From the start.
        let mut daemon = Daemon::start(&config, &["s"]);
        four_jobs(&daemon);
        await_said(&daemon, "2 of 4 connections carry all requests");
        assert!(daemon.terminate().success(), "{}", daemon.stderr());
    }
}

/// A client of the daemon's export.
fn client(daemon: &Daemon) -> RawNbd {
    RawNbd::connect(&daemon.dir().join("s"), "v").unwrap()
}

/// Does a flush succeed?
fn flush(client: &mut RawNbd) -> bool {
    client.send(&request(FLUSH, 1, 0, 0)).unwrap();
    client.reply().unwrap().0 == 0
}

#[test]
fn flush_fails_once_after_a_server_restart_if_requested() {
    require_clients!("nbdkit");
    let cache = "[volume.cache]\nsize = \"16m\"\ndirty-age = \"10ms\"\n[[export]]";
    for (drives, has_cache, asked) in
        [(1, false, true), (2, false, true), (1, true, true), (1, false, false)]
    {
        let dir = tempdir();
        let names: Vec<_> = (0..drives).map(|n| dir.path().join(format!("n{n}"))).collect();
        let mut servers: Vec<_> =
            names.iter().map(|name| Remote::nbdkit(name, &["memory", "32M"])).collect();
        let keys = if asked { ",on-server-restart=flush-error" } else { "" };
        let specs: Vec<_> = servers.iter().map(|server| server.spec(keys)).collect();
        let mut config = stripe("auto", &specs);
        if has_cache {
            config = config.replace("[[export]]", cache);
        }
        let mut daemon = Daemon::start(&config, &["s"]);
        let mut client = client(&daemon);
        client.flush().unwrap();
        (0..16).for_each(|at| client.write(at << 16, &[7; 1 << 16]).unwrap());
        if has_cache {
            // The cache writes its dirty data to the server, and does not flush them there.
            sleep(Duration::from_secs(3));
        }
        servers.iter_mut().for_each(Remote::kill);
        servers.iter_mut().for_each(Remote::start_again);
        let again = || (daemon.stderr().matches("connected again").count() >= drives).then_some(());
        assert!(poll_within(Duration::from_secs(10), again).is_some(), "{}", daemon.stderr());
        let flushes = [(); 3].map(|()| flush(&mut client));
        let what = format!("{drives} drives, cache {has_cache}: {}", daemon.stderr());
        assert_eq!(flushes, [!asked, true, true], "{what}");
        drop(client);
        assert!(daemon.terminate().success(), "{}", daemon.stderr());
    }
}

#[test]
fn daemon_stops_at_once_without_its_server_unless_unflushed() {
    require_clients!("nbdkit");
    for (writes, flushes, has_cache) in
        [(false, false, false), (true, true, false), (true, true, true), (true, false, true)]
    {
        let dir = tempdir();
        let mut server = Remote::nbdkit(&dir.path().join("n"), &["memory", "32M"]);
        let mut config = stripe("auto", &[server.spec(",reconnect=300s")]);
        if has_cache {
            let cache = "[volume.cache]\nsize = \"16m\"\ndirty-age = \"600s\"\n[[export]]";
            config = config.replace("[[export]]", cache);
        }
        let mut daemon = Daemon::start(&config, &["s"]);
        let mut client = client(&daemon);
        if writes {
            client.write(0, &[7; 1 << 16]).unwrap();
        }
        if flushes {
            client.flush().unwrap();
        }
        drop(client);
        server.kill();
        await_said(&daemon, " lost: ");
        let begun = Instant::now();
        let status = daemon.terminate();
        let (took, said) = (begun.elapsed(), daemon.stderr());
        let is_clean = !writes || flushes;
        assert_eq!(status.success(), is_clean, "{said}");
        match is_clean {
            true => assert!(took < Duration::from_secs(4), "{took:?}: {said}"),
            false => assert!(said.contains("64 KiB"), "what is lost is said: {said}"),
        }
    }
}
