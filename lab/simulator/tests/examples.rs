//! The example, run as a newcomer would run it.
// Each example is a module here, whose `main` nobody calls.
#![allow(missing_docs, clippy::unwrap_used, dead_code)]

#[path = "../examples/simulate.rs"]
mod simulate;

use millrace::Stack;

#[test]
fn simulate_gives_same_rate_twice_and_scales_with_queues_only() {
    let rate = |cpus, stack| simulate::simulate(cpus, stack).unwrap();
    assert_eq!(rate(4, Stack::Mq).to_bits(), rate(4, Stack::Mq).to_bits());
    assert!(rate(16, Stack::Mq) > 8.0 * rate(1, Stack::Mq));
    assert!(rate(16, Stack::Sq) < 4.0 * rate(1, Stack::Sq));
}
