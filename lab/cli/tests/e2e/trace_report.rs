//! The page that `millrace-lab trace report` writes.

use millrace_tests::traces::kernel_traces;
use millrace_tests::{millrace_lab, run, tempdir};

#[test]
fn the_report_is_one_page_that_loads_nothing() {
    let dir = tempdir();
    let page = dir.path().join("page.html");
    let mut command = millrace_lab();
    command
        .args(["trace", "report", "dm-0", "nvme0n1", "-D"])
        .arg(kernel_traces())
        .arg("-o")
        .arg(&page);
    assert!(run(&mut command).status.success());
    let html = std::fs::read_to_string(&page).unwrap();
    for part in ["id=\"stages\"", "id=\"latency\"", "id=\"sectors\"", "id=\"per-cpu\"", "259,0"] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("<script") && !html.contains("http://") && !html.contains("https://"));
    let output = run(millrace_lab().args(["trace", "report", "missing"]).current_dir(dir.path()));
    let refused = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{refused}");
    assert!(refused.contains("no such trace") && !dir.path().join("missing.html").exists());
}
