//! fio writes random data over four NBD connections and verifies it, before and after a restart.
//!
//! Blocks of 512 bytes to 256 KiB, so that requests are split at chunks, copied, and received in
//! place. Every drive type runs on each back end.

use std::process::Command;

use millrace_tests::serving::{backends, four_files, stripe, succeed, uri};
use millrace_tests::{Daemon, require_clients, tempdir};

const MIXED_BLOCKS: &str = "512/10:4k/40:12k/20:64k/20:256k/10";

/// Runs four jobs at depth 16, each in its own 16 MiB, that write (unless told not to) and verify.
fn fio(daemon: &Daemon, more: &[&str]) -> String {
    let mut command = Command::new("fio");
    // fio leaves files of state where it runs.
    command.current_dir(daemon.dir());
    command.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--numjobs=4"]);
    command.args(["--size=16m", "--offset_increment=16m", "--iodepth=16", "--thread"]);
    command.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randrepeat=1"]);
    command.arg(format!("--bssplit={MIXED_BLOCKS}")).arg(format!("--uri={}", uri(daemon, "v")));
    succeed(command.args(more))
}

fn writes_and_verifies(daemon: &Daemon) {
    let said = fio(daemon, &[]);
    assert_eq!(said.matches("err= 0").count(), 4, "{said}");
    // The second run overwrites old data, with flushes between the writes.
    let said = fio(daemon, &["--fsync=32", "--randseed=7"]);
    assert_eq!(said.matches("err= 0").count(), 4, "{said}");
}

fn verifies_only(daemon: &Daemon) {
    let said = fio(daemon, &["--verify_only", "--randseed=7"]);
    assert_eq!(said.matches("err= 0").count(), 4, "{said}");
    assert!(said.contains("READ: "), "something was read: {said}");
    assert!(!said.contains("WRITE: "), "nothing was written: {said}");
}

/// Writes and verifies on file drives with these keys, restarts the daemon, verifies again.
fn survives_a_restart(keys: &str) {
    for backend in backends() {
        let drives = tempdir();
        let config = stripe(backend, &four_files(drives.path(), 16, keys));
        let mut daemon = Daemon::start(&config, &["s"]);
        writes_and_verifies(&daemon);
        let status = daemon.terminate();
        assert!(status.success(), "{backend}: {status}: {}", daemon.stderr());
        drop(daemon);
        let daemon = Daemon::start(&config, &["s"]);
        verifies_only(&daemon);
    }
}

#[test]
fn random_writes_to_stripe_of_files_verify_and_survive_restart() {
    require_clients!("fio");
    survives_a_restart("");
}

#[test]
fn random_writes_to_threaded_files_survive_a_restart() {
    require_clients!("fio");
    survives_a_restart(",aio=threads");
}

#[test]
fn random_writes_to_a_stripe_in_memory_verify() {
    require_clients!("fio");
    for backend in backends() {
        let daemon = Daemon::start(&stripe(backend, &["ram:size=16m"; 4]), &["s"]);
        writes_and_verifies(&daemon);
        verifies_only(&daemon);
    }
}
