//! Images of a real Ceph cluster behind NBD: data, holes, sizes, snapshots, locks, an OSD that
//! crashes under load, and images that are removed, shrunk or changed while they are served.
//!
//! All cases share one cluster, since starting it takes longer than any of them. They are steps of
//! one test, each a function. Results are compared with `rbd`'s view of the image.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use millrace_tests::ceph::{Cluster, PROGRAMS};
use millrace_tests::serving::{pattern, succeed, uri};
use millrace_tests::{Daemon, client, millrace, poll_within, run, run_within};

const MIB: u64 = 1 << 20;
/// Bytes of the images.
const IMAGE: usize = 24 << 20;

#[test]
fn images_of_a_cluster_outlast_its_failures_and_clients() {
    let others = ["fio", "nbdcopy", "nbdinfo", "qemu-io"];
    if PROGRAMS.iter().chain(&others).any(|name| client(name).is_none()) {
        return;
    }
    let mut cluster = Cluster::start();
    what_is_wrong_with_a_drive_is_said(&cluster);
    clients_write_what_rbd_exports_and_the_other_way_round(&cluster);
    discards_and_zeroes_reach_the_image_and_holes_are_seen(&cluster);
    an_image_that_grows_is_seen(&cluster);
    snapshots_are_read_and_never_written(&cluster);
    what_is_removed_under_a_reader_ends_in_errors(&cluster);
    an_image_that_was_shrunk_has_no_space_behind_its_end(&cluster);
    an_image_whose_lock_feature_is_disabled_takes_no_more_writes(&cluster);
    a_sharer_that_was_never_let_write_has_lost_nothing(&cluster);
    a_clean_stop_leaves_neither_lock_nor_watch(&cluster);
    one_client_writes_and_the_others_are_refused(&cluster);
    an_osd_that_is_killed_costs_time_and_nothing_else(&mut cluster);
    a_lock_that_is_taken_away_ends_in_errors(&cluster);
}

/// Makes an image without data.
fn create(cluster: &Cluster, image: &str) {
    cluster.rbd(&["create", "--size", "24M", image]);
}

/// A configuration that exports each of these drives by its number, `d0` first.
fn config(cluster: &Cluster, drives: &[&str]) -> String {
    let (conf, mut text) = (cluster.conf(), String::new());
    for (number, keys) in drives.iter().enumerate() {
        text += &format!("[[drive]]\nname = \"d{number}\"\ndriver = \"rbd\"\nimage = {keys}\n");
        text += &format!("conf = \"{}\"\n", conf.display());
        text += &format!("[[volume]]\nname = \"v{number}\"\ndrives = [\"d{number}\"]\n");
        text += &format!("[[export]]\nvolume = \"v{number}\"\nnbd = \"unix:s\"\n");
    }
    text + "[server]\nthreads = 2\ncontrol = \"unix:c\"\n"
}

fn serve(cluster: &Cluster, drives: &[&str]) -> Daemon {
    Daemon::start(&config(cluster, drives), &["s", "c"])
}

fn end(mut daemon: Daemon) {
    let status = daemon.terminate();
    assert!(status.success(), "{status}: {}", daemon.stderr());
}

fn qemu_io(uri: &str, commands: &[&str]) -> Output {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]);
    // A read-only export is not opened for writing.
    if commands.iter().all(|text| text.starts_with("read")) {
        command.arg("-r");
    }
    commands.iter().for_each(|text| {
        command.args(["-c", text]);
    });
    run(command.arg(uri))
}

/// Commands of qemu-io that all succeed.
fn qemu_io_ok(uri: &str, commands: &[&str]) {
    let output = qemu_io(uri, commands);
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let failed = ["failed", "error", "Pattern verification"].iter().any(|bad| said.contains(bad));
    assert!(output.status.success() && !failed, "{commands:?}: {said}");
}

