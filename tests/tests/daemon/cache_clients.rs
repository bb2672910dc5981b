//! A volume with a cache, used by fio, qemu-io, nbdinfo, and the frontend of a virtual machine.
//!
//! The drives are files, in which the tests see the data that reached the drives.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use millrace_clients::vhost::{Client, Options, Request, Status, Wait};
use millrace_tests::cached_volume::{config, counters, stat};
use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::remote::Remote;
use millrace_tests::serving::{backends, four_files, pattern, succeed, uri};
use millrace_tests::{Daemon, require_clients, tempdir};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// A cache whose flusher has no reason of its own to write.
const LAZY: &str = "size = \"16m\"\ndirty-age = \"1h\"";
/// A dirty limit of a quarter of fio's data.
const SMALL: &str = "size = \"16m\"\ndirty-max = \"2m\"";
/// Block sizes of whole 64 KiB for fio, instead of those of `verified`.
const BLOCKS_64K: &str = "--bssplit=64k/60:128k/20:256k/20";

fn fio(daemon: &Daemon, arguments: &[&str]) -> String {
    let mut command = Command::new("fio");
    // fio leaves files of state where it runs.
    command.current_dir(daemon.dir()).args(["--name=cached", "--ioengine=nbd", "--thread"]);
    command.arg(format!("--uri={}", uri(daemon, "v")));
    succeed(command.args(arguments))
}

/// Four jobs, each in its own 16 MiB over a connection of its own.
fn verified(daemon: &Daemon, more: &[&str]) {
    let common = ["--rw=randwrite", "--numjobs=4", "--size=16m", "--offset_increment=16m"];
    let checks = ["--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1"];
    let blocks = ["--randrepeat=1", "--bssplit=512/10:4k/40:12k/20:64k/20:256k/10"];
    let said = fio(daemon, &[&common[..], &checks, &blocks, more].concat());
    assert_eq!(said.matches("err= 0").count(), 4, "{said}");
}

#[test]
fn random_writes_through_a_small_cache_reach_their_files() {
    require_clients!("fio");
    for backend in backends() {
        let drives = tempdir();
        let files = four_files(drives.path(), 16, "");
        let server = format!("threads = 2\nbackend = \"{backend}\"\n");
        let mut daemon = Daemon::start(&(config(&files, SMALL) + &server), &["s", "c"]);
        verified(&daemon, &[]);
        verified(&daemon, &["--fsync=32", "--randseed=7"]);
        let counted = counters(&daemon);
        assert!(counted["evicted"].as_u64() > Some(1000), "{backend}: {counted}");
        assert!(counted["writes"]["back"].as_u64() > Some(16_384), "{backend}: {counted}");
        assert_eq!(daemon.terminate().code(), Some(0), "{backend}: {}", daemon.stderr());
        let daemon = Daemon::start(&(config(&files, "") + &server), &["s"]);
        verified(&daemon, &["--verify_only", "--randseed=7"]);
    }
}

#[test]
fn drives_of_64_kib_blocks_get_whole_blocks_only() {
    require_clients!("fio");
    let daemon = Daemon::start(&config(&["ram:size=8m,block=64k"], "size = \"64m\""), &["s", "c"]);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    let data = pattern(64 << 10, 1);
    raw.write(640 << 10, &data).unwrap();
    let read = raw.read(128 << 10, (2 << 20) + (64 << 10)).expect("it reads around a dirty block");
    assert!(read[512 << 10..576 << 10] == data && read[576 << 10..].iter().all(|byte| *byte == 0));
    let counted = counters(&daemon);
    assert_eq!((&counted["page_bytes"], &counted["dirty_bytes"]), (&65_536.into(), &65_536.into()));
    drop(daemon);
    for layout in ["layout = \"linear\"", "chunk = \"64k\"", "chunk = \"256k\""] {
        let text = config(&["ram:size=8m,block=64k", "ram:size=8m"], "size = \"4m\"");
        let text = text.replace("chunk = \"64k\"", layout) + "threads = 2\n";
        let mut daemon = Daemon::start(&text, &["s", "c"]);
        // Over each other, so that blocks are written again while they are written back.
        let jobs = ["--rw=randrw", "--numjobs=4", "--iodepth=32", "--size=16m", "--loops=8"];
        let said = fio(&daemon, &[&jobs[..], &["--bs=64k", "--fsync=64"]].concat());
        assert_eq!(said.matches("err= 0").count(), 4, "{layout}: {said}");
        assert_eq!(daemon.terminate().code(), Some(0), "{layout}: {}", daemon.stderr());
        assert!(!daemon.stderr().contains(" lost"), "{layout}: {}", daemon.stderr());
    }
}

