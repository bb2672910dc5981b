//! The lock table of `millrace-lab bench --locks`.

use millrace_tests::millrace_lab;
use millrace_tests::serving::succeed;
use serde_json::Value;

/// The sum row of the lock `serve`, which comes before the rows of its call sites.
fn serve_lock(locks: &Value) -> &Value {
    let rows = locks.as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == "serve" && row["site"].is_null());
    found.unwrap_or_else(|| panic!("{locks}"))
}

#[test]
fn bench_tells_of_serve_lock_here_and_on_simulated_machine() {
    for machine in ["", "--machine e7-2870 --cpus 20"] {
        let arguments = format!(
            "bench {machine} --locks --jobs 2 --ios 2000 --hardware-queues one --json --stack mq"
        );
        let rows = succeed(millrace_lab().args(arguments.split_whitespace()));
        let rows: Value = serde_json::from_str(&rows).unwrap();
        let serve = serve_lock(&rows[0]["locks"]);
        assert!(serve["acquisitions"].as_u64().unwrap() > 10, "{serve}");
        assert!(serve["hold_ns_mean"].as_u64().unwrap() > 0, "{serve}");
    }
}