/// The output of a qemu-io command that must fail.
fn qemu_io_fails(uri: &str, command: &str) -> String {
    let output = qemu_io(uri, &[command]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("failed"), "{command}: {said}");
    said
}

/// Waits for a line of a daemon's log, which it looks for once per second.
fn wait_for_line(daemon: &Daemon, words: &str) {
    let found = poll_within(Duration::from_secs(20), || daemon.stderr().find(words));
    assert!(found.is_some(), "{words}: {}", daemon.stderr());
}

/// The image's contents, exported by `rbd`.
fn exported(cluster: &Cluster, image: &str) -> Vec<u8> {
    let file = cluster.file("exported");
    let _ = fs::remove_file(&file);
    cluster.rbd(&["export", image, file.to_str().expect("it is text")]);
    fs::read(&file).expect("rbd has written it")
}

fn random(cluster: &Cluster, seed: u64) -> (std::path::PathBuf, Vec<u8>) {
    let (file, bytes) = (cluster.file("random"), pattern(IMAGE, seed));
    fs::write(&file, &bytes).expect("the directory is writable");
    (file, bytes)
}

/// Exit status and messages of `serve --check` for one drive.
fn check_drive(cluster: &Cluster, spec: &str) -> (Option<i32>, String) {
    let file = cluster.file("refused.toml");
    let text = format!(
        "[[drive]]\nname = \"d0\"\nspec = \"{spec},conf={}\"\n\
         [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n",
        cluster.conf().display()
    );
    fs::write(&file, text).expect("the directory is writable");
    checked(&file)
}

fn what_is_wrong_with_a_drive_is_said(cluster: &Cluster) {
    create(cluster, "rbd/plain");
    // 1 for a drive that does not open, 2 for a configuration that is wrong.
    for (drive, status, words) in [
        ("rbd:rbd/none", 1, "rbd/none: there is no such image; create it with `rbd create"),
        ("rbd:none/plain", 1, "none/plain: the cluster has no pool none"),
        ("rbd:rbd/plain@none", 1, "rbd/plain@none: there is no such image or no such snapshot"),
        ("rbd:plain", 2, "image=plain is invalid; write pool/image"),
        ("rbd:rbd/plain,dept=1", 2, "no key `dept` (did you mean `depth`?)"),
        ("rbdd:rbd/plain", 2, "unknown driver \"rbdd\"; choose "),
    ] {
        let (code, text) = check_drive(cluster, drive);
        assert_eq!(code, Some(status), "{drive}: {text}");
        assert!(text.contains(words), "{drive}: {text}");
    }
    let twice = config(cluster, &["\"rbd/plain\"", "\"rbd/plain\""]);
    let file = cluster.file("twice.toml");
    fs::write(&file, twice).expect("the directory is writable");
    let output = run(millrace().current_dir(dir(&file)).arg("serve").arg(&file));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let said = "twice.toml:14: drive d1: its image is that of drive d0 (line 3) too";
    assert!(text.contains(said), "{text}");
    let (code, text) = checked(&file);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&said.replacen(": ", ": error: ", 1)), "{text}");
    let good = config(cluster, &["\"rbd/plain\""]);
    fs::write(&file, good).expect("the directory is writable");
    let mut check = millrace();
    let said = succeed(check.current_dir(dir(&file)).args(["serve", "--check"]).arg(&file));
    assert!(said.contains("volume \"v0\": 24 MiB"), "{said}");
}

