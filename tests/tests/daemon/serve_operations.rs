//! The recipes of docs/operations.md, pasted one after the other into a shell.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_tests::{millrace, require_clients, run, tempdir};

/// The lines of all blocks of a language, block by block.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let blocks = text.split(begin.as_str()).skip(1);
    blocks.map(|rest| rest.split_once("```").expect("a block ends").0).collect()
}

#[test]
fn recipes_work_as_pasted() {
    require_clients!("nbdinfo", "qemu-img", "qemu-io");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = fs::read_to_string(page).unwrap();
    let program = Path::new(millrace().get_program()).to_owned();
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let dir = tempdir();
    // Jobs have numbers in interactive shells only; -m asks for them.
    let script = format!("set -eum\n{}", blocks(&text, "sh").concat());
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-c", &script]).current_dir(&dir).env("PATH", path);
    let output = run(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    assert!(output.status.success(), "{output:?}\n{log}");
    let expected: Vec<&str> =
        blocks(&text, "text").iter().flat_map(|block| block.lines()).collect();
    assert!(expected.len() > 6);
    for line in expected {
        assert!(said.lines().any(|printed| printed == line), "{line:?} is not in\n{said}");
    }
    assert!(
        said.trim_end().ends_with("all requests are answered and all data is flushed"),
        "{said}"
    );
}