#[test]
fn server_with_64_kib_blocks_fails_nothing_below_a_cache() {
    require_clients!("fio", "nbdkit");
    let modes = ["write-back", "write-through"];
    let layouts = ["layout = \"linear\"", "chunk = \"64k\""];
    for (mode, layout) in modes.into_iter().flat_map(|mode| layouts.map(|layout| (mode, layout))) {
        let dir = tempdir();
        let path = |name: &str| dir.path().join(name);
        let servers = [("n0", "d0"), ("n1", "d1")]
            .map(|(socket, file)| Remote::large_blocks(&path(socket), &path(file), 32));
        let drives = servers.each_ref().map(|server| server.spec(""));
        let keys = format!("size = \"4m\"\nmode = \"{mode}\"");
        let text = config(&drives, &keys).replace("chunk = \"64k\"", layout);
        let mut daemon = Daemon::start(&text, &["s", "c"]);
        verified(&daemon, &[BLOCKS_64K, "--fsync=32"]);
        let counted = counters(&daemon);
        assert_eq!(counted["writes"]["errors"], 0, "{mode}, {layout}: {counted}");
        assert_eq!(daemon.terminate().code(), Some(0), "{mode}, {layout}: {}", daemon.stderr());
        let uncached = config(&drives, "").replace("chunk = \"64k\"", layout);
        let daemon = Daemon::start(&uncached, &["s"]);
        verified(&daemon, &[BLOCKS_64K, "--verify_only"]);
    }
}

#[test]
fn sequential_4_kib_writes_reach_drives_as_128_kib_or_more() {
    require_clients!("fio");
    let drives = tempdir();
    let one = format!("file:path={}/d0,size=64m", drives.path().display());
    let daemon = Daemon::start(&config(&[one], SMALL), &["s", "c"]);
    fio(&daemon, &["--rw=write", "--bs=4k", "--iodepth=32", "--size=64m", "--end_fsync=1"]);
    let report = stat(&daemon);
    let writes = &report["caches"][0]["writes"];
    let (pages, requests) =
        (writes["back"].as_u64().unwrap(), writes["requests"].as_u64().unwrap());
    assert!(pages >= 16_384, "64 MiB: {writes}");
    assert!(pages * 4 >= requests * 128, "{} KiB a request: {writes}", pages * 4 / requests);
    let drive = |row: &&Value| row["kind"] == "drive";
    let row = report["rows"].as_array().unwrap().iter().find(drive).unwrap();
    assert!(row["write"]["request_kib"].as_f64() >= Some(128.0), "{row}");
}

#[test]
fn discards_and_zeroes_are_seen_at_once_and_in_file_at_end() {
    require_clients!("qemu-io", "nbdkit");
    let all = backends().iter().flat_map(|backend| [(backend, false), (backend, true)]);
    for (backend, has_large_blocks) in all {
        let drives = tempdir();
        let path = drives.path().join("d0");
        let socket = drives.path().join("n");
        let server = has_large_blocks.then(|| Remote::large_blocks(&socket, &path, 4));
        let file = format!("file:path={},size=4m", path.display());
        let one = server.as_ref().map_or(file, |server| server.spec(""));
        let text = config(&[one], LAZY) + &format!("backend = \"{backend}\"\n");
        let mut daemon = Daemon::start(&text, &["s"]);
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-d", "unmap"]);
        // Dirty, then discarded and zeroed in part, off the borders of pages, too.
        for step in [
            "write -P 0xab 0 1M",
            "discard 64k 128k",
            "write -z 256k 66048",
            "write -z -u 512k 64k",
            "write -P 0xcd 100k 512",
            "read -P 0xab 0 64k",
            "read -P 0 64k 36k",
            "read -P 0xcd 100k 512",
            "read -P 0 256k 66048",
            "read -P 0xab 328192 512",
            "read -P 0 512k 64k",
            "read -P 0xab 576k 448k",
        ] {
            command.args(["-c", step]);
        }
        let said = succeed(command.arg(uri(&daemon, "v")));
        assert!(!said.contains("failed"), "{said}");
        assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
        let bytes = fs::read(&path).unwrap();
        let all = |from: usize, to: usize, value| bytes[from..to].iter().all(|it| *it == value);
        const K: usize = 1024;
        assert!(all(0, 64 * K, 0xab) && all(64 * K, 100 * K, 0), "{backend}");
        assert!(all(100 * K, 100 * K + 512, 0xcd) && all(100 * K + 512, 192 * K, 0), "{backend}");
        assert!(all(192 * K, 256 * K, 0xab) && all(256 * K, 256 * K + 66_048, 0), "{backend}");
        assert!(all(256 * K + 66_048, 512 * K, 0xab) && all(512 * K, 576 * K, 0), "{backend}");
        assert!(all(576 * K, 1024 * K, 0xab) && all(1024 * K, 4096 * K, 0), "{backend}");
    }
}