/// The exit status and messages of `serve --check` for a configuration.
fn checked(file: &Path) -> (Option<i32>, String) {
    let output = run(millrace().current_dir(dir(file)).args(["serve", "--check"]).arg(file));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn dir(file: &Path) -> &Path {
    file.parent().expect("a file lies in a directory")
}

fn clients_write_what_rbd_exports_and_the_other_way_round(cluster: &Cluster) {
    create(cluster, "rbd/data");
    let daemon = serve(cluster, &["\"rbd/data\""]);
    let (uri, (file, bytes)) = (uri(&daemon, "v0"), random(cluster, 1));
    succeed(Command::new("nbdcopy").args(["--flush"]).arg(&file).arg(&uri));
    let back = cluster.file("back");
    succeed(Command::new("nbdcopy").arg(&uri).arg(&back));
    assert!(fs::read(&back).expect("nbdcopy has written it") == bytes, "nbdcopy reads other data");
    end(daemon);
    assert!(exported(cluster, "rbd/data") == bytes, "rbd exports other data");
    // A namespace, and data that came by rbd.
    cluster.rbd(&["namespace", "create", "rbd/space"]);
    let (file, bytes) = random(cluster, 2);
    cluster.rbd(&["import", file.to_str().expect("it is text"), "rbd/space/imported"]);
    let daemon = serve(cluster, &["\"rbd/space/imported\"\nread-only = true"]);
    fs::remove_file(&back).expect("it was there");
    succeed(Command::new("nbdcopy").arg(self::uri(&daemon, "v0")).arg(&back));
    assert!(fs::read(&back).expect("nbdcopy has written it") == bytes, "other data than imported");
    end(daemon);
}

fn discards_and_zeroes_reach_the_image_and_holes_are_seen(cluster: &Cluster) {
    create(cluster, "rbd/holes");
    let daemon = serve(cluster, &["\"rbd/holes\""]);
    let uri = uri(&daemon, "v0");
    let map = || succeed(Command::new("nbdinfo").args(["--map", &uri]));
    assert_eq!(holes(&map()), [(0, 24 * MIB)]);
    qemu_io_ok(&uri, &["write -P 7 0 12M", "write -P 8 20M 4M", "flush"]);
    assert_eq!(holes(&map()), [(12 * MIB, 8 * MIB)]);
    qemu_io_ok(
        &uri,
        &[
            "discard 0 4M",
            "write -z -u 4M 4M",
            "write -z 8M 1M",
            "write -z 9000k 3",
            "flush",
            "read -P 0 4M 5M",
            "read -P 7 10M 2M",
            "read -P 0 12M 8M",
            "read -P 8 20M 4M",
        ],
    );
    // Objects that were given up are gone, the one whose zeroes keep their space is not.
    let found = holes(&map());
    assert_eq!(found, [(0, 8 * MIB), (12 * MIB, 8 * MIB)]);
    end(daemon);
    let bytes = exported(cluster, "rbd/holes");
    assert!(bytes[4 << 20..9 << 20].iter().all(|byte| *byte == 0), "zeroes reached the image");
    assert!(bytes[10 << 20..12 << 20].iter().all(|byte| *byte == 7), "data are still there");
}

/// Places and lengths of holes in a map of nbdinfo.
fn holes(map: &str) -> Vec<(u64, u64)> {
    let lines = map.lines().filter(|line| line.contains("hole"));
    let numbers = lines.map(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse().unwrap_or(0));
        (words.next().unwrap_or(0), words.next().unwrap_or(0))
    });
    numbers.collect()
}

fn an_image_that_grows_is_seen(cluster: &Cluster) {
    create(cluster, "rbd/grows");
    let daemon = serve(cluster, &["\"rbd/grows\""]);
    let uri = uri(&daemon, "v0");
    cluster.rbd(&["resize", "--size", "40M", "rbd/grows"]);
    let mut resize = millrace();
    resize.current_dir(daemon.dir()).args(["ctl", "resize", "--connect", "unix:c", "v0"]);
    let said = succeed(&mut resize);
    assert!(said.contains("v0: 40 MiB (41943040 bytes), was 24 MiB"), "{said}");
    qemu_io_ok(&uri, &["write -P 9 36M 4M", "flush", "read -P 9 36M 4M", "read -P 0 24M 12M"]);
    end(daemon);
    assert!(exported(cluster, "rbd/grows")[36 << 20..].iter().all(|byte| *byte == 9));
}

