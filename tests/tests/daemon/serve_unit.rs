//! docs/millrace.service, .socket and .sysusers: systemd understands every line, and the service
//! stays as closed as it is.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_tests::{client, millrace, run, tempdir};

/// Limit of systemd's exposure level times ten: 0 for a service that can do nothing, 100 for one
/// that may do everything. The rest comes from sockets, the host's network and files, and changes
/// of a socket's owner.
const EXPOSURE_MAX: &str = "20";

#[test]
fn systemd_takes_the_unit_as_it_is_and_finds_it_closed() {
    let Some(analyze) = client("systemd-analyze") else { return };
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let unit = fs::read_to_string(own.with_file_name("docs").join("millrace.service")).unwrap();
    // A program that is not there is an error of its own.
    let binary = millrace().get_program().to_string_lossy().into_owned();
    let dir = tempdir();
    let file = dir.path().join("millrace.service");
    assert!(unit.contains("ExecStart=/usr/bin/millrace serve "));
    fs::write(&file, unit.replace("/usr/bin/millrace", &binary)).unwrap();

    let socket = fs::read_to_string(own.with_file_name("docs").join("millrace.socket")).unwrap();
    let socket_file = dir.path().join("millrace.socket");
    fs::write(&socket_file, socket).unwrap();
    let verified = run(Command::new(&analyze).args(["verify", "--man=no"]).arg(&socket_file));
    let complaints = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !complaints.contains(".socket:"), "{complaints}");
    let verified = run(Command::new(&analyze).args(["verify", "--man=no"]).arg(&file));
    let complaints = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !complaints.contains(".service:"), "{complaints}");
    let mut security = Command::new(&analyze);
    security.args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]);
    let rated = run(security.arg(&file));
    let table = String::from_utf8_lossy(&rated.stdout);
    let complaints = String::from_utf8_lossy(&rated.stderr);
    assert!(rated.status.success(), "{table}{complaints}");
}

#[test]
fn systemd_understands_the_users_and_groups() {
    let Some(sysusers) = client("systemd-sysusers") else { return };
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = own.with_file_name("docs").join("millrace.sysusers");
    let tried = run(Command::new(sysusers).arg("--dry-run").arg(file));
    let complaints = String::from_utf8_lossy(&tried.stderr);
    assert!(tried.status.success() && !complaints.contains("millrace.sysusers:"), "{complaints}");
}
