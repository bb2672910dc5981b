//! The program starts, says what it is, and refuses what it does not know.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use millrace_tests::poll_within;

fn millrace_lab(argument: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace-lab")).arg(argument).output().unwrap()
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = millrace_lab("--version");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert_eq!(text, concat!("millrace-lab ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn an_exploration_that_ctrl_c_ends_reports_what_it_ran() {
    let mut explore = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    explore.args(["explore", "--seeds", "100000000"]).stdout(Stdio::piped());
    let mut explore = explore.stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let pid = explore.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let ended = poll_within(Duration::from_secs(60), || explore.try_wait().unwrap());
    assert_eq!(ended.map(|status| status.code()), Some(Some(130)));
    let mut text = String::new();
    explore.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    explore.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(
        text.contains(" seeds in ") && text.contains("interrupted: the report above"),
        "{text}"
    );
}

#[test]
fn an_unknown_argument_is_named_and_ends_with_status_2() {
    let output = millrace_lab("--no-such-thing");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("--no-such-thing"), "{text}");
}

#[test]
fn a_full_standard_error_does_not_end_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.log");
    std::fs::write(&trace, "fio version 2 iolog\nd0 add\nd0 open\nd0 write 0 4096\n").unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut convert = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    convert.args(["trace", "convert", "t.log", "--to-format", "iolog", "-o", "copy.log"]);
    let status = convert.current_dir(dir.path()).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(dir.path().join("copy.log").exists());
}