fn snapshots_are_read_and_never_written(cluster: &Cluster) {
    let (file, bytes) = random(cluster, 3);
    cluster.rbd(&["import", file.to_str().expect("it is text"), "rbd/snapped"]);
    cluster.rbd(&["snap", "create", "rbd/snapped@before"]);
    let daemon = serve(cluster, &["\"rbd/snapped\"", "\"rbd/snapped@before\""]);
    qemu_io_ok(&uri(&daemon, "v0"), &["write -P 1 0 8M", "flush", "read -P 1 0 8M"]);
    let info = succeed(Command::new("nbdinfo").arg(uri(&daemon, "v1")));
    assert!(info.contains("is_read_only: true"), "{info}");
    let back = cluster.file("snapshot");
    succeed(Command::new("nbdcopy").arg(uri(&daemon, "v1")).arg(&back));
    assert!(fs::read(&back).expect("nbdcopy has written it") == bytes, "the snapshot has changed");
    // The owner of the lock makes the snapshot on request, and includes all earlier writes.
    cluster.rbd(&["snap", "create", "rbd/snapped@after"]);
    end(daemon);
    assert!(exported(cluster, "rbd/snapped@after")[..8 << 20].iter().all(|byte| *byte == 1));
}

fn what_is_removed_under_a_reader_ends_in_errors(cluster: &Cluster) {
    let (file, _bytes) = random(cluster, 4);
    cluster.rbd(&["import", file.to_str().expect("it is text"), "rbd/read"]);
    cluster.rbd(&["snap", "create", "rbd/read@s"]);
    let read_only = "\"rbd/read\"\nread-only = true";
    let text = config(cluster, &["\"rbd/read@s\"", read_only, "\"rbd/read@s\""]);
    // The last one has a cache above it.
    let cached = "name = \"v2\"\ncache.size = \"8m\"\ncache.read-ahead = \"0\"\n";
    let text = text.replace("name = \"v2\"\n", cached);
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let [snapshot, image, cache] = ["v0", "v1", "v2"].map(|name| uri(&daemon, name));
    [&snapshot, &image, &cache].iter().for_each(|uri| qemu_io_ok(uri, &["read 0 64k"]));
    // As soon as `rbd` has removed the snapshot, no client may read the living image's bytes
    // instead.
    cluster.rbd(&["snap", "rm", "rbd/read@s"]);
    qemu_io_fails(&snapshot, "read 0 64k");
    qemu_io_fails(&cache, "read 4M 64k");
    wait_for_line(&daemon, "drive d0: rbd:rbd/read@s: the snapshot was removed");
    wait_for_line(&daemon, "drive d2: rbd:rbd/read@s: the snapshot was removed");
    // A watched image cannot be removed; one that grows or is flattened stays readable.
    let output = run(&mut cluster.rbd_command(&["rm", "rbd/read"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("watchers"), "{said}");
    cluster.rbd(&["resize", "--size", "40M", "rbd/read"]);
    qemu_io_ok(&image, &["read 0 64k"]);
    cluster.rbd(&["resize", "--allow-shrink", "--size", "12M", "rbd/read"]);
    qemu_io_fails(&image, "read 20M 64k");
    qemu_io_ok(&image, &["read 8M 64k"]);
    wait_for_line(&daemon, "drive d1: rbd:rbd/read: the image was shrunk from 24m to 12m");
    let status = daemon.terminate();
    assert!(status.success(), "readers lose nothing: {}", daemon.stderr());
}

fn an_image_that_was_shrunk_has_no_space_behind_its_end(cluster: &Cluster) {
    create(cluster, "rbd/shrunk");
    let daemon = serve(cluster, &["\"rbd/shrunk\""]);
    let uri = uri(&daemon, "v0");
    qemu_io_ok(&uri, &["write -P 3 0 24M", "flush"]);
    cluster.rbd(&["resize", "--allow-shrink", "--size", "12M", "rbd/shrunk"]);
    for command in ["write 20M 64k", "write -z 20M 64k", "write 12280k 16k"] {
        let said = qemu_io_fails(&uri, command);
        assert!(said.contains("No space left on device"), "{command}: {said}");
    }
    let said = qemu_io_fails(&uri, "read 20M 64k");
    assert!(said.contains("Input/output error"), "{said}");
    qemu_io_ok(&uri, &["write -P 4 8M 64k", "read -P 4 8M 64k", "read -P 3 9M 3M", "flush"]);
    wait_for_line(&daemon, "drive d0: rbd:rbd/shrunk: the image was shrunk from 24m to 12m");
    // The image is enlarged again, and the volume is resized.
    cluster.rbd(&["resize", "--size", "24M", "rbd/shrunk"]);
    let mut resize = millrace();
    resize.current_dir(daemon.dir()).args(["ctl", "resize", "--connect", "unix:c", "v0"]);
    succeed(&mut resize);
    qemu_io_ok(&uri, &["read -P 0 20M 64k", "write 20M 64k", "flush"]);
    end(daemon);
}

fn an_image_whose_lock_feature_is_disabled_takes_no_more_writes(cluster: &Cluster) {
    create(cluster, "rbd/unlocked");
    let mut daemon = serve(cluster, &["\"rbd/unlocked\""]);
    let uri = uri(&daemon, "v0");
    qemu_io_ok(&uri, &["write -P 5 0 64k", "flush"]);
    let features = ["feature", "disable", "rbd/unlocked"];
    cluster.rbd(&[&features[..], &["fast-diff", "object-map", "exclusive-lock"]].concat());
    qemu_io_fails(&uri, "write -P 6 0 64k");
    let disabled = "drive d0: rbd:rbd/unlocked: its exclusive lock is gone because the feature";
    wait_for_line(&daemon, disabled);
    assert!(!daemon.terminate().success(), "what could not be written is no success");
    assert!(exported(cluster, "rbd/unlocked")[..64 << 10].iter().all(|byte| *byte == 5));
}

fn a_sharer_that_was_never_let_write_has_lost_nothing(cluster: &Cluster) {
    create(cluster, "rbd/shared");
    let daemon = serve(cluster, &["\"rbd/shared\""]);
    let file = cluster.file("shared.toml");
    let text = config(cluster, &["\"rbd/shared\"\nlock = false"]);
    fs::write(&file, &text).expect("the directory is writable");
    let (code, said) = checked(&file);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("has this image's exclusive lock: with lock=off"), "{said}");
    let sharer = Daemon::start(&text, &["s", "c"]);
    assert!(sharer.stderr().contains("with lock=off"), "{}", sharer.stderr());
    qemu_io_fails(&uri(&sharer, "v0"), "write 0 64k");
    wait_for_line(&sharer, "another client has the image's exclusive lock and keeps it");
    end(sharer);
    end(daemon);
}

fn a_clean_stop_leaves_neither_lock_nor_watch(cluster: &Cluster) {
    // The timeout of a cluster with default settings.
    let set = |seconds| cluster.ceph(&["tell", "osd.0", "config", "set", TIMEOUT, seconds]);
    const TIMEOUT: &str = "osd_client_watch_timeout";
    set("30");
    create(cluster, "rbd/stopped");
    let shut_out = || cluster.ceph(&["osd", "blocklist", "ls"]);
    let before = shut_out();
    for round in 0..3 {
        let since = Instant::now();
        let daemon = serve(cluster, &["\"rbd/stopped\""]);
        assert!(since.elapsed() < Duration::from_secs(15), "start {round}: {:?}", since.elapsed());
        qemu_io_ok(&uri(&daemon, "v0"), &["write 0 64k"]);
        end(daemon);
        let status = cluster.rbd(&["status", "rbd/stopped"]);
        assert!(status.contains("Watchers: none"), "{status}");
        assert_eq!(cluster.rbd(&["lock", "ls", "rbd/stopped"]), "");
    }
    assert_eq!(shut_out(), before);
    set("5");
}

fn one_client_writes_and_the_others_are_refused(cluster: &Cluster) {
    create(cluster, "rbd/locked");
    let mut daemon = serve(cluster, &["\"rbd/locked\""]);
    let (code, text) = check_drive(cluster, "rbd:rbd/locked,connect=3s");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("has this image's lock; stop that client"), "{text}");
    let file = cluster.file("locked.toml");
    fs::write(&file, config(cluster, &["\"rbd/locked\""])).expect("the directory is writable");
    let (code, text) = checked(&file);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("has this image's lock; stop that client"), "{text}");
    let write = ["bench", "--io-type", "write", "--io-size", "4096", "--io-total", "4096"];
    let mut other = cluster.rbd_command(&write);
    let output = run(other.arg("rbd/locked"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("Read-only file system"), "another writer is refused: {text}");
    let (code, text) = check_drive(cluster, "rbd:rbd/locked,read-only=on");
    assert_eq!(code, Some(0), "a reader is not: {text}");
    qemu_io_ok(&uri(&daemon, "v0"), &["write 0 64k", "flush"]);
    // A client that died gives its lock back by and by.
    daemon.kill9();
    end(serve(cluster, &["\"rbd/locked\"\nconnect = \"40s\""]));
}

