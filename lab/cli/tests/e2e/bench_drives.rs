//! Drives on NBD servers in `millrace-lab bench`.

use std::fs;

use millrace_tests::remote::Remote;
use millrace_tests::serving::succeed;
use millrace_tests::{millrace_lab, require_clients, run, tempdir};

#[test]
fn one_export_of_two_drives_is_refused() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let server = Remote::nbdkit(&dir.path().join("s"), &["memory", "1M"]);
    let bench = |spec: &str, more: &[&str]| {
        let mut command = millrace_lab();
        command.args(["bench", "--runtime", "10ms", "--drive", spec, "--drive", spec]).args(more);
        let output = run(command.current_dir(dir.path()));
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refused = "drive d1: its file, export or image is that of drive d0, too; give each drive \
                   one of its own";
    for more in [&[][..], &["--program", "webserver"]] {
        let (code, text) = bench(&server.spec(""), more);
        assert!(code == Some(2) && text.contains(refused), "{code:?}: {text}");
    }
    // Two drives that only read do not disturb each other.
    let (code, text) = bench(&server.spec(",read-only=on"), &[]);
    assert_eq!(code, Some(0), "{text}");
}

/// Threads that share a connection have one of them serve it, which must not go before the others.
#[test]
fn jobs_on_one_connection_end_together() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let server = Remote::nbdkit(&dir.path().join("n"), &["memory", "16M"]);
    let drive = ["--drive".to_owned(), server.spec(",connections=1")];
    let bench = |more: &[&str]| {
        let mut command = millrace_lab();
        command.arg("bench").args(&drive).args(more).current_dir(dir.path());
        succeed(&mut command)
    };
    bench(&["--rw", "randread", "--numjobs", "3", "--ios", "2000"]);
    // The first job ends before the second begins, and one that waits serves the others.
    let job = "[global]\nrw=randread\nsize=1m\n[a]\nnumjobs=2\n[b]\nstonewall\nnumjobs=2\n\
               [c]\nstartdelay=1\n";
    fs::write(dir.path().join("j.fio"), job).unwrap();
    let said = bench(&["--jobfile", "j.fio"]);
    assert!(said.contains('b') && said.contains('c'), "{said}");
}
