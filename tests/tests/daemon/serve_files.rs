//! `millrace serve disk.img`: files served at once, whole, and left as they are.
//!
//! Real clients use the daemon. Bytes that a layout cannot use are reported at the start, by
//! `--check` and by `stat --json`. An image in a container format is served with a warning, whose
//! command line serves the disk inside.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use millrace_tests::{Daemon, millrace, poll_within, require_clients, run, tempdir};
use tempfile::TempDir;

/// `millrace serve` with these arguments in a directory, up and with its socket.
fn serve(dir: TempDir, arguments: &[&str], sockets: &[&str]) -> Daemon {
    let mut command = millrace();
    command.arg("serve").args(arguments);
    Daemon::start_command(dir, &mut command, sockets)
}

/// A directory with a file of this length, whose last bytes are `THE END`.
fn with_file(name: &str, length: u64) -> TempDir {
    let dir = tempdir();
    let file = fs::File::create(dir.path().join(name)).unwrap();
    file.set_len(length).unwrap();
    file.write_all_at(b"THE END", length - 7).unwrap();
    dir
}

/// A command's standard output.
fn printed(command: &mut Command) -> String {
    let output = run(command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn size_of(uri: &str, dir: &Path) -> u64 {
    let size = printed(Command::new("nbdinfo").args(["--size", uri]).current_dir(dir));
    size.trim().parse().unwrap()
}

/// The volume's size, and the size that its layout leaves out, from `millrace stat --json`.
fn sizes(dir: &Path) -> (u64, u64) {
    // The daemon's control socket is found in the directory.
    let line = printed(millrace().args(["stat", "--json"]).current_dir(dir));
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    let volume = &report["volumes"][0];
    (volume["size_bytes"].as_u64().unwrap(), volume["unused_bytes"].as_u64().unwrap())
}

#[test]
fn one_file_is_served_to_its_last_byte_under_its_name() {
    require_clients!("nbdinfo", "nbdcopy", "qemu-img");
    // No multiple of the chunk of a stripe, as disks are.
    let length = 10_000_384;
    let mut daemon = serve(with_file("disk.img", length), &["disk.img"], &["disk.sock"]);
    let uri = "nbd+unix:///disk?socket=disk.sock";
    assert_eq!(size_of(uri, daemon.dir()), length);
    assert_eq!(size_of("nbd+unix:///?socket=disk.sock", daemon.dir()), length);
    assert_eq!(sizes(daemon.dir()), (length, 0));
    assert!(!daemon.stderr().contains("unused:"), "{}", daemon.stderr());
    let copy = printed(
        Command::new("nbdcopy").args([uri, "-"]).current_dir(daemon.dir()).arg("--allocated"),
    );
    assert!(copy.len() as u64 == length && copy.ends_with("THE END"));
    assert_eq!(daemon.terminate().code(), Some(0));
    let names = fs::read_dir(daemon.dir()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["disk.img", "stderr", "stdout"]);
}

#[test]
fn lines_to_paste_do_not_change_the_users_disk() {
    require_clients!("qemu-img", "nbdcopy", "fio");
    let daemon = serve(with_file("disk.img", 1_000_448), &["disk.img"], &["disk.sock"]);
    let before = fs::read(daemon.dir().join("disk.img")).unwrap();
    let stdout = daemon.stdout();
    let lines = stdout.lines().filter(|line| line.starts_with("  ") && line.contains("nbd+unix"));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    for line in lines {
        let line = line.replace("--runtime=5", "--runtime=1");
        printed(Command::new("sh").args(["-c", &line]).current_dir(daemon.dir()));
    }
    assert!(stdout.contains("--rw=randread") && !stdout.contains("randrw"), "{stdout}");
    assert!(fs::read(daemon.dir().join("disk.img")).unwrap() == before);
    let copied = fs::read(daemon.dir().join("disk-copy.img")).unwrap();
    assert!(copied == before, "the copy has a name of its own");
}

#[test]
fn what_layout_leaves_out_is_said_at_start_by_check_and_by_stat() {
    // A tail of 100 bytes makes no sector; 70 MiB are 30 less than 100.
    let dir = with_file("a.img", (1 << 20) + 100);
    let note = "volume a: unused: the last 100 of the 1048676 bytes of a, because a block has \
                512 bytes\n";
    let checked = run(millrace().args(["serve", "a.img", "--check"]).current_dir(&dir));
    assert_eq!(String::from_utf8_lossy(&checked.stderr), format!("note: {note}"));
    let results = String::from_utf8_lossy(&checked.stdout);
    assert!(results.lines().last().unwrap().starts_with("command line: valid"), "{results}");
    let daemon = serve(dir, &["a.img"], &["a.sock"]);
    let logged = format!("INFO  millrace: {note}");
    assert!(daemon.stderr().contains(&logged), "{}", daemon.stderr());
    assert!(!daemon.stdout().contains("unused:"), "{}", daemon.stdout());
    assert_eq!(sizes(daemon.dir()), (1 << 20, 100));

    let dir = with_file("a.img", 100 << 20);
    fs::File::create(dir.path().join("b.img")).unwrap().set_len(70 << 20).unwrap();
    let arguments = ["a.img", "b.img", "--layout", "stripe"];
    let note = "volume vol0: unused: 30 MiB of its drives, since a stripe \
                takes of each what the smallest has, in whole chunks of 64 KiB: 70 MiB of a (100 \
                MiB), b (70 MiB); layout = \"linear\" serves all\n";
    let checked = run(millrace().arg("serve").args(arguments).arg("--check").current_dir(&dir));
    assert_eq!(String::from_utf8_lossy(&checked.stderr), format!("note: {note}"));
    let daemon = serve(dir, &arguments, &["vol0.sock"]);
    assert!(daemon.stderr().contains(note), "{}", daemon.stderr());
    assert!(!daemon.stdout().contains("unused:"), "{}", daemon.stdout());
    assert_eq!(sizes(daemon.dir()), (140 << 20, 30 << 20));
}

#[test]
fn files_one_behind_the_other_on_addresses_of_ones_own() {
    require_clients!("nbdinfo");
    let dir = with_file("a.img", 1 << 20);
    fs::copy(dir.path().join("a.img"), dir.path().join("b.img")).unwrap();
    fs::set_permissions(dir.path().join("b.img"), fs::Permissions::from_mode(0o400)).unwrap();
    let arguments = [
        "a.img",
        "b.img",
        "--read-only",
        "--nbd",
        "unix:x",
        "--nbd",
        "tcp:0",
        "--vhost-user",
        "vm",
        "--name",
        "both",
    ];
    let daemon = serve(dir, &arguments, &["x", "vm"]);
    let uri = "nbd+unix:///both?socket=x";
    assert_eq!(size_of(uri, daemon.dir()), 2 << 20);
    let info = printed(Command::new("nbdinfo").args(["--json", uri]).current_dir(daemon.dir()));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["exports"][0]["is_read_only"], true, "{info}");
    assert!(daemon.stdout().contains("\"both\" at nbd://127.0.0.1:"), "{}", daemon.stdout());
}

#[test]
fn a_configuration_comes_from_standard_input_or_is_printed() {
    let dir = with_file("disk.img", 1 << 20);
    let config =
        printed(millrace().args(["serve", "disk.img", "--print-config"]).current_dir(&dir));
    let mut check = millrace();
    check.args(["serve", "-", "--check"]).current_dir(&dir);
    check.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let in_order = "standard input: valid: 1 drive, 1 volume, 1 export, 1 listener\n";
    assert_eq!(said, format!("volume \"disk\": 1 MiB (1048576 bytes), linear\n{in_order}"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn image_in_container_is_served_with_warning_whose_line_works() {
    require_clients!("qemu-img", "qemu-nbd", "nbdinfo");
    for format in ["qcow2", "vmdk", "vhdx", "vdi"] {
        let (dir, name) = (tempdir(), format!("it's.{format}"));
        let path = dir.path().join(&name);
        let made = ["create", "-q", "-f", format, path.to_str().unwrap(), "5M"];
        printed(Command::new("qemu-img").args(made));
        let daemon = serve(dir, &[&name], &["it's.sock"]);
        let said = daemon.stderr();
        let is_warning = |line: &&str| line.contains(" WARN  millrace: drive it's: it's.");
        let warning = said.lines().find(is_warning).expect(&said);
        let line = warning.split('`').nth(1).expect(warning).to_owned();
        // Runs the command line that the message recommends, with the test's own socket path.
        let socket = daemon.dir().join("q");
        let line = line.replace("/tmp/disk.sock", socket.to_str().unwrap());
        let dir = daemon.dir().to_owned();
        let mut daemon = daemon;
        assert!(daemon.terminate().success());
        let shell = format!("exec {line}");
        let mut qemu = Command::new("sh").args(["-c", &shell]).current_dir(&dir).spawn().unwrap();
        let up = poll_within(std::time::Duration::from_secs(10), || socket.exists().then_some(()));
        let size = up.map(|()| size_of("nbd+unix:///?socket=q", &dir));
        let _ = qemu.kill();
        let _ = qemu.wait();
        assert_eq!(size, Some(5 << 20), "{line}");
    }
}

#[test]
fn disk_in_use_by_qemu_is_refused_and_the_other_way_round() {
    require_clients!("qemu-io");
    let dir = with_file("disk.img", 1 << 20);
    // qemu-io holds the image until its standard input ends.
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", "disk.img"]).current_dir(dir.path());
    let mut held = qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut commands = held.stdin.take().unwrap();
    commands.write_all(b"write 0 4k\n").unwrap();
    // qemu-io opens and locks the image before it prints its first prompt.
    let mut said = [0; 1];
    held.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let output = run(millrace().args(["serve", "disk.img"]).current_dir(dir.path()));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("as QEMU locks the disks of virtual machines"), "{error}");
    drop(commands);
    assert!(held.wait().unwrap().success());
    let daemon = serve(dir, &["disk.img"], &["disk.sock"]);
    let mut qemu = Command::new("qemu-io");
    let output =
        run(qemu.args(["-f", "raw", "-c", "read 0 4k", "disk.img"]).current_dir(daemon.dir()));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("lock"), "{error}");
}

#[test]
fn stripe_with_a_lost_file_is_refused_and_not_made_anew() {
    let dir = tempdir();
    let config = "[[drive]]\nname = \"d0\"\nspec = \"file:path=a,size=1m\"\n\
                  [[drive]]\nname = \"d1\"\nspec = \"file:path=b,size=1m\"\n\
                  [[volume]]\nname = \"v\"\ndrives = [\"d0\", \"d1\"]\n\
                  [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
    fs::write(dir.path().join("m.toml"), config).unwrap();
    fs::write(dir.path().join("a"), vec![1; 1 << 20]).unwrap();
    for arguments in [&["serve", "m.toml", "--check"][..], &["serve", "m.toml"]] {
        let output = run(millrace().args(arguments).current_dir(dir.path()));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}: {error}");
        let said = "drive d1: b: this file is missing or empty, but drive d0 of volume v has data";
        assert!(error.contains(said), "{arguments:?}: {error}");
        assert!(!dir.path().join("b").exists(), "{arguments:?}");
    }
}