fn an_osd_that_is_killed_costs_time_and_nothing_else(cluster: &mut Cluster) {
    create(cluster, "rbd/crash");
    let daemon = serve(cluster, &["\"rbd/crash\""]);
    let mut fio = Command::new("fio");
    fio.current_dir(daemon.dir());
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bsrange=4k-64k"]);
    fio.args(["--size=24m", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"]);
    fio.args(["--fsync=64", "--thread", "--rate_iops=,120"]);
    fio.arg(format!("--uri={}", uri(&daemon, "v0")));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| run_within(&mut fio, Duration::from_secs(120)));
        for pause_ms in [1500, 300] {
            std::thread::sleep(Duration::from_millis(pause_ms));
            assert!(!load.is_finished(), "the OSD is killed under load");
            cluster.kill_osd();
            std::thread::sleep(Duration::from_millis(300));
            cluster.start_osd();
            // Answers when the OSD does.
            cluster.rbd(&["info", "rbd/crash"]);
        }
        let output = load.join().expect("fio does not panic");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("err= 0"), "{output:?}");
    });
    let said = daemon.stderr();
    assert!(!said.contains("failed"), "{said}");
    end(daemon);
}

fn a_lock_that_is_taken_away_ends_in_errors(cluster: &Cluster) {
    create(cluster, "rbd/stolen");
    let mut daemon = serve(cluster, &["\"rbd/stolen\""]);
    qemu_io_ok(&uri(&daemon, "v0"), &["write 0 64k", "flush"]);
    let list = cluster.rbd(&["lock", "ls", "--format", "json", "rbd/stolen"]);
    let list: serde_json::Value = serde_json::from_str(&list).expect("rbd writes JSON");
    let (id, locker) = (list[0]["id"].as_str(), list[0]["locker"].as_str());
    let (id, locker) = (id.expect("a lock has an id"), locker.expect("a lock has an owner"));
    cluster.rbd(&["lock", "rm", "rbd/stolen", id, locker]);
    let output = qemu_io(&uri(&daemon, "v0"), &["write -P 1 0 64k"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("write failed"), "{said}");
    let status = daemon.terminate();
    assert!(!status.success(), "what could not be written is no success");
    let said = daemon.stderr();
    assert!(said.contains("drive d0") && said.contains("drive is offline"), "{said}");
    assert!(exported(cluster, "rbd/stolen").iter().all(|byte| *byte == 0 || *byte == 0xcd));
}