#[test]
fn nbdinfo_sees_flush_and_fua_and_dirty_ranges_as_data() {
    require_clients!("nbdinfo");
    let drives = tempdir();
    let one = format!("file:path={}/d0,size=4m", drives.path().display());
    let daemon = Daemon::start(&config(&[one], LAZY), &["s"]);
    let info = || {
        let mut command = Command::new("nbdinfo");
        let text = succeed(command.args(["--json", &uri(&daemon, "v")]));
        let info: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
        info["exports"][0].clone()
    };
    for can in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(info()[can], true, "{can}: {}", info());
    }
    // nbdinfo prints lines of offset, length, type as a number, and type as a word; finds the line
    // of a byte.
    let kind_at = |byte: u64| {
        let mut command = Command::new("nbdinfo");
        let text = succeed(command.args(["--map", &uri(&daemon, "v")]));
        let lines = text.lines().map(|line| {
            let fields: Vec<u64> =
                line.split_whitespace().map_while(|field| field.parse().ok()).collect();
            (fields[0], fields[1], fields[2])
        });
        let mut lines = lines.collect::<Vec<_>>().into_iter();
        let covers =
            |(start, length, _): &(u64, u64, u64)| (*start..start + length).contains(&byte);
        lines.find(covers).expect("the map covers the export").2
    };
    assert_eq!(kind_at(MIB), 3, "a hole that reads as zeroes");
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    raw.write(MIB, &pattern(64 << 10, 1)).unwrap();
    assert_eq!(kind_at(MIB), 0, "it is in memory only, and data");
    raw.flush().unwrap();
    assert_eq!((kind_at(MIB), kind_at(2 * MIB)), (0, 3));
}

#[test]
fn virtual_machine_sees_flush_and_its_flush_reaches_the_file() {
    for backend in backends() {
        let drives = tempdir();
        let path = drives.path().join("d0");
        let one = format!("file:path={},size=4m", path.display());
        let text = config(&[one], LAZY).replace("nbd = \"unix:s\"", "vhost-user-blk = \"unix:s\"");
        let mut daemon = Daemon::start(&format!("{text}backend = \"{backend}\"\n"), &["s", "c"]);
        let options =
            Options { queues: 2, data_bytes: 4096, wait: Wait::Events, ..Options::default() };
        let client = Client::connect(&daemon.dir().join("s"), options).unwrap();
        assert!(client.disk().has_flush());
        let mut queues = client.into_queues();
        let (data, mut found) = (pattern(4096, 6), vec![0; 4096]);
        queues[0].write_data(0, &data);
        assert_eq!(queues[0].call(Request::write(16, 4096)).unwrap(), Status::OK);
        let file = fs::File::open(&path).unwrap();
        file.read_exact_at(&mut found, 8192).unwrap();
        assert_eq!(found, [0; 4096], "{backend}: it is in memory only");
        assert_eq!(queues[1].call(Request::read(16, 4096)).unwrap(), Status::OK);
        queues[1].read_data(0, &mut found);
        assert_eq!(found, data, "{backend}: the other queue reads it");
        assert_eq!(queues[1].call(Request::flush()).unwrap(), Status::OK);
        daemon.kill9();
        file.read_exact_at(&mut found, 8192).unwrap();
        assert_eq!(found, data, "{backend}");
    }
}
